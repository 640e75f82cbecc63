"""``overlaptop replay FILE``: a recording in the dashboard, as a table or as records."""

import argparse
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlaptop.commands.arguments import add_screen, number_from, screen_of, step_number
from overlaptop.commands.output import CommandError
from overlaptop.commands.recorded import moment_ns, opened

if TYPE_CHECKING:
    from overlaptop.fleet.replay_session import ReplaySession

DESCRIPTION = """\
Show a recording (of `overlaptop record`, or the black box that a hub left) in the dashboard, as its job was
then. Nothing in it can be changed.
"""
EPILOG = """\
space stops and starts its time, ( and ) go 10 s back and on, N goes on to the next finding or trouble.
Damaged parts of the file are left out and named.
exit status: 0; 2 for a usage error and for a file that is no recording.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the recording")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--at", metavar="TIME", help="begin there: 10:05, 10:05:30 or, from the start, +90s")
    where.add_argument(
        "--step", type=step_number, metavar="N", help="begin where all ranks have made this step"
    )
    parser.add_argument(
        "--speed",
        type=number_from(0.01, 1000),
        default=1.0,
        metavar="X",
        help="play X times as fast as the job ran",
    )
    parser.add_argument(
        "--once", action="store_true", help="print the state there (default: at the end) and end"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the records that --json gave live; --once: of one moment"
    )
    parser.add_argument("--detail", action="store_true", help="with --json: as --json --detail")
    add_screen(parser)


def run(options: argparse.Namespace) -> int:
    from overlaptop.fleet.replay_session import ReplaySession

    recording = opened(options.file)
    with closing(ReplaySession(recording, speed=options.speed)) as session:
        if options.at is not None:
            session.seek(moment_ns(options.at, recording))
        elif options.step is not None and not session.seek_step(options.step):
            raise CommandError(f"{options.file}: there is no step {options.step}", 2)
        elif options.step is None and options.once:
            session.seek(recording.last_ns)
        if options.once:
            from overlaptop.commands import once

            snapshot = session.tick()
            if snapshot.job is None:
                raise CommandError(f"{options.file}: nothing is known of the job at that moment", 2)
            once.show(snapshot, as_json=options.json, ascii_only=options.ascii)
            return 0
        if options.json:
            return print_records(session, detail=options.detail)
        from overlaptop.commands import dashboard

        screen = replace(screen_of(options), readonly=True)
        dashboard.require_terminal(screen)
        return dashboard.show(session, screen)


def print_records(session: "ReplaySession", *, detail: bool) -> int:
    """Print the rest of a recording as the records of a running job."""
    from overlaptop.commands.stream import RecordWriter

    writer = RecordWriter(sys.stdout, detail=detail)
    for snapshot in session.play():
        writer.write(snapshot)
    writer.end(session.tick())
    return 0
