"""Who is at the other end of a unix socket. This module is imported in the training process."""

from __future__ import annotations

import os
import socket
import struct

from overlaptop.wire.endpoints import EndpointError


def check_listener(descriptor: int) -> None:
    """Raises EndpointError where the other end of this connected unix socket was made by another user,
    OSError where it is none.
    """
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
    if uid != os.geteuid():
        raise EndpointError(
            f"uid {uid}, not you, listens on the job's socket: set OVERLAPTOP_DIR to another folder"
        )
