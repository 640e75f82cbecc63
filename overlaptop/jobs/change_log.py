"""The permanent log of changes of jobs' settings: who, when, from what to what, and the outcome.

One line of JSON for each command about a knob, in ``changes.jsonl`` of the socket directory; one more where
it became known only later what had come of it, and then that one counts. Hubs of all of a user's jobs write
there; what does not fit is moved to ``changes.jsonl.1``, and what that held is gone.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec

from overlaptop.jobs.files import open_regular
from overlaptop.jobs.folder import base_dir
from overlaptop.wire.bounds import one_of
from overlaptop.wire.commands import CHANGED, ENDED_BADLY, UNKNOWN

NAME = "changes.jsonl"
MAX_BYTES = 1 << 20
"""Of one file; there are two at most."""
NEWEST = 200
OUTCOMES = (CHANGED, *ENDED_BADLY, UNKNOWN)
_MS = 1_000_000
"""In ns. The log's times are whole milliseconds."""
_MAX_TEXT_CHARS = 500
_MAX_LINE_BYTES = 1 << 15


class LoggedChange(msgspec.Struct, frozen=True, rename={"was": "from", "becomes": "to"}):
    """One command about a knob, and what became of it on one node."""

    at_ns: int
    """Unix time at which the hub took the command. In the file: ``at``."""
    job: str
    script: str
    host: str
    by: str
    """Who asked, as in Command.by."""
    knob: str
    was: str | None
    """The value before; None: not known."""
    becomes: str | None
    """The value since, or the one that was asked for where that was not made."""
    step: int | None
    """From which on the ranks acted; None where it did not come to that."""
    outcome: Annotated[str, one_of(OUTCOMES)]
    reason: str
    """Why it was not made, or why that is not known; else empty."""
    command: str = ""
    """Id of the command; empty in lines of earlier versions."""


def path() -> Path:
    """Where the log is. JobFolderError where the socket directory is not to be trusted."""
    return base_dir(create=False) / NAME


def append(change: LoggedChange) -> None:
    """Write one line. Never waits. Raises OSError or JobFolderError where it cannot be written."""
    log = _open_for_writing(path())
    try:
        os.write(log, _to_line(change))  # with O_APPEND, one call is one whole line whoever else writes
    finally:
        os.close(log)


def read(job: str | None = None, newest: int = NEWEST) -> list[LoggedChange]:
    """The last changes, oldest first; ``job``: of this one only. What is no change is passed over.

    A log that is not there has none. Raises JobFolderError where the socket directory is not to be trusted.
    """
    log = path()
    latest_first = (change for each in (log, log.with_name(f"{NAME}.1")) for change in _changes(each))
    wanted = (change for change in _latest_outcomes(latest_first) if job is None or change.job == job)
    return list(islice(wanted, newest))[::-1]


def _latest_outcomes(latest_first: Iterable[LoggedChange]) -> Iterator[LoggedChange]:
    """Without what a later line has corrected."""
    seen: set[tuple[str, str, str]] = set()
    for change in latest_first:
        key = change.job, change.host, change.command
        if not change.command or key not in seen:
            seen.add(key)
            yield change


def _open_for_writing(log: Path) -> int:
    """A descriptor of the log, after what is too long was moved away."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    descriptor = open_regular(log, flags)
    if os.fstat(descriptor).st_size < MAX_BYTES:
        return descriptor
    try:
        # Of several hubs that find it full one moves it away, and the others write to the new one.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == log.lstat().st_ino:
            log.replace(log.with_name(f"{NAME}.1"))
    except FileNotFoundError:
        pass  # it was moved away just now
    except BlockingIOError:
        return descriptor  # another hub moves it away: what is written to it moves along
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return open_regular(log, flags)


def _changes(log: Path) -> Iterator[LoggedChange]:
    """Those of one file, the latest first; of a file that cannot be read there are none."""
    try:
        with os.fdopen(open_regular(log, os.O_RDONLY), "rb") as file:
            # While one hub moves it away others may have made it longer: its end is what counts.
            most_bytes = MAX_BYTES + _MAX_LINE_BYTES
            file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
            data = file.read(most_bytes)
    except OSError:
        return
    for line in reversed(data.splitlines()):
        if (change := _from_line(line)) is not None:
            yield change


def _to_line(change: LoggedChange) -> bytes:
    values = msgspec.to_builtins(change)
    at = datetime.fromtimestamp(values.pop("at_ns") // _MS / 1000, UTC).isoformat(timespec="milliseconds")
    record = {"at": at, **values}
    for name, value in record.items():
        if isinstance(value, str) and len(value) > _MAX_TEXT_CHARS:
            record[name] = f"{value[: _MAX_TEXT_CHARS - 1]}…"
    return (json.dumps(record, ensure_ascii=False) + "\n").encode(errors="replace")


def _from_line(line: bytes) -> LoggedChange | None:
    try:
        values = json.loads(line if len(line) <= _MAX_LINE_BYTES else b"")
        at_ns = round(datetime.fromisoformat(values["at"]).timestamp() * 1000) * _MS
        return msgspec.convert({**values, "at_ns": at_ns}, LoggedChange)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, msgspec.ValidationError):
        return None
