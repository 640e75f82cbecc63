"""``overlaptop report``: how a job went."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from overlaptop.commands.arguments import add_ascii
from overlaptop.commands.output import CommandError, plain, print_data
from overlaptop.wire.protocol import JOB_KEY

if TYPE_CHECKING:
    from overlaptop.records import RunRecord

DESCRIPTION = """\
Say how a job went: its steps, overlap and exposed communication, what bounded it, late ranks with their
causes, findings, hangs, changes and what the agent cost. Without a name: the newest job here, running or,
where none runs, ended.
"""
EPILOG = """\
SOURCE is a job's key, a recording, FILE@10:05-10:10 for a part of one, a report that --json printed, or
torch.profiler traces. Each hub leaves a recording of its job's last minutes (a black box), if mcap and
zstandard are installed where the job runs (pip install 'overlaptop[record]'); those of 20 jobs are kept.
exit status: 0; 1 where there is no such job; 2 for a usage error and for a file that cannot be read.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("source", nargs="?", metavar="SOURCE", help="a job's key, or a file")
    parser.add_argument("--json", action="store_true", help="print a record")
    add_ascii(parser)


def run(options: argparse.Namespace) -> int:
    """Print the report."""
    found = report_of(options.source)
    if options.json:
        print_data(found)
        return 0
    from overlaptop.runs.words import in_words

    page = in_words(found)
    print_data(plain(page) if options.ascii else page)
    return 0


def report_of(source: str | None) -> RunRecord:
    """The report of a job, a recording, a part of one, a report or traces; None: the newest job.

    Raises CommandError, with status 2 where it is a file that cannot be read.
    """
    from overlaptop.commands.run_sources import of_black_box, of_file, of_running
    from overlaptop.jobs.folder import JobFolderError
    from overlaptop.jobs.record import list_jobs
    from overlaptop.recording import black_boxes

    if source is not None and (not re.match(JOB_KEY, source) or Path(source).exists()):
        return of_file(source)
    try:
        running = [job for job in list_jobs() if not job.ended and source in (None, job.job)]
        boxes = black_boxes.found(source)
    except JobFolderError as fault:
        raise CommandError(str(fault)) from fault
    if running:
        return of_running(running[0].job)
    if not boxes:
        what = "no job runs here" if source is None else f"there is no job or file {source}"
        raise CommandError(f"{what}, and no black box is left (pip install 'overlaptop[record]')")
    return of_black_box(boxes[0])
