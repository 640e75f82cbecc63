"""The report of a run as one screen of text. Pure."""

from overlaptop import text
from overlaptop.findings.finding import headline
from overlaptop.fleet.records import BOUNDS
from overlaptop.records import FindingRecord, LateRank, RunRecord
from overlaptop.report.figures import exposed_text, with_error
from overlaptop.timeline.arrivals import WaitTimes

_MOST_OF_EACH = 5
_NAME_CHARS = 12


def describe(run: RunRecord) -> str:
    """Return a report as text: the job, its figures, late ranks, findings, troubles and changes."""
    hosts = text.shortened(", ".join(run.hosts), 40)
    ranks = text.plural(run.work.world_size, "rank")
    made = text.plural(run.steps, "step")
    lines = [
        f"{run.script}, {ranks}{f' on {hosts}' if hosts else ''}: {made}, "
        f"{'ran' if run.ended else 'runs'} for {_lasting(run.to_ns - run.started_ns)} (job {run.job})"
    ]
    if run.step_ns is not None:
        of = f"the last {_lasting(run.to_ns - run.from_ns)}"
        figures = {
            "step": f"median {text.duration(run.step_ns)}, p99 {text.duration(run.p99_step_ns)}, of {of}",
            "overlap": text.bounded(text.percent(run.overlap), BOUNDS["overlap"], exact=run.compute_exact),
            "exposed": text.UNKNOWN
            if run.exposed_ns is None
            else f"{text.duration(run.exposed_ns)} a step {_parts(run)}".rstrip(),
            "bound": run.bound or "",
            "own cost": with_error(run.cost_change, run.cost_error) if run.cost_change is not None else "",
        }
        lines += [f"  {name:{_NAME_CHARS}}{words}" for name, words in figures.items() if words]
    lines += _section("late ranks", [_late(each, run.work.world_size) for each in run.late_ranks])
    lines += _section("findings", [_finding(each) for each in run.findings])
    lines += _section("troubles", [each.text for each in run.troubles])
    lines += _section(
        "changes",
        [
            f"{text.clock(each.at_ns)} {each.knob}: {each.old or text.UNKNOWN} → "
            f"{each.new or text.UNKNOWN}, {each.outcome} {each.reason}".rstrip()
            for each in run.changes
        ],
    )
    return "\n".join(map(text.printable, lines))


def _lasting(ns: int) -> str:
    return text.duration(ns) if ns < 10**10 else text.age(ns / 1e9)


def _section(title: str, entries: list[str]) -> list[str]:
    if not entries:
        return []
    more = len(entries) - _MOST_OF_EACH
    shown = [f"  {each}" for each in entries[:_MOST_OF_EACH]]
    return [title, *shown, *([f"  and {more} more: --json"] if more > 0 else [])]


def _parts(run: RunRecord) -> str:
    """Return ``≈ waiting 3.20 + transfer 0.50``. Empty if no step was compared."""
    if run.exposed_not_attributed_ns is None:
        return ""
    wait_ns, transfer_ns = run.exposed_wait_ns or 0, run.exposed_transfer_ns or 0
    not_attributed_ns = run.exposed_not_attributed_ns
    times = WaitTimes(wait_ns, transfer_ns, not_attributed_ns, wait_ns, transfer_ns, not_attributed_ns)
    return exposed_text(times, run.exposed_ns)


def _late(each: LateRank, world_size: int) -> str:
    why = f": {each.cause}" if each.cause else ""
    who = f"rank {1 - each.rank} waits" if world_size == 2 else "the others wait"
    return (
        f"rank {each.rank} late in {each.late_count} of {each.collectives} collectives, {who} "
        f"{text.duration(each.wait_ns)} a step{why}{_until(each)}"
    )


def _finding(each: FindingRecord) -> str:
    of = f" of {text.duration(each.step_ns)}" if each.step_ns else ""
    wins = f"; fixing it wins up to {text.duration(each.gain_ns)}{of} a step" if each.gain_ns else ""
    return f"{headline(each.title, each.line)}{wins} ({each.certainty}){_until(each)}"


def _until(each: LateRank | FindingRecord) -> str:
    return f"; gone after step {each.until_step:,}" if each.until_step is not None else ""
