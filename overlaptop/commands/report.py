"""``overlaptop report``: how a job went."""

import argparse

from overlaptop.commands.arguments import add_ascii
from overlaptop.commands.output import plain, print_data, wrapped

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
    parser.add_argument("source", nargs="?", metavar="SOURCE", help="a job's key, or a file")
    parser.add_argument("--json", action="store_true", help="print a record")
    add_ascii(parser)


def run(options: argparse.Namespace) -> int:
    from overlaptop.commands.run_sources import report_of

    found = report_of(options.source)
    if options.json:
        print_data(found)
        return 0
    from overlaptop.runs.words import describe

    page = wrapped(describe(found))
    print_data(plain(page) if options.ascii else page)
    return 0
