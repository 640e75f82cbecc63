"""``overlaptop replay FILE``: a recording in the dashboard, as a table or as records."""

import argparse
import re
import sys
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from overlaptop import text
from overlaptop.commands import dashboard, once
from overlaptop.commands.arguments import add_flag, add_screen, add_value, number_from, step_number
from overlaptop.commands.output import CommandError, print_message, refusing
from overlaptop.commands.stream import RecordWriter
from overlaptop.fleet.replay_session import ReplaySession

if TYPE_CHECKING:
    from overlaptop.recording.reader import Recording

DESCRIPTION = """\
Show a recording (of `overlaptop record`, or the black box that a hub left) in the dashboard, as its job was
then. Nothing in it can be changed.
"""
EPILOG = """\
space stops and starts its time, ( and ) go 10 s back and on, N goes on to the next finding or trouble.
Damaged parts of the file are left out and named.
exit status: 0; 2 for a usage error and for a file that is no recording.
"""
_UNITS_NS = {"s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_AFTER = re.compile(r"\+([0-9]{1,9})([smh])")
_OF_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_value(parser, "file", "FILE", "the recording", type=Path)
    where = parser.add_mutually_exclusive_group()
    add_value(where, "--at", "TIME", "begin there: 10:05, 10:05:30 or, from the start, +90s")
    add_value(where, "--step", "N", "begin where all ranks have made this step", type=step_number)
    speed = number_from(0.01, 1000)
    add_value(parser, "--speed", "X", "play X times as fast as the job ran", type=speed, default=1.0)
    add_flag(parser, "--once", "print the state there (default: at the end) and end")
    add_flag(parser, "--json", "print the records that --json gave live; --once: of one moment")
    add_flag(parser, "--detail", "with --json: as --json --detail")
    add_screen(parser)


def run(options: argparse.Namespace) -> int:
    recording = opened(options.file)
    with closing(ReplaySession(recording, speed=options.speed)) as session:
        if options.at is not None:
            session.seek(moment_ns(options.at, recording))
        elif options.step is not None and not session.seek_step(options.step):
            raise CommandError(f"{options.file}: there is no step {options.step}", 2)
        elif options.step is None and options.once:
            session.seek(recording.last_ns)
        if options.once:
            snapshot = session.tick()
            if snapshot.job is None:
                raise CommandError(f"{options.file}: nothing is known of the job at that moment", 2)
            once.show(snapshot, as_json=options.json, ascii_only=options.ascii)
            return 0
        if options.json:
            return print_records(session, detail=options.detail)
        return dashboard.show(session, replace(dashboard.screen_of(options), readonly=True))


def print_records(session: ReplaySession, *, detail: bool) -> int:
    """Print the rest of a recording as the records of a running job."""
    writer = RecordWriter(sys.stdout, detail=detail)
    for snapshot in session.play():
        writer.write(snapshot)
    writer.end(session.tick())
    return 0


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

    with refusing(RecordingError):
        recording = open_recording(path)
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
        with refusing(ValueError, where=f"{words}: "):
            at = begun.replace(hour=hour, minute=minute, second=second, microsecond=0)
        if at < begun.replace(second=begun.second if of_day[3] else 0, microsecond=0):
            at += timedelta(days=1)
        found_ns = max(recording.first_ns, round(at.timestamp() * 1e9))
    else:
        raise CommandError(f"{words!r} is neither a time of day (10:05) nor +90s", 2)
    if found_ns > recording.last_ns:
        span = f"{text.clock(recording.first_ns)} to {text.clock(recording.last_ns)}"
        raise CommandError(f"{words} is not in {recording.path}, which is of {span}", 2)
    return found_ns
