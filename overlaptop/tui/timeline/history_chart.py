"""A rank's last steps as two charts on fixed scales: step time from zero, overlap from 0 to 100 %."""

from __future__ import annotations

from statistics import fmean

from overlaptop.text import Unit, duration
from overlaptop.tui.draw.bars import chart
from overlaptop.tui.draw.segments import Item, Segment, StyledLine, TextStyle, dim, fit
from overlaptop.tui.timeline import history
from overlaptop.tui.view import JobView

_LABEL = 10


class HistoryChart(JobView):
    """Half of the height each; a chart's scale stands at its left."""

    def made_of(self) -> tuple[object, ...] | None:
        """The rank, and the newest column that is complete: about one redraw a second."""
        chosen = self.state.chosen
        if chosen is None or not chosen.history:
            return None
        a_column = self._steps_a_column(history.typical_step_ns([chosen]))
        return (chosen.rank, a_column, chosen.history[-1].step // a_column)

    def _steps_a_column(self, typical_ns: float | None) -> int:
        return history.steps_a_column(typical_ns, moving=self.state.moving)

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """Titles and charts for the chosen rank."""
        chosen = self.state.chosen
        if chosen is None or not chosen.history:
            return [(dim(" no history yet"),)]
        typical_ns = history.typical_step_ns([chosen])
        a_column, top_ns = self._steps_a_column(typical_ns), history.scale_top_ns(typical_ns)
        unit, room, rows = Unit.for_scale(top_ns), width - _LABEL - 1, max(1, (height - 2) // 2)
        times = history.columns(chosen.history, room, a_column, lambda step: step.step_ns)
        overlaps = history.columns(chosen.history, room, a_column, lambda step: step.overlap, fmean)
        each = f"the slowest of {a_column} steps" if a_column > 1 else "one step"
        mean = f"the mean of {a_column} steps" if a_column > 1 else "one step"
        spread = sorted(step.step_ns for step in chosen.history if not step.disturbed)
        n = len(spread)
        figures = (
            (
                f"median {duration(spread[n // 2])}",
                f"p99 {duration(spread[min(n - 1, n * 99 // 100)])}",
                f"longest {duration(spread[-1])}",
                f"of {n} step{'s' * (n != 1)}",
            )
            if n
            else ()
        )
        items = [Item((dim(words),), 1) for words in (f"each column {each}", *figures)]
        return [
            fit([Item((Segment(" step time", TextStyle(bold=True)),)), *items], [], width),
            *_scaled(
                chart(times, top_ns, rows, style=TextStyle("history")), f"{unit.brief(top_ns)} {unit.name}"
            ),
            fit(
                [
                    Item((Segment(" overlap", TextStyle(bold=True)),)),
                    Item((dim(f"each column {mean}"),), 1),
                ],
                [],
                width,
            ),
            *_scaled(chart(overlaps, 1.0, rows, style=TextStyle("hidden")), "100 %"),
        ]


def _scaled(lines: list[StyledLine], top: str) -> list[StyledLine]:
    labels = [top, *[""] * (len(lines) - 2), "0"] if len(lines) > 1 else [f"0–{top}"]
    return [(dim(f"{label:>{_LABEL - 1}} "), *line) for label, line in zip(labels, lines, strict=True)]
