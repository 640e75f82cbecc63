"""Who waited for whom in a set of traces, as tables of text."""

from __future__ import annotations

from overlaptop import text
from overlaptop.console.table import Table
from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.fleet.waits import StepWaits
from overlaptop.formats.job import TracedJob
from overlaptop.timeline.arrivals import lateness

_MOST_ROWS = 64
"""Of ranks in steps; of more, the steps that cost most are shown."""
_PARTS = ("waiting", "of it exposed", "transferring", "of it exposed", "not split", "late in")


def render(job: TracedJob, number: int = WHOLE_TRACE) -> str:
    """Each rank over the whole trace, and then in each step; or in the step of this number. Empty where
    nothing was compared.
    """
    if number not in job.waits:
        return ""
    whole = Table(["rank", *_PARTS])
    for cells in _rows(job, job.waits[number]):
        whole.add(*cells)
    lines = [whole.render()]
    numbers = job.step_numbers if number == WHOLE_TRACE else ()

    def cost_ns(step: int) -> int:
        return sum(times.exposed_wait_ns for times in job.waits[step].times.values())

    most = max(1, _MOST_ROWS // len(job.ranks))
    shown = sorted(sorted(numbers, key=cost_ns, reverse=True)[:most])
    steps = Table(["step", "rank", *_PARTS])
    for number in shown:
        for cells in _rows(job, job.waits[number]):
            steps.add(str(number), *cells)
    if shown:
        lines += ["", steps.render()]
    if (more := len(numbers) - len(shown)) > 0:
        lines.append(
            f"not shown: {text.plural(more, 'step')} in which less waiting was exposed; --json has all"
        )
    return "\n".join(lines)


def _rows(job: TracedJob, waits: StepWaits) -> list[list[str]]:
    """Of each rank that has this step."""
    late = lateness(waits.collectives)
    rows = []
    for summary in job.ranks:
        rank, exact = summary.info.rank, summary.info.compute_exact
        times = waits.times.get(rank)
        if times is None:
            continue
        own = late.of(rank) if late is not None else None
        parts = ((times.wait_ns, times.exposed_wait_ns), (times.transfer_ns, times.exposed_transfer_ns))
        exposed_known = times.known and times.exposed_known
        cells = [str(rank)]
        for part_ns, exposed_ns in parts:
            cells.append(text.duration(part_ns if times.known else None))
            figure = text.duration(exposed_ns if exposed_known else None)
            cells.append(text.bounded(figure, text.AT_LEAST, exact=exact or exposed_ns == part_ns))
        cells.append(text.duration(times.unsplit_ns))
        cells.append(text.UNKNOWN if own is None else f"{own.late:,} of {own.collectives:,}")
        rows.append(cells)
    return rows
