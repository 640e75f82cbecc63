"""``overlaptop changes``: the log of changes to this user's jobs on this machine."""

import argparse
from datetime import UTC, datetime

from overlaptop.commands.arguments import add_flag, add_job
from overlaptop.commands.output import CommandError, print_data, print_message, table
from overlaptop.jobs import change_log
from overlaptop.jobs.record import list_jobs
from overlaptop.records import ChangeRecord
from overlaptop.text import UNKNOWN, count

DESCRIPTION = """\
Show the last 200 changes of the settings of your jobs on this machine, oldest first: time, old and
new value, who asked, and why a change failed.
"""
EPILOG = """\
They come from changes.jsonl in the folder of the jobs' sockets, whose older part is changes.jsonl.1.
exit status: 0; 1 where no job of that key runs or was changed; 2 for a usage error.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser, "only changes of this job")
    add_flag(parser, "--json", "print records, not a table")


def run(options: argparse.Namespace) -> int:
    key = options.job
    changes = change_log.read(key)
    if key is not None and not changes and all(job.job != key for job in list_jobs()):
        raise CommandError(f"no job {key} runs here, and the log has no change of it")
    if options.json:
        print_data(*changes)
    elif changes:
        print_data(_table(changes))
    else:
        print_message("nothing was changed yet" + ("" if key is None else f" of job {key}"))
    return 0


def _table(changes: list[ChangeRecord]) -> str:
    head = ["at", "job", "knob", "from", "to", "step", "outcome", "by", "why not"]
    rows = []
    for each in changes:
        at = datetime.fromtimestamp(each.at_ns / 1e9, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        values = [each.old or UNKNOWN, each.new or UNKNOWN, count(each.step)]
        rows.append([at, each.job, each.knob, *values, each.outcome, each.by, each.reason])
    return table(head, rows, left={"at", "job", "knob", "outcome", "by", "why not"})
