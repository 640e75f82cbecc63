"""Recordings on the command line: opens one, and finds moments in it."""

import re
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from overlaptop import text
from overlaptop.commands.output import CommandError, print_message

if TYPE_CHECKING:
    from overlaptop.recording.reader import Recording

_UNITS_NS = {"s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_AFTER = re.compile(r"\+([0-9]{1,9})([smh])")
_OF_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")


def is_recording(path: Path) -> bool:
    """Return whether this is a recording, by its name or its first bytes."""
    if path.suffix == ".mcap" or not path.is_file():
        return path.suffix == ".mcap"
    with suppress(OSError), path.open("rb") as file:
        return file.read(5) == b"\x89MCAP"
    return False


def opened(path: Path) -> "Recording":
    """Open a recording and print its damage. Raises CommandError with status 2 if it cannot be read."""
    from overlaptop.recording.reader import RecordingError, open_recording
    from overlaptop.recording.writer import earlier_part

    try:
        recording = open_recording(path)
    except RecordingError as fault:
        raise CommandError(str(fault), 2) from fault
    for line in recording.damage:
        print_message(f"{path}: {line}")
    if (earlier := earlier_part(path)).exists():
        print_message(f"the part before is in {earlier}")
    return recording


def moment_ns(words: str, recording: "Recording") -> int:
    """Return the Unix time of ``10:05``, ``10:05:30`` (the first one in the recording, local time) or
    ``+90s`` from its start. Raises CommandError with status 2 if it is none of these, or not in it.
    """
    if after := _AFTER.fullmatch(words):
        found_ns = recording.first_ns + int(after[1]) * _UNITS_NS[after[2]]
    elif of_day := _OF_DAY.fullmatch(words):
        hour, minute, second = (int(part or 0) for part in of_day.groups())
        begun = datetime.fromtimestamp(recording.first_ns / 1e9).astimezone()
        try:
            at = begun.replace(hour=hour, minute=minute, second=second, microsecond=0)
        except ValueError as fault:
            raise CommandError(f"{words}: no time of day", 2) from fault
        if at < begun.replace(second=begun.second if of_day[3] else 0, microsecond=0):
            at += timedelta(days=1)
        found_ns = max(recording.first_ns, round(at.timestamp() * 1e9))
    else:
        raise CommandError(f"{words!r} is neither a time of day (10:05) nor +90s", 2)
    if found_ns > recording.last_ns:
        span = f"{text.clock(recording.first_ns)} to {text.clock(recording.last_ns)}"
        raise CommandError(f"{words} is not in {recording.path}, which is of {span}", 2)
    return found_ns
