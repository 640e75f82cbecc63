"""The secret with which the hubs of one job let each other in (``--gather``): a file, or a variable.

It is a CURVE secret key as 64 hexadecimal digits. All nodes have the same, and each hub uses it as its own.
"""

import os
import secrets
import stat
from pathlib import Path

from overlaptop.jobs.files import open_regular

VARIABLE = "OVERLAPTOP_KEY"
_KEY_BYTES = 32
_MAX_FILE_BYTES = 4 * _KEY_BYTES


class GatherError(Exception):
    """Hubs cannot be gathered, as without a key. One line."""


def key_path() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111 - no home, no error
    return Path(config) / "overlaptop" / "gather.key"


def make_key() -> Path:
    """Write a new key with mode 0600 and return its path. Raises GatherError if there is a file."""
    path = key_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_KEY_BYTES) + "\n")
    except FileExistsError:
        raise GatherError(f"{path} exists: remove it first to replace the key") from None
    except OSError as error:
        raise GatherError(f"cannot write {path}: {error.strerror}") from None
    return path


def read_key() -> bytes:
    """Return the 32 bytes of the key, from $OVERLAPTOP_KEY or else the file. Raises GatherError."""
    if (text := os.environ.get(VARIABLE)) is not None:
        return _parse(text, f"${VARIABLE}")
    path = key_path()
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_MAX_FILE_BYTES)
    except FileNotFoundError:
        raise GatherError(f"no key: run `overlaptop key`, which writes {path}, or set {VARIABLE}") from None
    except OSError as error:
        raise GatherError(f"cannot read {path}: {error.strerror or error}") from None
    if status.st_uid != os.geteuid():
        raise GatherError(f"{path} belongs to uid {status.st_uid}, not to you")
    if mode := stat.S_IMODE(status.st_mode) & 0o077:
        raise GatherError(
            f"{path} is open to others (mode bits {mode:03o}): run chmod 600, or make a new key"
        )
    return _parse(data.decode(errors="replace"), str(path))


def _parse(text: str, place: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise GatherError(f"{place} holds no key: {2 * _KEY_BYTES} hexadecimal digits are expected")
    return key
