"""Widgets that draw lines about the job: all lines, scrolled ones, or rows with a cursor."""

import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import ClassVar, Generic, TypeVar

from rich import segment
from textual import events
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from overlaptop.text import printable
from overlaptop.tui.draw.bars import textured
from overlaptop.tui.draw.layout import line_width
from overlaptop.tui.draw.segments import TEXT, StyledLine, TextStyle, dim, faded
from overlaptop.tui.draw.table import scrolled
from overlaptop.tui.model.dashboard import Dashboard

Row = TypeVar("Row")

WHEEL_LINES = 3
_ASCII = str.maketrans(
    "–×µ·≤≥≈±●○■◌▸▾▲▼─│├┤╷╵…←→↑↓█▓░▒▞▁▂▃▄▅▆▇╰╯╭╮═✓✗━╸┬┴◆★▘▝▀▖▌▛▗▚▐▜▙▟",
    "-xu.<>~~*o#o>v^v-|||||~<>^v#=!:+_.:-=+*++++=+!=---@$''\".:::.::::",
)
_BESIDE_SPACE = ((re.compile(r" (\(?)±|± "), r"\1+-"), (re.compile(r" →(?= \S)|→ (?=\S)"), "->"))
"""Characters that use a neighbouring space's cell in ASCII: in one cell, ± would look like ≈, and a
change's → like ≥."""


class JobView(Widget):
    """Draws the lines of ``draw()``, and repaints those that changed."""

    fades = True  # Whether it fades when all its content is outdated

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__()
        self.dashboard, self.state, self.look = dashboard, dashboard.state, dashboard.look
        self._lines: list[StyledLine] = []
        self._strips: list[Strip | None] = []
        self._full_height: int | None = None
        self._made_of: tuple[object, ...] | None = None

    def full_height(self, width: int) -> int | None:  # noqa: ARG002
        """Return the lines needed for everything; 0: hidden; None: it uses any height."""
        return None

    def fit(self, width: int) -> None:
        lines = self.full_height(width)
        if lines != self._full_height:
            self._full_height = lines
            self.styles.max_height = lines
            self.set_class(lines == 0, "-empty")

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """Return the lines for this many cells; missing ones stay blank."""
        raise NotImplementedError

    def made_of(self) -> tuple[object, ...] | None:
        """Return all inputs of the lines, if comparing them is cheaper than drawing; None: draw."""
        return None

    def redraw(self, *, everything: bool = False) -> None:
        """Draw again and repaint the differences; ``everything`` if colours changed."""
        width, height = self.size
        if not width or not height:
            return
        before, self._made_of = self._made_of, self.made_of()
        if self._made_of is not None:
            self._made_of += (width, height, self.look.faded)
            if self._made_of == before and not everything:
                return
        lines = self.draw(width, height)[:height]
        if self.fades and self.look.faded:
            lines = [faded(line) for line in lines]
        lines += [()] * (height - len(lines))
        if everything or len(lines) != len(self._lines):
            self._lines, self._strips = lines, [None] * height
            self.refresh()
            return
        changed: list[Region] = []
        for y, (old, new) in enumerate(zip(self._lines, lines, strict=True)):
            if old != new:
                changed.append(_difference(old, new, y, width))
                self._strips[y] = None
        self._lines = lines
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y >= len(self._lines):
            return Strip.blank(width, self.look.styles.rich(TEXT))
        strip = self._strips[y]
        if strip is None or strip.cell_length != width:
            strip = self._strips[y] = self._strip(self._lines[y], width)
        return strip

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return container.height if self._full_height is None else self._full_height

    def on_resize(self) -> None:
        self.redraw(everything=True)

    def _strip(self, line: StyledLine, width: int) -> Strip:
        styles, only_ascii = self.look.styles, self.look.ascii
        drawn = textured(line) if self.look.textured else line
        segments = [segment.Segment(plain(text, only_ascii), styles.rich(style)) for text, style in drawn]
        # The rest of a selected row has the background of its last segment.
        rest = TextStyle(bg=line[-1].style.bg if line and line[-1].style.bg == "cursor" else "")
        return Strip(segments).adjust_cell_length(width, styles.rich(rest))

    def move(self, lines: int) -> None:
        """Scroll or move the cursor down, or up if negative."""

    async def wheel(self, direction: int, x: int) -> None:  # noqa: ARG002
        """Scroll by the wheel. ``direction``: 1 is down, -1 up; ``x``: the pointer's column."""
        self.move(direction)

    async def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        await self._wheel(event, 1)

    async def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        await self._wheel(event, -1)

    async def _wheel(self, event: events.MouseEvent, direction: int) -> None:
        event.stop()
        await self.wheel(direction, event.x)
        self.dashboard.on_change()


def _difference(old: StyledLine, new: StyledLine, y: int, width: int) -> Region:
    same = _alike(old, new)
    first, end = line_width(new[:same]), width
    if line_width(old) == line_width(new):
        alike = _alike(old[same:][::-1], new[same:][::-1])
        end = line_width(new[: len(new) - alike])
    first = min(first, width - 1)
    return Region(first, y, max(1, min(end, width) - first), 1)


def _alike(one: StyledLine, other: StyledLine) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def plain(text: str, only_ascii: bool) -> str:
    """Return the text without terminal control characters, in ASCII if required."""
    if only_ascii and not text.isascii():
        for glyph, two_cells in _BESIDE_SPACE:
            text = glyph.sub(two_cells, text)
        text = "".join(c if c.isascii() else "?" for c in text.translate(_ASCII))
    return printable(text)


class LinesView(JobView):
    """A view as high as its lines."""

    def lines(self, width: int) -> list[StyledLine]:
        raise NotImplementedError

    def full_height(self, width: int) -> int:
        return len(self.lines(width))

    def draw(self, width: int, height: int) -> list[StyledLine]:
        return self.lines(width)[:height]


class Page(JobView):
    """Lines that do not depend on the height, scrolled by keys and by the wheel, below a heading."""

    fades = False

    first = 0

    def move(self, lines: int) -> None:
        self.first = max(0, self.first + lines)

    async def wheel(self, direction: int, x: int) -> None:  # noqa: ARG002
        self.move(WHEEL_LINES * direction)

    def heading(self, width: int) -> list[StyledLine]:  # noqa: ARG002
        return []

    def lines(self, width: int) -> list[StyledLine]:
        raise NotImplementedError

    def draw(self, width: int, height: int) -> list[StyledLine]:
        heading, lines = self.heading(width), self.lines(width)
        height -= len(heading)
        self.first = max(0, min(self.first, len(lines) - height))
        shown, below = lines[self.first : self.first + height], len(lines) - self.first - height
        if below > 0 and shown:
            shown[-1] = (dim(f"   ▼ {below + 1} more lines: page down"),)
        return heading + shown


class RowList(JobView, Generic[Row]):
    """Rows with a cursor that follows its row when the order changes."""

    above = 2  # Lines above the rows: a title and their header
    opens: ClassVar = "screen.open"  # The action of a second click

    cursor: object = None  # `key` of the row at the cursor; if there is no such row: the first row
    _first = 0

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
        self.cursor = self.key(row)

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
            self.dashboard.on_change()
            if event.chain >= 2:
                await self.screen.run_action(self.opens)
