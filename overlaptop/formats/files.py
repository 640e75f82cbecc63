"""Finds trace files and reads their text, within bounds. Checks only that the text is a JSON object."""

import errno
import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO, NamedTuple

MAX_TEXT_BYTES = 1 << 30
"""Unpacked text of one trace: about five million events."""
MAX_FILES = 4096
MAX_NAMED = 8
"""Maximum folders named in one error."""
SUFFIXES = (".json", ".json.gz")
_CHUNK_BYTES = 1 << 20
_BLANKS = b" \t\r\n"
_NO_OBJECT = "not a torch.profiler trace: it does not begin with a JSON object"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ZEROS = bytes(4096)
"""A crash leaves zeros in a file that was being written. A name may contain one or two."""
_GZIP_MAGIC = b"\x1f\x8b"


class TraceError(Exception):
    """A trace cannot be used. The message is one line with the file and the reason."""

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(f"{path}: {fault}")
        self.fault = fault


class NoTraceOfARankError(TraceError):
    """A valid file without a rank's GPU activity: from another tool, or from a process without a GPU."""


def find(path: Path) -> list[Path]:
    """Return `path` itself, or the traces in the folder `path`, sorted by name. If it holds none, return
    the traces of its only subfolder that does.

    Raises:
        TraceError: it cannot be read, or holds no trace or too many of them.
    """
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return [path]
        found = _traces_in(path)
        folders = [] if found else [entry for entry in sorted(path.iterdir()) if entry.is_dir()]
        below = [(folder, traces) for folder in folders if (traces := _traces_in(folder))]
    except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
        raise TraceError(path, _reason(fault)) from fault
    if len(below) == 1:
        _, found = below[0]
    if not found:
        words = "nothing in it is called *.json or *.json.gz"
        if below:
            named = ", ".join(folder.name for folder, _ in below[:MAX_NAMED])
            words = f"name one of those in it: {named}{', ...' * (len(below) > MAX_NAMED)}"
        raise TraceError(path, f"no trace in this folder: {words}")
    if len(found) > MAX_FILES:
        raise TraceError(path, f"{len(found):,} traces in this folder; {MAX_FILES:,} at most are read")
    return found


def _traces_in(folder: Path) -> list[Path]:
    return sorted(
        entry
        for entry in folder.iterdir()
        if entry.name.endswith(SUFFIXES) and not entry.name.startswith(".")
    )


def read(path: Path) -> bytearray:
    """Return the text of one trace, unpacked if it is gzipped.

    The text is checked while it is read, so a file that is no JSON object is refused early.

    Raises:
        TraceError: it is no regular file, cannot be read, is no JSON object, is cut off or too large.
    """
    text = bytearray()
    try:
        # Opening a fifo waits for its writer, and opening a device may do anything.
        if not stat.S_ISREG(path.stat().st_mode):
            raise TraceError(path, "not a regular file")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_TEXT_BYTES:
                raise TraceError(path, _too_large())
            for chunk in _chunks(file):
                if not text:
                    chunk = chunk.removeprefix(_BYTE_ORDER_MARK)
                    if not chunk.lstrip(_BLANKS).startswith(b"{"):
                        break
                if (zeros := chunk.find(_ZEROS)) >= 0:
                    raise TraceError(path, f"not JSON: only zeros from byte {len(text) + zeros:,} on")
                if len(text) + len(chunk) > MAX_TEXT_BYTES:
                    raise TraceError(path, _too_large())
                text += chunk
    except (gzip.BadGzipFile, zlib.error) as fault:
        raise TraceError(path, f"not sound gzip ({fault})") from fault
    except EOFError as fault:
        raise TraceError(path, "cut off: it ends in the middle of the gzip stream") from fault
    except OSError as fault:
        raise TraceError(path, _reason(fault)) from fault
    if not text:
        raise NoTraceOfARankError(path, _NO_OBJECT)
    return text


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the text of an open file in pieces. Some tools write several members into a gzip file."""
    packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    file.seek(0)
    with gzip.GzipFile(fileobj=file) if packed else nullcontext(file) as text:
        while chunk := text.read(_CHUNK_BYTES):
            yield chunk


def _too_large() -> str:
    return f"larger than {MAX_TEXT_BYTES >> 30} GiB unpacked: trace fewer steps, or without Python stacks"


def _reason(fault: Exception) -> str:
    if isinstance(fault, OSError) and fault.errno is not None:
        if fault.errno == errno.ENOENT:
            return "there is no such file or folder"
        return f"cannot be read ({os.strerror(fault.errno).lower()})"
    return f"cannot be read ({fault})"


_NUMBER = re.compile(r"\d+", re.ASCII)
_MANY = 4
"""Numbers up to this many times the number of files are ranks. Process ids are higher."""


class FileRanks(NamedTuple):
    """The rank of each of n files."""

    ranks: tuple[int, ...]
    """Shape (n,)."""
    known: bool
    """False if each is only the file's position among the names."""


def ranks_of(names: Sequence[str]) -> FileRanks:
    """Read each rank from the number that differs between names: ``trace_10.json``, ``a-TP-3.json``. If
    several differ, such as a time, the lowest ones are the ranks.
    """
    numbers = [tuple(map(int, _NUMBER.findall(name))) for name in names]
    alike = len({_NUMBER.sub("#", name) for name in names}) == 1
    candidates = [of for of in zip(*numbers, strict=True) if len(set(of)) == len(names)] if alike else []
    believed = [of for of in candidates if max(of) < _MANY * len(names)]
    if believed and len(names) > 1:
        return FileRanks(min(believed, key=lambda of: (max(of), min(of))), known=True)
    order = sorted(range(len(names)), key=lambda at: (_natural(names[at]), at))
    return FileRanks(tuple(order.index(at) for at in range(len(names))), known=False)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts ``b9`` before ``b10``."""
    words = re.split(r"(\d+)", name)
    return [(int(word), "") if word.isdecimal() and word.isascii() else (-1, word) for word in words]
