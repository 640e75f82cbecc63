"""The jobs of this session, the newest first: what was tried, and what it brought."""

from __future__ import annotations

from collections.abc import Sequence

from overlaptop.tui.earlier import RUNS, EarlierJob
from overlaptop.tui.ink import BOLD, DIM, TEXT, Ink, Line, Run, crop, pad
from overlaptop.tui.text import count, duration, percent, printable
from overlaptop.tui.widgets.line_view import LineView

_LABEL_LEAST = 30
_MARGIN = 1


class TriedTable(LineView):
    """A title that is also the header, then a line each."""

    fades = False

    @property
    def full_height(self) -> int:
        """Lines that it would fill; 0: nothing was tried."""
        jobs = len(self.dashboard.seen.all)
        return 1 + jobs if jobs else 0

    def draw(self, width: int, height: int) -> list[Line]:
        """The newest ones."""
        seen = self.dashboard.seen
        jobs, present = list(reversed(seen.all)), seen.present
        columns = _columns(jobs, width)
        label = width - 3 - _MARGIN - sum(size + 2 for _, _, size in columns)
        head: Line = (Run(" watched so far, newest first", BOLD),)
        lines = [
            (
                *pad(crop(head, label + 3), label + 3),
                *(Run(f"  {name:>{size}}", DIM) for name, _, size in columns),
            )
        ]
        for job in jobs[: max(0, height - 1)]:
            now = present is not None and job.job == present.job
            changed = f", {printable(job.changed)}" if job.changed else ""
            words = shortened(printable(job.label), label - len(changed))
            name: Line = (Run(words, BOLD if now else TEXT), Run(changed, Ink("accent")))
            mark = Run("   ")
            if now:
                mark = Run(" ● ", Ink("live")) if job.how == RUNS else Run(" ■ ", DIM)
            at = jobs.index(job)
            lines.append(
                (
                    mark,
                    *pad(crop(name, label), label),
                    *(
                        Run(f"  {cells[at]:>{size}}", DIM if key == "" else TEXT)
                        for key, cells, size in columns
                    ),
                )
            )
        return [crop(line, width) for line in lines]


def shortened(label: str, width: int) -> str:
    """A label of at most that width: its first word and its end, in which labels of one session differ."""
    if len(label) <= width:
        return label
    first = label.partition(" ")[0]
    room = width - len(first) - 3
    # From the beginning of a word on, where that leaves one.
    end = label[-room - 1 :].partition(" ")[2] if room > 0 else ""
    return f"{first} … {end}" if end else label[: max(0, width)]


def _columns(jobs: Sequence[EarlierJob], width: int) -> list[tuple[str, list[str], int]]:
    """Name, cells and width of each that fits; the least important are left out first."""
    every = [
        ("exposed", [duration(job.exposed_ns) for job in jobs]),
        ("steps", [count(job.steps_done or None) for job in jobs]),
        ("", [job.how for job in jobs]),
        ("overlap", [percent(job.overlap) for job in jobs]),
        ("step time", [duration(job.step_ns) for job in jobs]),
    ]
    order = ("steps", "step time", "overlap", "exposed", "")
    sized = [(name, cells, max(len(name), *map(len, cells), 1)) for name, cells in every]
    while sized and 3 + _LABEL_LEAST + _MARGIN + sum(size + 2 for *_, size in sized) > width:
        del sized[0]
    return sorted(sized, key=lambda column: order.index(column[0]))
