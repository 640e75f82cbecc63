"""The jobs of this session, the newest first: what was tried, and what it brought."""

from __future__ import annotations

from collections.abc import Sequence

from overlaptop import text
from overlaptop.fleet.records import BOUNDS
from overlaptop.text import bounded, count, duration, percent, printable
from overlaptop.tui.draw.segments import (
    BOLD,
    DIM,
    TEXT,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    dim,
    elided,
    line_width,
    pad,
)
from overlaptop.tui.model.earlier import RUNS, EarlierJob
from overlaptop.tui.widgets.view import JobView

_LABEL_LEAST = 30
_MARGIN = 1


class TriedTable(JobView):
    """A title that is also the header, then a line for each job and setting of its knobs."""

    fades = False

    @property
    def full_height(self) -> int:
        """Lines that it would fill; 0: nothing was tried."""
        jobs = len(self.dashboard.jobs_seen.all)
        return 1 + jobs if jobs else 0

    def draw(self, width: int, height: int) -> list[StyledLine]:
        seen = self.dashboard.jobs_seen
        jobs, present = list(reversed(seen.all))[: max(0, height - 1)], seen.present
        columns = _columns(jobs, width)
        label = width - 3 - _MARGIN - sum(size + 2 for _, _, size in columns)
        head: StyledLine = (bold(" watched so far, newest first"),)
        lines = [
            (
                *pad(elided(head, label + 3), label + 3),
                *(dim(f"  {name:>{size}}") for name, _, size in columns),
            )
        ]
        names = _names(jobs, label, present)
        for at, job in enumerate(jobs):
            mark = Segment("   ")
            if job is present:
                mark = Segment(" ● ", TextStyle("live")) if job.how == RUNS else dim(" ■ ")
            cells = (
                Segment(f"  {cells[at]:>{size}}", DIM if key == "" else TEXT)
                for key, cells, size in columns
            )
            lines.append((mark, *pad(names[at], label), *cells))
        return [elided(line, width) for line in lines]


def _names(jobs: Sequence[EarlierJob], width: int, present: EarlierJob | None) -> Sequence[StyledLine]:
    """What was asked for, and the values of the knobs: of all of them where that fits in every row, else of
    those by which rows differ or that were changed.
    """
    distinguishing = {name for name in _knobs(jobs) if _distinguishes(name, jobs)}
    for shown in (_knobs(jobs), distinguishing):
        names = [_name(job, shown, bold=job is present) for job in jobs]
        if all(line_width(name) <= width for name in names):
            return names
    fitted = []
    for label, values in names:
        words = shortened(label.text, width - line_width((values,)))
        fitted.append(elided((label._replace(text=words), values), width))
    return fitted


def _name(job: EarlierJob, knobs: set[str], *, bold: bool) -> tuple[Segment, Segment]:
    values = [f", {setting.words}" for setting in job.settings if setting.knob in knobs]
    return (
        Segment(printable(job.label), BOLD if bold else TEXT),
        Segment(printable("".join(values)), TextStyle("accent")),
    )


def _knobs(jobs: Sequence[EarlierJob]) -> set[str]:
    return {setting.knob for job in jobs for setting in job.settings}


def _distinguishes(knob: str, jobs: Sequence[EarlierJob]) -> bool:
    own = [setting for job in jobs for setting in job.settings if setting.knob == knob]
    return len({setting.value for setting in own}) > 1 or any(setting.changed for setting in own)


def shortened(label: str, width: int) -> str:
    """A label of at most that width: its first word and its end, in which labels of one session differ."""
    if len(label) <= width:
        return label
    first = label.partition(" ")[0]
    room = width - len(first) - 3
    # From the beginning of a word on, where that leaves one.
    end = label[-room - 1 :].partition(" ")[2] if room > 0 else ""
    if end:
        return f"{first} … {end}"
    return text.shortened(label, width) if width > 0 else ""


def _columns(jobs: Sequence[EarlierJob], width: int) -> list[tuple[str, list[str], int]]:
    """Name, cells and width of each that fits; the least important are left out first."""
    overlaps = [bounded(percent(job.figures.overlap), BOUNDS["overlap"], exact=job.exact) for job in jobs]
    exposed = [duration(job.figures.exposed_ns) for job in jobs]
    every = [
        ("exposed", exposed),
        ("steps", [count(job.steps_done or None) for job in jobs]),
        ("", [job.how for job in jobs]),
        ("overlap", overlaps),
        ("step time", [duration(job.figures.step_ns) for job in jobs]),
    ]
    order = ("steps", "step time", "overlap", "exposed", "")
    sized = [(name, cells, max(len(name), *map(len, cells), 1)) for name, cells in every]
    while sized and 3 + _LABEL_LEAST + _MARGIN + sum(size + 2 for *_, size in sized) > width:
        del sized[0]
    return sorted(sized, key=lambda column: order.index(column[0]))
