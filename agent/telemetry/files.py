"""Reads small files of /sys and /proc, and the lists of numbers in them."""

import re
from collections.abc import Iterable
from pathlib import Path

from overlaptop.text import runs

MAX_FILE_BYTES = 64 << 10
MAX_NUMBER = 1 << 16  # Above the kernel's own limits of 8,192 CPUs and 1,024 nodes

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class UnavailableError(Exception):
    """The machine does not show a value; the message is the reason, for the screen."""


def read_bytes(path: Path, most_bytes: int = MAX_FILE_BYTES, *, once: bool = False) -> bytes:
    """Return the beginning of a file; `once`: what the kernel returns for a single read.

    Raises UnavailableError if it is absent, not permitted, or unreadable (as the speed of a network adapter
    that is down).
    """
    try:
        with path.open("rb", buffering=0 if once else -1) as file:
            return file.read(most_bytes)
    except OSError as fault:
        raise UnavailableError(f"{path}: {fault.strerror}") from None


def read_text(path: Path) -> str:
    """Return the text of a file, without the trailing newline. Raises UnavailableError."""
    return read_bytes(path).decode("ascii", "replace").strip()


def text_if_any(path: Path) -> str:
    """Return the text of a file, as `read_text`; empty if it cannot be read."""
    try:
        return read_text(path)
    except UnavailableError:
        return ""


def read_int(path: Path) -> int | None:
    """Return the number in a file; None if the file holds anything else."""
    try:
        return int(text_if_any(path))
    except ValueError:
        return None


def entries(folder: Path) -> list[str]:
    """Return the names in a folder, sorted. Raises UnavailableError."""
    try:
        return sorted(each.name for each in folder.iterdir())
    except OSError as fault:
        raise UnavailableError(f"{folder}: {fault.strerror}") from None


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, as `entries`, but none if it cannot be read."""
    try:
        return entries(folder)
    except UnavailableError:
        return []


def parse_list(text: str) -> frozenset[int]:
    """Read CPUs or NUMA nodes as the kernel lists them, ``0-31,64``; an empty text is an empty set.

    Raises UnavailableError on anything else.
    """
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        match = _RANGE.fullmatch(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if not low <= high < MAX_NUMBER:
            raise UnavailableError(f"{part[:40]!r} is no range of numbers below {MAX_NUMBER}")
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


def format_list(numbers: Iterable[int]) -> str:
    """Write numbers as the kernel does: ascending, in ranges."""
    return ",".join(runs(sorted(set(numbers))))
