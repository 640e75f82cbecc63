"""The work of ``overlaptop changes``: the log of what was changed of this user's jobs on this machine."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import asdict

from overlaptop.console import CommandError, print_data, print_message
from overlaptop.console.jobs import find_jobs
from overlaptop.console.table import Table
from overlaptop.jobs import change_log
from overlaptop.jobs.change_log import LoggedChange
from overlaptop.jobs.folder import JobFolderError
from overlaptop.text import UNKNOWN, count


def run(key: str | None, *, as_json: bool) -> int:
    """Print the last changes, oldest first: a row or a record each; of one job only with `key`."""
    try:
        changes = change_log.read(key)
    except JobFolderError as fault:
        raise CommandError(str(fault)) from fault
    if key is not None and not changes and all(job.job != key for job in find_jobs()):
        raise CommandError(f"no job {key} runs here, and the log has no change of it")
    if as_json:
        for change in changes:
            print_data({"type": "change", **asdict(change)})
    elif changes:
        print_data(_table(changes))
    else:
        print_message("nothing was changed yet" + ("" if key is None else f" of job {key}"))
    return 0


def _table(changes: list[LoggedChange]) -> str:
    """A row for each change, times in this machine's own zone."""
    table = Table(
        ["at", "job", "knob", "from", "to", "step", "outcome", "by", "why not"],
        left={"at", "job", "knob", "outcome", "by", "why not"},
    )
    for change in changes:
        at = datetime.fromtimestamp(change.at_ns / 1e9, UTC).astimezone()
        table.add(
            at.strftime("%Y-%m-%d %H:%M:%S"),
            change.job,
            change.knob,
            change.was or UNKNOWN,
            change.becomes or UNKNOWN,
            count(change.step),
            change.outcome,
            change.by,
            change.reason,
        )
    return table.render()
