"""The sockets in a job's folder, and a check of their owner. Imported in the training process.

A process may be started without some of the standard descriptors. A socket that takes such a number
receives the job's output, and child processes inherit it.
"""

import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from overlaptop.jobs.folder import RANKS_NAME, JobFolderError, job_dir

_MAX_SOCKET_PATH_BYTES = 107  # Linux's sun_path without the closing NUL
_FIRST_FREE_DESCRIPTOR = 3


def ranks_socket(key: str) -> Path:
    """Return the unix socket on which the hub of this job listens for ranks."""
    return _socket(key, RANKS_NAME)


def dashboards_socket(key: str, hub_pid: int) -> Path:
    """Return the ZeroMQ ipc path of a hub. With its pid: ``bind`` would steal a living hub's path."""
    return _socket(key, f"dash-{hub_pid}.sock")


def view_socket(key: str, hub_pid: int) -> Path:
    """Return the path of the read-only socket, which accepts no commands."""
    return _socket(key, f"view-{hub_pid}.sock")


def _socket(key: str, name: str) -> Path:
    path = job_dir(key) / name
    length = len(os.fsencode(path))
    if length > _MAX_SOCKET_PATH_BYTES:
        raise JobFolderError(
            f"{path} is {length} bytes long, a socket's path may have {_MAX_SOCKET_PATH_BYTES}: "
            "set OVERLAPTOP_DIR to a shorter directory"
        )
    return path


def stream_socket() -> socket.socket:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        return _copy(made.fileno())


def _copy(descriptor: int) -> socket.socket:
    """Return a copy of this socket above the standard descriptors. Children do not inherit it."""
    return socket.socket(fileno=fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_DESCRIPTOR))


def check_listener(descriptor: int) -> None:
    """Raise JobFolderError if another user listens on the other end of this connected unix socket, and
    OSError if nobody does.
    """
    with _copy(descriptor) as connection:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
    if uid != os.geteuid():
        raise JobFolderError(
            f"uid {uid}, not you, listens on the job's socket: set OVERLAPTOP_DIR to another folder"
        )


def connected(path: Path) -> socket.socket:
    """Return a non-blocking socket connected to the hub that listens there. Raises as `check_listener`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(str(path))
        check_listener(connection.fileno())
    except BaseException:
        connection.close()
        raise
    return connection


def fill_standard() -> None:
    """Open /dev/null for each closed standard descriptor. For our own processes, not for the job's."""
    with suppress(OSError):  # no descriptor is left, so none of ours can take these numbers
        while (descriptor := os.open(os.devnull, os.O_RDWR)) < _FIRST_FREE_DESCRIPTOR:
            pass
        os.close(descriptor)
