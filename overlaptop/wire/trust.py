"""Folders that belong to this user alone, and in whose place nobody else can put another.

Only the standard library: this module is imported in the training process.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from overlaptop.wire.folders import UntrustedFolderError, open_trusted


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

    Where a folder above it does not exist the rest is not looked at. Raises OSError where there is no
    descriptor to look with, which says nothing of the folder.
    """
    try:
        os.close(open_trusted(path.absolute().parent))
    except FileNotFoundError:
        pass
    except UntrustedFolderError as refusal:
        raise EndpointError(
            f"{path} cannot be trusted: {refusal}: set OVERLAPTOP_DIR to another folder"
        ) from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise EndpointError(f"cannot use {path}: {error.filename}: {error.strerror}") from None
