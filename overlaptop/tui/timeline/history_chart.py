"""A rank's last steps as two charts on fixed scales: step time from zero, overlap from 0 to 100 %."""

from operator import attrgetter
from statistics import fmean

from textual import events

from overlaptop.fleet.snapshot import RankView
from overlaptop.text import Unit, age, duration, plural
from overlaptop.tui.draw.bars import chart
from overlaptop.tui.draw.layout import Item, fit, titled
from overlaptop.tui.draw.segments import StyledLine, TextStyle, dim
from overlaptop.tui.model import history
from overlaptop.tui.widgets.view import JobView

_LABEL = 10
_AXIS_FROM = 7  # Least height in lines for an axis
_TICK_COLUMNS = 20
_WHOLE_SECONDS_NS = 10_000_000_000


class HistoryChart(JobView):
    """Two charts of equal height, with their scales at the left."""

    _steps_per_column = 1

    def made_of(self) -> tuple[object, ...] | None:
        """The rank and the newest column, for about one redraw a second."""
        selected = self.state.selected
        if selected is None or not selected.history:
            return None
        typical_ns = history.typical_step_ns([selected])
        each = self._steps_per_column = history.steps_per_column(typical_ns, moving=self.state.moving)
        return selected.rank, each, selected.history[-1].step // each, self.state.marked_step

    def draw(self, width: int, height: int) -> list[StyledLine]:
        selected = self.state.selected
        if selected is None or not selected.history:
            return [(dim(" no history yet"),)]
        steps_per_column, columns = self._steps_per_column, self._columns(selected, width)
        times = columns.values(attrgetter("step_ns"))
        top_ns = history.scale_top_ns(times)
        has_axis = height >= _AXIS_FROM
        unit, rows = Unit.for_scale(top_ns), max(1, (height - 2 - has_axis) // 2)
        overlaps = columns.values(attrgetter("overlap"), fmean)
        spread = sorted(step.step_ns for step in selected.history if not step.disturbed)
        figures = []
        if n := len(spread):
            p99_ns = spread[min(n - 1, n * 99 // 100)]
            figures = [f"median {duration(spread[n // 2])}", f"p99 {duration(p99_ns)}"]
            figures += [f"longest {duration(spread[-1])}", f"of {plural(n, 'step')}"]

        def each(gathered: str) -> str:
            steps = f"the {gathered} of {steps_per_column} steps" if steps_per_column > 1 else "one step"
            return f"each column {steps}"

        def scaled(title: str, about: list[str], lines: list[StyledLine], top: str) -> list[StyledLine]:
            items = [Item(titled(title)), *(Item((dim(words),), 1) for words in about)]
            labels = [top, *[""] * (len(lines) - 2), "0"] if len(lines) > 1 else [f"0–{top}"]
            charted = zip(labels, lines, strict=True)
            return [fit(items, [], width), *((dim(f"{at:>{_LABEL - 1}} "), *line) for at, line in charted)]

        marked = columns.column(self.state.marked_step)
        slowest = chart(times, top_ns, rows, style=TextStyle("history"), marked=marked)
        gaps = [ns is not None and share is None for ns, share in zip(times, overlaps, strict=True)]
        mean = chart(overlaps, 1.0, rows, style=TextStyle("hidden"), marked=marked, gaps=gaps)
        return [
            *scaled("step time", [each("slowest"), *figures], slowest, f"{unit.brief(top_ns)} {unit.name}"),
            *scaled("overlap", [each("mean"), *["· not measured"] * any(gaps)], mean, "100 %"),
            *([_axis(columns, width - _LABEL - 1)] if has_axis else []),
        ]

    def _columns(self, view: RankView, width: int) -> history.Columns:
        return history.Columns(view.history, width - _LABEL - 1, self._steps_per_column)

    async def on_click(self, event: events.Click) -> None:
        selected = self.state.selected
        if selected is not None and event.x >= _LABEL:
            step = self._columns(selected, self.size.width).slowest(event.x - _LABEL)
            if step is not None:
                await self.screen.run_action(f"app.show_step({step})")


def _axis(columns: history.Columns, space: int) -> StyledLine:
    """Return the age of columns, relative to the newest step: ``╷-40 s ───╷-20 s ───╷``."""
    drawn = list("─" * (space - 1) + "╷")
    for at, age_ns in columns.ages_ns(_TICK_COLUMNS):
        label = f"╷-{age(age_ns / 1e9) if age_ns >= _WHOLE_SECONDS_NS else duration(age_ns)} "
        drawn[at : at + len(label)] = label
    return (dim(" " * _LABEL + "".join(drawn)),)
