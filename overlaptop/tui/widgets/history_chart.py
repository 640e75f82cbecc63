"""A rank's last steps as two charts on fixed scales: step time from zero, overlap from 0 to 100 %."""

from __future__ import annotations

from statistics import fmean

from overlaptop.tui import history
from overlaptop.tui.drawing import chart
from overlaptop.tui.ink import DIM, Ink, Item, Line, Run, fit
from overlaptop.tui.text import Unit, duration
from overlaptop.tui.widgets.line_view import LineView

_LABEL = 10


class HistoryChart(LineView):
    """Half of the height each; a chart's scale stands at its left."""

    def made_of(self) -> tuple[object, ...] | None:
        """The rank, and the newest column that is complete: about one picture a second."""
        chosen = self.state.chosen
        if chosen is None or not chosen.history:
            return None
        a_column = self._steps_a_column(history.typical_step_ns([chosen]))
        return (chosen.rank, a_column, chosen.history[-1].step // a_column)

    def _steps_a_column(self, typical_ns: float | None) -> int:
        return history.steps_a_column(typical_ns, moving=self.state.moving)

    def draw(self, width: int, height: int) -> list[Line]:
        """Titles and charts for the chosen rank."""
        chosen = self.state.chosen
        if chosen is None or not chosen.history:
            return [(Run(" no history yet", DIM),)]
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
        said = [Item((Run(words, DIM),), 1) for words in (f"each column {each}", *figures)]
        return [
            fit([Item((Run(" step time", Ink(bold=True)),)), *said], [], width),
            *_scaled(chart(times, top_ns, rows, ink=Ink("history")), f"{unit.brief(top_ns)} {unit.name}"),
            fit(
                [Item((Run(" overlap", Ink(bold=True)),)), Item((Run(f"each column {mean}", DIM),), 1)],
                [],
                width,
            ),
            *_scaled(chart(overlaps, 1.0, rows, ink=Ink("hidden")), "100 %"),
        ]


def _scaled(lines: list[Line], top: str) -> list[Line]:
    labels = [top, *[""] * (len(lines) - 2), "0"] if len(lines) > 1 else [f"0–{top}"]
    return [(Run(f"{label:>{_LABEL - 1}} ", DIM), *line) for label, line in zip(labels, lines, strict=True)]
