"""The permanent log of changes to jobs' settings: who, when, old and new value, and the outcome.

Each command about a knob adds one line of JSON to ``changes.jsonl`` in the socket directory. If its outcome
becomes known only later, a second line replaces the first. The hubs of all of a user's jobs write there. A
full file replaces ``changes.jsonl.1``. Two hubs that do so at the same moment lose the older lines.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from overlaptop.jobs.files import open_regular, read_regular
from overlaptop.jobs.folder import base_dir
from overlaptop.records import ChangeRecord
from overlaptop.wire.commands import CHANGED, ENDED_BADLY, UNKNOWN

NAME = "changes.jsonl"
MAX_BYTES = 1 << 20  # Of one file. There are at most two.
NEWEST = 200
OUTCOMES = (CHANGED, *ENDED_BADLY, UNKNOWN)
_MS = 1_000_000
_MAX_TEXT_CHARS = 500
_MAX_LINE_BYTES = 1 << 15


def path() -> Path:
    """Return the path of the log. Raises JobFolderError if the socket directory is not private."""
    return base_dir(create=False) / NAME


def append(change: ChangeRecord) -> None:
    """Write one line. Never waits. Raises OSError or JobFolderError if it cannot be written."""
    log = path()
    with suppress(FileNotFoundError):
        if log.lstat().st_size >= MAX_BYTES:
            log.replace(log.with_name(f"{NAME}.1"))
    descriptor = open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, _to_line(change))  # O_APPEND: a whole line, even with other writers
    finally:
        os.close(descriptor)


def read(job: str | None = None, newest: int = NEWEST) -> list[ChangeRecord]:
    """Return the last changes, oldest first. ``job``: of this one only. Invalid lines are skipped.

    A missing log is empty. Raises JobFolderError if the socket directory is not private.
    """
    log = path()
    found: dict[object, ChangeRecord] = {}
    for change in (*_changes(log), *_changes(log.with_name(f"{NAME}.1"))):
        # Each command counts once. Lines of earlier versions have no command's id.
        key = (change.job, change.host, change.command) if change.command else len(found)
        if job in (None, change.job):
            found.setdefault(key, change)
    return list(found.values())[:newest][::-1]


def _changes(log: Path) -> Iterator[ChangeRecord]:
    """Yield the changes of one file, latest first. An unreadable file has none."""
    try:
        data = read_regular(log, 2 * MAX_BYTES)
    except OSError:
        return
    for line in reversed(data.splitlines()):
        if (change := _from_line(line)) is not None:
            yield change


def _to_line(change: ChangeRecord) -> bytes:
    values = msgspec.to_builtins(change)
    at = datetime.fromtimestamp(values.pop("at_ns") // _MS / 1000, UTC).isoformat(timespec="milliseconds")
    record = {"at": at, **values}
    del record["type"]
    for name, value in record.items():
        if isinstance(value, str) and len(value) > _MAX_TEXT_CHARS:
            record[name] = f"{value[: _MAX_TEXT_CHARS - 1]}…"
    return (json.dumps(record, ensure_ascii=False) + "\n").encode(errors="replace")


def _from_line(line: bytes) -> ChangeRecord | None:
    try:
        values = json.loads(line if len(line) <= _MAX_LINE_BYTES else b"")
        at_ns = round(datetime.fromisoformat(values["at"]).timestamp() * 1000) * _MS
        change = msgspec.convert({"command": "", **values, "at_ns": at_ns}, ChangeRecord)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, msgspec.ValidationError):
        return None
    return change if change.outcome in OUTCOMES else None
