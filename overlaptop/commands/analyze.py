"""``overlaptop analyze``: torch.profiler traces as records, as a table or in the dashboard."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overlaptop.commands import CommandError, say
from overlaptop.fleet.records import rank_record, step_record
from overlaptop.formats.files import TraceError
from overlaptop.formats.job import TracedJob, analyze
from overlaptop.timeline.lanes import LaneRules, parse_rule

if TYPE_CHECKING:
    from overlaptop.fleet.finished import FinishedSession
    from overlaptop.tui import TuiOptions

USAGE_STATUS = 2
_MISSING_NAMED = 8


def run(path: Path, lane_rules: Sequence[str], *, by_hta: bool, look: TuiOptions | None) -> int:
    """Show the trace or traces at `path` on the screen, or, where there is none, as a table.

    `look` is the dashboard's; None: print records instead. The screen shows steps, which `by_hta` does not
    change: with it, the table comes in any case.
    """
    job = _analyze(path, lane_rules, by_hta=by_hta)
    if job.missing and path.is_dir():
        say(f"{path}: {_missing(job)}")
    if look is None:
        _print_records(job)
    elif sys.stdin.isatty() and sys.stdout.isatty() and not by_hta:
        from overlaptop.commands import dashboard

        dashboard.require_screen(look)
        return dashboard.show(session_of(job), look)
    else:
        print(_table(job, by_hta=by_hta, ascii_only=look.ascii))  # noqa: T201
    sys.stdout.flush()
    return 0


def _analyze(path: Path, lane_rules: Sequence[str], *, by_hta: bool) -> TracedJob:
    try:
        rules = LaneRules(parse_rule(rule) for rule in lane_rules)
        return analyze(path, rules, by_hta=by_hta)
    except (TraceError, ValueError) as fault:
        raise CommandError(str(fault), USAGE_STATUS) from fault


def _print_records(job: TracedJob) -> None:
    # All at once: there may be tens of thousands, and whoever reads them waits for the last.
    records = [step_record(job.name, summary.info, step) for summary in job.ranks for step in summary.steps]
    records += [
        rank_record(summary.info.rank, whole, compute_exact=summary.info.compute_exact)
        for summary, whole in zip(job.ranks, job.whole, strict=True)
    ]
    sys.stdout.write("".join(json.dumps(record) + "\n" for record in records))


def session_of(job: TracedJob) -> FinishedSession:
    """The job behind the face that a dashboard and a table look at."""
    from overlaptop.fleet.finished import FinishedSession
    from overlaptop.wire.messages import PROTOCOL_VERSION, Message, Notice, Welcome

    began_ns = min((step.start_ns for each in job.ranks for step in each.steps), default=0)
    over_ns = max((step.start_ns + step.step_ns for each in job.ranks for step in each.steps), default=0)
    messages: list[Message] = []
    for summary in job.ranks:
        messages += [summary.info, *summary.steps]
        if summary.detail is not None:
            messages.append(summary.detail)
    if job.missing:
        messages.append(Notice(job.ranks[0].info.rank, over_ns, "warning", _missing(job)))
    welcome = Welcome(
        protocol=PROTOCOL_VERSION,
        job=job.name,
        host="",
        script=str(job.path),
        world_size=job.world_size,
        started_ns=began_ns,
    )
    try:
        return FinishedSession(welcome, messages, over_ns)
    except ValueError as fault:
        raise CommandError(f"{job.path}: {fault}", USAGE_STATUS) from fault


def _table(job: TracedJob, *, by_hta: bool, ascii_only: bool) -> str:
    """The newest step of each rank as ``--once`` shows it, and below it the whole traces."""
    from overlaptop.commands import once
    from overlaptop.commands.table import Table
    from overlaptop.tui import text

    table = Table(["rank", "steps", "overlap", "exposed", "hidden", "compute", "comm", "copy only", "idle"])
    for summary, whole in zip(job.ranks, job.whole, strict=True):
        times_ns = (whole.exposed_ns, whole.hidden_ns, whole.compute_ns, whole.comm_ns,
                    whole.copy_only_ns, whole.idle_ns)  # fmt: skip
        table.add(
            [
                str(summary.info.rank),
                text.count(len(summary.steps)),
                text.percent(whole.overlap),
                *map(text.duration, times_ns),
            ]
        )
    newest = once.render(session_of(job).tick())
    title = "whole trace, as HolisticTraceAnalysis counts" if by_hta else "whole trace"
    page = f"{newest}\n\n{title}\n{table.render()}"
    return once.plain(page) if ascii_only else page


def _missing(job: TracedJob) -> str:
    named = ", ".join(map(str, job.missing[:_MISSING_NAMED]))
    more = len(job.missing) - _MISSING_NAMED
    return f"no trace of rank {named}{f' and {more} more' if more > 0 else ''} of {job.world_size}"
