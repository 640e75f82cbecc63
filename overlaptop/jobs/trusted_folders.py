"""Folders in which no other user can put something in our place, and descriptors of them.

A path that was checked may mean something else a moment later: what is made goes through the descriptors
that were checked.

Only the standard library: this module is imported in the training process.
"""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from pathlib import Path


@functools.cache
def temporary_folder() -> Path:
    """Where temporary files are put, as `tempfile.gettempdir` chooses it. That one would keep its answer
    for the whole process, in which the job may set TMPDIR yet; this one keeps it for us, who look first.
    """
    named = (os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP"))
    for path in (*filter(None, named), "/tmp", "/var/tmp", "/usr/tmp"):  # noqa: S108 - as tempfile
        if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):  # noqa: PTH112
            return Path(path).absolute()
    return Path("/tmp")  # noqa: S108 - who makes something there is told why not


class UntrustedFolderError(PermissionError):
    """Somebody else could lay out what is in this folder; the text is one line that names it."""


def open_trusted(path: Path) -> int:
    """A descriptor of the folder at `path`, for ``dir_fd`` and ``os.fstat``; close it.

    It is this user's or root's, and others cannot write to it, unless its sticky bit keeps them from
    renaming what is not theirs.

    Raises:
        UntrustedFolderError: it is somebody else's, or open to others.
        OSError: there is no such folder, or it cannot be reached.
    """
    found = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check(found, path)
    except BaseException:
        os.close(found)
        raise
    return found


def make(path: Path, above: int) -> None:
    """Make a folder that is closed to others, unless there is something already. Raises OSError.

    `above`: of the folder that it lies in; `path` names it there, and in errors.
    """
    try:
        os.mkdir(path.name, 0o700, dir_fd=above)
    except FileExistsError:
        pass
    except OSError as error:
        error.filename = str(path)
        raise


def open_private(path: Path, above: int, *, create: bool = False) -> int:
    """A descriptor of a folder of ours that is closed to all others; close it.

    `above` and `path` as for :func:`make`, which ``create`` asks for.

    Raises:
        UntrustedFolderError: it is a link, no folder, somebody else's or open to others.
        OSError: it is not there, or cannot be made.
    """
    if create:
        make(path, above)
    # O_PATH: a folder may be closed to reading, and a link itself can be opened.
    try:
        found = os.open(path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        status = os.fstat(found)
        if not stat.S_ISDIR(status.st_mode):
            what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a directory"
            raise UntrustedFolderError(f"{path} is {what}")
        if status.st_uid != os.geteuid():
            raise UntrustedFolderError(f"{path} belongs to uid {status.st_uid}, not to you")
        if (mode := status.st_mode & 0o777) != 0o700:
            raise UntrustedFolderError(f"{path} has mode {mode:04o}, not 0700: run chmod 700")
    except BaseException:
        os.close(found)
        raise
    return found


def _check(found: int, path: Path) -> None:
    """UntrustedFolderError unless this folder can be changed by this user and by root alone."""
    status = os.fstat(found)
    if status.st_uid not in (0, os.geteuid()) and not _may_be_root(status.st_uid):
        raise UntrustedFolderError(f"{path} belongs to uid {status.st_uid}, neither to you nor to root")
    if status.st_mode & stat.S_ISVTX:
        return
    for_all = status.st_mode & stat.S_IWOTH
    if for_all or (status.st_mode & stat.S_IWGRP and not _is_own_group(found, status)):
        raise UntrustedFolderError(
            f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: others can change what is in it"
        )


def _is_own_group(found: int, status: os.stat_result) -> bool:
    """Whether a folder that its group may write to is open to this user alone all the same: many systems
    give each user a group of their own, and a umask of 002.
    """
    try:
        os.getxattr(f"/proc/self/fd/{found}", "system.posix_acl_access")
        return False  # with an access control list the group's bits stand for others' too
    except OSError:
        pass
    try:
        me, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return (
        status.st_uid == me.pw_uid
        and group.gr_gid == me.pw_gid
        and group.gr_name == me.pw_name
        and set(group.gr_mem) <= {me.pw_name}
    )


def _may_be_root(uid: int) -> bool:
    """Whether this is how root's files look from inside a container that does not know root: there nobody
    can tell root from other users of the machine.
    """
    try:
        # Not as text: the agent is here, too, on its thread, and must not import a codec there.
        stands_for_all = int(Path("/proc/sys/kernel/overflowuid").read_bytes())
        mapped = [line.split() for line in Path("/proc/self/uid_map").read_bytes().splitlines()]
        return uid == stands_for_all and not any(int(outside) == 0 for _, outside, _ in mapped)
    except (OSError, ValueError):
        return False
