"""Descriptors of folders where no other user can replace our files.

A checked path may refer to something else a moment later,
so files are created through the checked descriptors.

Only the standard library: this module is imported in the training process.
"""

import functools
import grp
import os
import pwd
import stat
from pathlib import Path


@functools.cache
def temporary_folder() -> Path:
    """Return the folder for temporary files, chosen as `tempfile.gettempdir` does. That function would
    cache its result for the whole process, but the job may still set TMPDIR. This one caches it only for
    us.
    """
    named = (os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP"))
    for path in (*filter(None, named), "/tmp", "/var/tmp", "/usr/tmp"):  # noqa: S108 - as tempfile
        if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):  # noqa: PTH112
            return Path(path).absolute()
    return Path("/tmp")  # noqa: S108 - creating a file there fails with a message


class UntrustedFolderError(PermissionError):
    """Another user could replace files in this folder. The text is one line that names it."""


def open_trusted(path: Path) -> int:
    """Return a descriptor of the folder at `path`, for ``dir_fd`` and ``os.fstat``. The caller closes it.

    The folder belongs to this user or to root. Others cannot write to it, unless its sticky bit keeps them
    from renaming files of others.

    Raises:
        UntrustedFolderError: it belongs to somebody else, or is open to others.
        OSError: it does not exist, or cannot be reached.
    """
    found = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check(found, path)
    except BaseException:
        os.close(found)
        raise
    return found


def make(path: Path, above: int) -> None:
    """Make a folder that is closed to others, unless the name already exists. Raises OSError.

    `above`: descriptor of the parent folder. `path`: its name there, and in errors.
    """
    try:
        os.mkdir(path.name, 0o700, dir_fd=above)
    except FileExistsError:
        pass
    except OSError as error:
        error.filename = str(path)
        raise


def open_private(path: Path, above: int, *, create: bool = False) -> int:
    """Return a descriptor of a folder of ours that is closed to all others. The caller closes it.

    `above`, `path`: as in :func:`make`, which ``create`` calls.

    Raises:
        UntrustedFolderError: it is a link, no folder, somebody else's or open to others.
        OSError: it does not exist, or cannot be made.
    """
    if create:
        make(path, above)
    # O_PATH also opens folders without read permission, and links themselves.
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
            raise UntrustedFolderError(f"{path} has mode {mode:04o}, not 0700: run chmod 700 {path}")
    except BaseException:
        os.close(found)
        raise
    return found


def _check(found: int, path: Path) -> None:
    """Raise UntrustedFolderError if anybody but this user and root can change this folder."""
    status = os.fstat(found)
    if status.st_uid not in (0, os.geteuid()) and not _may_be_root(status.st_uid):
        raise UntrustedFolderError(f"{path} belongs to uid {status.st_uid}, neither to you nor to root")
    if status.st_mode & stat.S_ISVTX:
        return
    for_all = status.st_mode & stat.S_IWOTH
    if for_all or (status.st_mode & stat.S_IWGRP and not _is_own_group(found, status)):
        raise UntrustedFolderError(
            f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: others can change its files"
        )


def _is_own_group(found: int, status: os.stat_result) -> bool:
    """Whether a group-writable folder is still open to this user only: many systems give each user their
    own group, and a umask of 002.
    """
    try:
        os.getxattr(f"/proc/self/fd/{found}", "system.posix_acl_access")
        return False  # with an access control list, the group's bits include others
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
    """Whether root's files look like this from inside a container that does not map root. There, root
    cannot be told from other users of the machine.
    """
    try:
        # Read as bytes: the agent calls this on its thread, and must not import a codec there.
        overflow_uid = int(Path("/proc/sys/kernel/overflowuid").read_bytes())
        mapped = [line.split() for line in Path("/proc/self/uid_map").read_bytes().splitlines()]
        return uid == overflow_uid and not any(int(outside) == 0 for _, outside, _ in mapped)
    except (OSError, ValueError):
        return False
