"""Finds trace files and reads their text, within bounds. Checks only that the text is a JSON object."""

import gzip
import re
import stat
import zlib
from collections.abc import Sequence
from pathlib import Path

from overlaptop.text import reason, shortened

MAX_TEXT_BYTES = 1 << 30  # Unpacked text of one trace: about five million events
SUFFIXES = (".json", ".json.gz")
_NAMED_CHARS = 200
_MANY = 4  # Numbers up to this many times the number of files are ranks. Process ids are higher.
_CHUNK_BYTES = 1 << 20
_BLANKS = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ZEROS = bytes(4096)
"""A crash leaves zeros in a file that was being written. A name may contain one or two."""
_GZIP_MAGIC = b"\x1f\x8b"
_TOO_LARGE = f"larger than {MAX_TEXT_BYTES >> 30} GiB unpacked: trace fewer steps, or without Python stacks"


class TraceError(Exception):
    """A trace cannot be used. The message is one line with the file and the reason."""

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(path, fault)
        self.path, self.fault = path, fault

    def __str__(self) -> str:
        return f"{self.path}: {self.fault}"


class NoTraceOfARankError(TraceError):
    """A valid file without a rank's GPU activity: from another tool, or from a process without a GPU."""


def find(path: Path) -> list[Path]:
    """Return `path` itself, or the traces in the folder `path`, sorted by name. If it holds none, return
    the traces of its only subfolder that does.

    Raises:
        TraceError: it cannot be read, or holds no trace.
    """
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return [path]
        found = _traces_in(path)
        folders = [] if found else [entry for entry in sorted(path.iterdir()) if entry.is_dir()]
        below = [traces for folder in folders if (traces := _traces_in(folder))]
    except OSError as fault:
        raise TraceError(path, reason(fault)) from fault
    if len(below) > 1:
        named = shortened(", ".join(first.parent.name for first, *_ in below), _NAMED_CHARS)
        raise TraceError(path, f"no trace in this folder: name one of those in it: {named}")
    if not found and not below:
        raise TraceError(path, "no trace in this folder: nothing in it is called *.json or *.json.gz")
    return found or below[0]


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
            packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            unpacked = gzip.GzipFile(fileobj=file) if packed else file
            while chunk := unpacked.read(_CHUNK_BYTES):
                if not text:
                    chunk = chunk.removeprefix(_BYTE_ORDER_MARK)
                    if not chunk.lstrip(_BLANKS).startswith(b"{"):
                        break
                if (zeros := chunk.find(_ZEROS)) >= 0:
                    raise TraceError(path, f"not JSON: only zeros from byte {len(text) + zeros:,} on")
                if len(text) + len(chunk) > MAX_TEXT_BYTES:
                    raise TraceError(path, _TOO_LARGE)
                text += chunk
    except (gzip.BadGzipFile, zlib.error) as fault:
        raise TraceError(path, f"not sound gzip ({fault})") from fault
    except EOFError as fault:
        raise TraceError(path, "cut off: it ends in the middle of the gzip stream") from fault
    except OSError as fault:
        raise TraceError(path, reason(fault)) from fault
    if not text:
        raise NoTraceOfARankError(path, "not a torch.profiler trace: it does not begin with a JSON object")
    return text


def ranks_of(names: Sequence[str]) -> tuple[Sequence[int], bool]:
    """Return the rank of each file, from the number that differs between names: ``trace_10.json``,
    ``a-TP-3.json``. If several differ, such as a time, the lowest ones are the ranks.

    False: no number is a rank, and each has its place among the names instead, with ``b9`` before ``b10``.
    """
    if len(names) > 1 and len({re.sub("[0-9]+", "#", name) for name in names}) == 1:
        numbers = zip(*(map(int, re.findall("[0-9]+", name)) for name in names), strict=True)
        differing = (of for of in numbers if len(set(of)) == len(names))
        if ranks := [of for of in differing if max(of) < _MANY * len(names)]:
            return min(ranks, key=lambda of: (max(of), min(of))), True
    by_name = [re.sub("[0-9]+", lambda number: number[0].zfill(20), name) for name in names]
    order = sorted(range(len(names)), key=by_name.__getitem__)
    return [order.index(at) for at in range(len(names))], False
