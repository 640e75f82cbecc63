"""Folders that belong to this user alone, and in whose place nobody else can put another.

Only the standard library: this module is imported in the training process.
"""

from __future__ import annotations

import functools
import os
import stat
from contextlib import suppress
from pathlib import Path

_MAX_LINKS = 40
_ELSEWHERE = "set OVERLAPTOP_DIR to another folder"


class EndpointError(Exception):
    """The socket directory, a job's folder or a socket cannot be used; the text is one line."""


def make_private_dir(path: Path) -> None:
    """Makes it where it does not exist; EndpointError as from `check_private_dir`, and where it cannot."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise EndpointError(f"cannot create {path}: {error.strerror}: set OVERLAPTOP_DIR") from None
    check_private_dir(path)


def check_private_dir(path: Path) -> None:
    """Raises EndpointError unless it is a directory of ours that is closed to all others."""
    try:
        status = path.lstat()
    except OSError as error:
        raise EndpointError(f"cannot use {path}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a directory"
        raise EndpointError(f"{path} is {what}: remove it or set OVERLAPTOP_DIR")
    if status.st_uid != os.geteuid():
        raise EndpointError(f"{path} belongs to uid {status.st_uid}, not to you: set OVERLAPTOP_DIR")
    if status.st_mode & 0o777 != 0o700:
        mode = status.st_mode & 0o777
        raise EndpointError(f"{path} has mode {mode:04o}, not 0700: run chmod 700, or set OVERLAPTOP_DIR")


def check_folders_above(path: Path) -> None:
    """Raises EndpointError where somebody else could put another folder in the place of this one.

    All folders from the root on, and the links on the way, must be root's or ours, and none may be written
    to by others unless it is sticky. Where one does not exist the rest is not looked at.
    """
    place, links = Path("/"), 0
    left = [*reversed(path.absolute().parts[1:-1]), "."]
    while left:
        place = Path(os.path.normpath(place / left.pop()))  # no link is left in it: ".." is what it says
        try:
            status = place.lstat()
            target = place.readlink() if stat.S_ISLNK(status.st_mode) else None
        except FileNotFoundError:
            return
        except OSError as error:
            raise EndpointError(f"cannot use {path}: {place}: {error.strerror}") from None
        if status.st_uid not in _trusted_owners():
            raise EndpointError(f"{place}, above {path}, belongs to uid {status.st_uid}: {_ELSEWHERE}")
        if target is not None:
            links += 1
            if links > _MAX_LINKS:
                raise EndpointError(f"too many symbolic links above {path}: {_ELSEWHERE}")
            place = Path("/") if target.is_absolute() else place.parent
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        elif status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(status.st_mode)
            raise EndpointError(
                f"others may replace what is in {place} (mode {mode:04o}), above {path}: "
                f"run chmod go-w {place}, or {_ELSEWHERE}"
            )


def _trusted_owners() -> set[int]:
    return {0, os.geteuid(), *_root_outside()}


@functools.cache
def _root_outside() -> tuple[int, ...]:
    """In a user namespace the folders of the root outside look like nobody's."""
    with suppress(OSError, ValueError):
        if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
            return (int(Path("/proc/sys/kernel/overflowuid").read_text()),)
    return ()
