"""``overlaptop analyze``: torch.profiler traces as records, as a table or in the dashboard."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from overlaptop import text
from overlaptop.commands.arguments import add_flag, add_screen, add_value, step_number
from overlaptop.commands.findings import found_in, render
from overlaptop.commands.output import CommandError, print_data, print_message, print_page, refusing, table
from overlaptop.findings.first_line import first_line
from overlaptop.fleet.records import BOUNDS, collective_record, step_record, trace_rank_record
from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.fleet.waits import StepWaits
from overlaptop.formats.files import TraceError
from overlaptop.formats.finished_session import FinishedSession
from overlaptop.formats.job import TracedJob, analyze
from overlaptop.records import Record, as_json
from overlaptop.timeline import ratios
from overlaptop.timeline.arrivals import lateness
from overlaptop.timeline.lanes import LaneRules, parse_rule

DESCRIPTION = """\
Show what torch.profiler traces say of overlap: in the dashboard, or as a table where stdout is no terminal.
PATH is one trace (.json or .json.gz), a folder with one for each rank, or several of both. ProfilerStep
annotations make the steps; without them, the whole trace is one.
"""
EPILOG = """\
--json prints a record for each rank and step, as overlaptop --json does, one for each collective, one for
each rank over the whole trace, from its first GPU activity to its last, and one for each finding.

Waiting and transfer come from comparing the traces of all ranks; null: nothing could be compared.

--hta takes these rank lines by the rules of HolisticTraceAnalysis 0.5.0 (get_comm_comp_overlap), which
defines overlap in the same way. Four things differ:
  window         where the traces have two ProfilerSteps or more, it leaves out what was launched before the
                 trace began, and what was launched after the last ProfilerStep had begun on the GPU
  rounding       it rounds starts up and ends down to whole microseconds
  communication  only kernels called nccl*Kernel*: peer-to-peer copies are memory, and other libraries'
                 kernels (NVSHMEM, symmetric memory, DeepEP, ...) computation
  computation    not kernels with Sync or Memcpy in their names; synchronisation events with a stream are

Traces are refused as a whole when one of them is damaged, or when ranks have unequal numbers of traces.
Files without a rank and without GPU activity are left out, and named.
exit status: 0; 2 for a usage error and for a file that is no trace, is cut off or cannot be read.
"""


_HEAD = ["rank", "steps", "overlap", "exposed", "hidden", "compute", "comm"]
_WAITS_HEAD = ["rank", "waiting", "of it exposed", "transfer", "of it exposed", "not attributed", "late in"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_value(parser, "paths", "PATH", "a trace, or a folder of them", type=Path, nargs="+")
    add_flag(parser, "--json", "print records instead of opening the dashboard")
    hta = "whole traces by HolisticTraceAnalysis's rules (see below); without --json: as a table"
    add_flag(parser, "--hta", hta)
    step = "this step (ProfilerStep#N) instead of the whole trace; on the screen, begin there"
    add_value(parser, "--step", "N", step, type=step_number)
    add_traces(parser)
    add_screen(parser)


def add_traces(parser: argparse.ArgumentParser) -> None:
    """Add the options of `open_traces`."""
    add_value(parser, "--cycle", "N", "the N-th trace of each rank (default: the last)", type=int)
    lane = (
        "put GPU activities whose name matches into compute, comm, copy, fused or idle: "
        "comm=my_allreduce (repeat it; the first match wins)"
    )
    add_value(parser, "--lane", "LANE=REGEX", lane, action="append", default=[])


def open_traces(
    paths: Sequence[Path], lanes: Iterable[str] = (), cycle: int | None = None, *, by_hta: bool = False
) -> TracedJob:
    """Read the traces of a job. Raises CommandError with status 2 for bad traces and lanes."""
    with refusing(TraceError, ValueError):
        rules = LaneRules(map(parse_rule, lanes))
        return analyze(paths, rules, by_hta=by_hta, cycle=cycle)


def run(options: argparse.Namespace) -> int:
    step, by_hta = options.step, options.hta
    if by_hta and step is not None:
        raise CommandError("--hta is of whole traces: leave out --step", 2)
    # --hta does not change the dashboard's figures.
    on_screen = not (options.json or by_hta) and sys.stdin.isatty() and sys.stdout.isatty()
    job = open_traces(options.paths, options.lane, options.cycle, by_hta=by_hta)
    path = job.path
    number = WHOLE_TRACE if step is None else step
    if step is not None and step not in job.step_numbers:
        raise CommandError(f"{path}: there is no step {step}, only {_steps(job) or 'the whole trace'}", 2)
    if job.missing and path.is_dir():
        print_message(f"{path}: {job.missing_text}")
    for line in _remarks(job) if not on_screen else ():
        print_message(f"{path}: {line}")
    if options.json:
        _print_records(job, number)
    elif on_screen:
        from overlaptop.commands import dashboard

        screen = dashboard.screen_of(options)
        session = session_of(job)
        session.choose(number)
        return dashboard.show(session, screen)
    else:
        print_page(_page(job, number, by_hta=by_hta), ascii_only=options.ascii)
    return 0


def _steps(job: TracedJob) -> str:
    """Return such as ``2-4``, the numbers that ``--step`` takes; empty: none."""
    if job.step_numbers == [0]:
        return "0, the whole trace if it has no ProfilerStep marks (prof.step())"
    return text.shortened(text.runs_of(job.step_numbers), 40)


def _print_records(job: TracedJob, number: int) -> None:
    # Printed at once: there may be tens of thousands, and the reader waits for the last.
    records: list[Record] = [
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
            trace_rank_record(summary.info.rank, whole, over_all, compute_exact=summary.info.compute_exact)
            for summary, whole in zip(job.ranks, job.whole, strict=True)
        ]
        with suppress(CommandError):  # too many ranks for a Snapshot, not for their records
            found = found_in(session_of(job).tick()) if job.waits else ()
            records += [finding.record(job.name) for finding in found]
    print_data("\n".join(map(as_json, records)))


def session_of(job: TracedJob) -> FinishedSession:
    """Return the job as a session for a dashboard or a table."""
    with refusing(ValueError, where=f"{job.path}: "):
        return FinishedSession(job)


def _page(job: TracedJob, number: int, *, by_hta: bool) -> str:
    from overlaptop.commands import once

    shown = [
        (summary, each)
        for summary, whole in zip(job.ranks, job.whole, strict=True)
        for each in (whole, *summary.steps)
        if each.step == number
    ]
    fused = ["fused"] if any(each.fused_ns for each in job.whole) else []
    rows = []
    for summary, each in shown:
        steps = text.count(len(summary.steps) if number == WHOLE_TRACE else 1)
        times = [each.exposed_ns, each.hidden_ns, each.compute_ns, each.comm_ns, each.copy_only_ns]
        times.append(each.idle_ns if summary.info.compute_exact else None)
        if fused:
            times.insert(4, each.fused_ns)
        rows.append([str(summary.info.rank), steps, text.percent(each.overlap), *map(text.duration, times)])
    exact = all(summary.info.compute_exact for summary in job.ranks)
    comm_ns = sum(each.comm_ns or 0 for _, each in shown)
    hidden_ns = sum(each.hidden_ns or 0 for _, each in shown)
    overlap = text.percent(ratios.overlap(hidden_ns, comm_ns))
    session = session_of(job)
    session.choose(number)
    snapshot = session.tick()
    of = "whole trace" if number == WHOLE_TRACE else f"step {text.count(number)}"
    if number == WHOLE_TRACE and len(job.step_numbers) > 1:
        of += f" (steps {_steps(job)})"
    ranks = text.named_ranks([summary.info.rank for summary in job.ranks]) if job.missing else "all ranks"
    found = found_in(snapshot) if number == WHOLE_TRACE and job.waits else ()
    said = first_line(snapshot, found) if job.waits else None
    lines = [
        once.title(snapshot),
        *([said.words] if said is not None else []),
        f"{of}{', as HolisticTraceAnalysis counts' if by_hta else ''}, {ranks}   "
        f"overlap {text.bounded(overlap, BOUNDS['overlap'], exact=exact)}   "
        f"hidden {text.duration(hidden_ns)} of {text.duration(comm_ns)}",
        table([*_HEAD, *fused, "copy only", "idle"], rows),
    ]
    if not exact:
        lines.append("≤: without a GPU compute is an upper bound, and so are overlap and hidden")
    if found:
        lines += ["", render(found)]
    if (waits := job.waits.get(number)) is not None:
        lines += ["", _waits_table(job, waits)]
    return "\n".join(lines)


def _waits_table(job: TracedJob, waits: StepWaits) -> str:
    rows, late = [], lateness(waits.collectives)
    for summary in job.ranks:
        rank, exact = summary.info.rank, summary.info.compute_exact
        times = waits.times.get(rank)
        if times is None:
            continue
        cells = [str(rank)]
        for part_ns, exposed_ns in (
            (times.wait_ns, times.exposed_wait_ns),
            (times.transfer_ns, times.exposed_transfer_ns),
        ):
            cells.append(text.duration(part_ns if times.known else None))
            figure = text.duration(exposed_ns if times.known and times.exposed_known else None)
            cells.append(text.bounded(figure, text.AT_LEAST, exact=exact or exposed_ns == part_ns))
        own = late.of(rank) if late is not None else None
        late_in = text.UNKNOWN if own is None else f"{own.late_count:,} of {own.collectives:,}"
        rows.append([*cells, text.duration(times.not_attributed_ns), late_in])
    return table(_WAITS_HEAD, rows)


def _remarks(job: TracedJob) -> list[str]:
    ranks: dict[str, list[int]] = {}
    for summary in job.ranks:
        for remark in summary.remarks:
            ranks.setdefault(remark, []).append(summary.info.rank)
    return [*job.remarks, *(f"{text.named_ranks(of)}: {remark}" for remark, of in ranks.items())]
