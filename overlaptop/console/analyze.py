"""The work of ``overlaptop analyze``: torch.profiler traces as records, as a table or in the dashboard."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overlaptop import text
from overlaptop.console import CommandError, print_data, print_message
from overlaptop.console.streams import plain
from overlaptop.fleet.records import BOUNDS, collective_record, rank_record, step_record
from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.formats.files import TraceError
from overlaptop.formats.job import TracedJob, analyze
from overlaptop.report.who_is_late import who_is_late
from overlaptop.timeline import ratios
from overlaptop.timeline.lanes import LaneRules, parse_rule

if TYPE_CHECKING:
    from overlaptop.findings.finding import Finding
    from overlaptop.fleet.finished_session import FinishedSession
    from overlaptop.tui import TuiOptions

_MISSING_CHARS = 40


def run(
    paths: Sequence[Path],
    lane_rules: Sequence[str],
    *,
    by_hta: bool,
    screen: TuiOptions | None,
    step: int | None = None,
    cycle: int | None = None,
) -> int:
    """Show the traces at `paths` on the screen, or, where there is none, as a table.

    `screen`: the dashboard's options; None: print records instead. The dashboard shows steps, which
    `by_hta` does not change: with it, the table comes in any case. `step`: of this one instead of the
    whole trace. `cycle`: of several traces of each rank.
    """
    on_screen = screen is not None and sys.stdin.isatty() and sys.stdout.isatty() and not by_hta
    try:
        rules = LaneRules(map(parse_rule, lane_rules))
        job = analyze(paths, rules, by_hta=by_hta, detailed=not by_hta, cycle=cycle)
    except (TraceError, ValueError) as fault:
        raise CommandError(str(fault), 2) from fault
    path = job.path
    number = WHOLE_TRACE if step is None else step
    if step is not None and step not in (known := job.step_numbers):
        steps = text.shortened(text.runs_of(known), _MISSING_CHARS) or "the whole trace"
        raise CommandError(f"{path}: there is no step {step}, only {steps}", 2)
    if job.missing and path.is_dir():
        print_message(f"{path}: {_missing(job)}")
    for line in _remarks(job) if not on_screen else ():
        print_message(f"{path}: {line}")
    if screen is None:
        _print_records(job, number)
    elif on_screen:
        from overlaptop.console import dashboard

        dashboard.require_terminal(screen)
        session = session_of(job)
        session.choose(number)
        return dashboard.show(session, screen)
    else:
        print_data(_table(job, number, by_hta=by_hta, ascii_only=screen.ascii))
    return 0


def _print_records(job: TracedJob, number: int) -> None:
    """Of all steps and of the whole trace, or of one step."""
    # All at once: there may be tens of thousands, and whoever reads them waits for the last.
    records = [
        step_record(job.name, summary.info, step, job.waits.get(step.step))
        for summary in job.ranks
        for step in summary.steps
        if number in (WHOLE_TRACE, step.step)
    ]
    records += [
        collective_record(job.name, step, each)
        for step, waits in job.waits.items()
        if step != WHOLE_TRACE and number in (WHOLE_TRACE, step)
        for each in waits.collectives
    ]
    if number == WHOLE_TRACE:
        over_all = job.waits.get(WHOLE_TRACE)
        records += [
            rank_record(summary.info.rank, whole, over_all, compute_exact=summary.info.compute_exact)
            for summary, whole in zip(job.ranks, job.whole, strict=True)
        ]
        records += [finding.record(job.name) for finding in _found(job)]
    print_data("\n".join(map(json.dumps, records)))


def _found(job: TracedJob) -> tuple[Finding, ...]:
    from overlaptop.console.findings import found_in

    if not job.waits:
        return ()
    try:
        return found_in(session_of(job).tick())
    except CommandError:  # more ranks than a Snapshot takes: their records are written all the same
        return ()


def session_of(job: TracedJob) -> FinishedSession:
    """The job as a session, which a dashboard and a table can show."""
    from overlaptop.fleet.finished_session import FinishedRank, FinishedSession
    from overlaptop.wire.messages import Notice, Welcome
    from overlaptop.wire.protocol import PROTOCOL_VERSION

    over_ns = max(whole.start_ns + whole.step_ns for whole in job.whole)
    ranks = [
        FinishedRank(summary.info, whole, summary.steps, summary.details)
        for summary, whole in zip(job.ranks, job.whole, strict=True)
    ]
    notices = [Notice(job.ranks[0].info.rank, over_ns, "warning", _missing(job))] if job.missing else []
    notices += [Notice(job.ranks[0].info.rank, over_ns, "warning", remark) for remark in job.remarks]
    notices += [
        Notice(summary.info.rank, over_ns, "warning", remark)
        for summary in job.ranks
        for remark in summary.remarks
    ]
    welcome = Welcome(
        protocol=PROTOCOL_VERSION,
        job=job.name,
        host="",
        script=str(job.path),
        world_size=job.world_size,
        started_ns=min(whole.start_ns for whole in job.whole),
    )
    try:
        return FinishedSession(welcome, ranks, job.waits, notices, over_ns)
    except ValueError as fault:
        raise CommandError(f"{job.path}: {fault}", 2) from fault


def _table(job: TracedJob, number: int, *, by_hta: bool, ascii_only: bool) -> str:
    """The whole traces, or one step: all ranks together, and below it each one."""
    from overlaptop.console import once, trace_waits
    from overlaptop.console.findings import render
    from overlaptop.console.table import Table

    fuses = any(whole.fused_ns for whole in job.whole)
    parts = ["exposed", "hidden", "compute", "comm", *(["fused"] if fuses else []), "copy only", "idle"]
    table = Table(["rank", "steps", "overlap", *parts])
    shown = [
        (summary, each)
        for summary, whole in zip(job.ranks, job.whole, strict=True)
        for each in (whole, *summary.steps)
        if each.step == number
    ]
    for summary, whole in shown:
        table.add(
            str(summary.info.rank),
            text.count(len(summary.steps) if number == WHOLE_TRACE else 1),
            text.percent(whole.overlap),
            text.duration(whole.exposed_ns),
            text.duration(whole.hidden_ns),
            text.duration(whole.compute_ns),
            text.duration(whole.comm_ns),
            *([text.duration(whole.fused_ns)] if fuses else []),
            text.duration(whole.copy_only_ns),
            text.duration(whole.idle_ns if summary.info.compute_exact else None),
        )
    exact = all(summary.info.compute_exact for summary in job.ranks)
    comm_ns = sum(each.comm_ns or 0 for _, each in shown)
    hidden_ns = sum(each.hidden_ns or 0 for _, each in shown)
    overlap = text.percent(ratios.overlap(hidden_ns, comm_ns))
    session = session_of(job)
    session.choose(number)
    snapshot = session.tick()
    of = "whole trace" if number == WHOLE_TRACE else f"step {text.count(number)}"
    ranks = text.named_ranks([summary.info.rank for summary in job.ranks]) if job.missing else "all ranks"
    said = who_is_late(snapshot) if job.waits else None
    lines = [
        once.title(snapshot),
        *([said.words] if said is not None else []),
        f"{of}{', as HolisticTraceAnalysis counts' if by_hta else ''}, {ranks}   "
        f"overlap {text.bounded(overlap, BOUNDS['overlap'], exact=exact)}   "
        f"hidden {text.duration(hidden_ns)} of {text.duration(comm_ns)}",
        table.render(),
    ]
    if not exact:
        lines.append("≤: without a GPU compute is an upper bound, and so are overlap and hidden")
    if number == WHOLE_TRACE and (found := _found(job)):
        lines += ["", *render(found).splitlines()]
    if waits := trace_waits.render(job, number):
        lines += ["", waits]
    page = "\n".join(lines)
    return plain(page) if ascii_only else page


def _remarks(job: TracedJob) -> list[str]:
    """What is said of the ranks' traces, once for all ranks of which it is said."""
    ranks: dict[str, list[int]] = {}
    for summary in job.ranks:
        for remark in summary.remarks:
            ranks.setdefault(remark, []).append(summary.info.rank)
    return [*job.remarks, *(f"{text.named_ranks(of)}: {remark}" for remark, of in ranks.items())]


def _missing(job: TracedJob) -> str:
    missing = text.shortened(text.runs_of(job.missing), _MISSING_CHARS)
    return f"no trace of rank {missing} of {job.world_size}"
