"""Widgets that draw lines about the job: all lines, scrolled ones, or rows with a cursor."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from textual import events

from overlaptop.tui.draw.segments import StyledLine, dim
from overlaptop.tui.draw.table import scrolled
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.widgets.line_view import LineView

Row = TypeVar("Row")

WHEEL_LINES = 3


class JobView(LineView):
    """A LineView with access to the dashboard."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard.look)
        self.dashboard, self.state = dashboard, dashboard.state

    def move(self, lines: int) -> None:
        """Scroll or move the cursor down, or up if negative."""

    async def wheel(self, direction: int, x: int) -> None:  # noqa: ARG002
        """Scroll by the wheel. ``direction``: 1 is down, -1 up; ``x``: the pointer's column."""
        self.move(direction)

    async def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        await self.wheel(1, event.x)

    async def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        await self.wheel(-1, event.x)


class LinesView(JobView):
    """A view as high as its lines."""

    def lines(self, width: int) -> list[StyledLine]:
        raise NotImplementedError

    def full_height(self, width: int) -> int:
        return len(self.lines(width))

    def draw(self, width: int, height: int) -> list[StyledLine]:
        return self.lines(width)[:height]


class Page(JobView):
    """Lines that do not depend on the height, scrolled by keys and by the wheel."""

    fades = False
    counts_rest: ClassVar = True
    """Whether the last line counts the hidden ones below."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self.first = 0

    def move(self, lines: int) -> None:
        self.first = max(0, self.first + lines)
        self.redraw()

    async def wheel(self, direction: int, x: int) -> None:  # noqa: ARG002
        self.move(WHEEL_LINES * direction)

    def lines(self, width: int) -> list[StyledLine]:
        """Return all lines."""
        raise NotImplementedError

    def draw(self, width: int, height: int) -> list[StyledLine]:
        lines = self.lines(width)
        self.first = max(0, min(self.first, len(lines) - height))
        shown, below = lines[self.first : self.first + height], len(lines) - self.first - height
        if below > 0 and shown and self.counts_rest:
            shown[-1] = (dim(f"   ▼ {below + 1} more lines: page down"),)
        return shown


class RowList(JobView, Generic[Row]):
    """Rows with a cursor that follows its row when the order changes."""

    above = 2
    """Lines above the rows: a title and their header."""
    opens: ClassVar = "screen.open"
    """The action of a second click."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self.cursor: object = None
        """`key` of the row at the cursor; if there is no such row: the first row."""
        self._first = 0

    @property
    def rows(self) -> Sequence[Row]:
        raise NotImplementedError

    def key(self, row: Row) -> object:
        """Return the row's identity, the same from step to step."""
        raise NotImplementedError

    def at(self, rows: Sequence[Row]) -> int:
        return next((at for at, row in enumerate(rows) if self.key(row) == self.cursor), 0)

    @property
    def selected(self) -> Row | None:
        rows = self.rows
        return rows[self.at(rows)] if rows else None

    def move(self, lines: int) -> None:
        if rows := self.rows:
            self.put(rows[min(max(self.at(rows) + lines, 0), len(rows) - 1)])

    def put(self, row: Row) -> None:
        """Move the cursor to this row."""
        self.cursor = self.key(row)
        self.redraw()

    def listed(
        self, rows: Sequence[Row], space: int, draw: Callable[[Row, bool], StyledLine]
    ) -> list[StyledLine]:
        """Return the rows around the cursor and how many are below, in 1 to ``space`` lines.

        ``draw``: a row, and whether the cursor is on it.
        """
        at, space = self.at(rows), max(1, space)
        shown = space - 1 if 1 < space < len(rows) else space
        self._first = scrolled(self._first, at, len(rows), shown)
        lines = [
            draw(row, index == at)
            for index, row in enumerate(rows[self._first : self._first + shown], self._first)
        ]
        if (more := len(rows) - self._first - shown) > 0:
            lines.append((dim(f"  … {more:,} more below"),))
        return lines

    async def on_click(self, event: events.Click) -> None:
        rows, at = self.rows, self._first + event.y - self.above
        if event.y >= self.above and at < len(rows):
            self.put(rows[at])
            if event.chain >= 2:
                await self.screen.run_action(self.opens)
