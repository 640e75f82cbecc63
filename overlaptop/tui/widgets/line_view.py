"""LineView: a widget of whole lines, which repaints only changed lines."""

import re
from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from overlaptop.text import printable
from overlaptop.tui.draw.layout import line_width
from overlaptop.tui.draw.segments import TEXT, StyledLine, TextStyle, faded
from overlaptop.tui.draw.themes import Look

if TYPE_CHECKING:
    from textual.events import Resize

_ASCII = str.maketrans(
    "–×µ·≤≥≈±●○■◌▸▾▲▼─│├┤╷╵…←→↑↓█▓░▒▞▁▂▃▄▅▆▇╰╯╭╮═✓✗━╸┬┴◆★▘▝▀▖▌▛▗▚▐▜▙▟",
    "-xu.<>~~*o#o>v^v-|||||~<>^v#=!:+_.:-=+*++++=+!=---@$''\".:::.::::",
)
_BESIDE_SPACE = ((re.compile(r" (\(?)±|± "), r"\1+-"), (re.compile(r" →(?= \S)|→ (?=\S)"), "->"))
"""Characters that use a neighbouring space's cell in ASCII: in one cell, ± would look like ≈, and a
change's → like ≥."""


class LineView(Widget):
    """Draws the lines of ``draw()``. Subclasses define the lines; ``redraw`` compares and repaints."""

    fades = True
    """Whether it fades when all its content is outdated."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look
        self._lines: list[StyledLine] = []
        self._strips: list[Strip | None] = []
        self._made_of: tuple[object, ...] | None = None
        self._full_height: int | None = None

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
        made_of = self.made_of()
        if made_of is not None:
            made_of = (*made_of, width, height, self.look.faded, self.look.textured)
            if made_of == self._made_of and not everything:
                return
        self._made_of = made_of
        lines = self.draw(width, height)[:height]
        if self.fades and self.look.faded:
            lines = [faded(line) for line in lines]
        lines += [()] * (height - len(lines))
        if everything or len(lines) != len(self._lines):
            self._lines, self._strips = lines, [None] * height
            self.refresh()
            return
        changed: list[Region] = []
        for y in range(height):
            if lines[y] != self._lines[y]:
                first, last = _difference(self._lines[y], lines[y], width)
                changed.append(Region(first, y, last - first, 1))
                self._lines[y], self._strips[y] = lines[y], None
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

    def on_resize(self, _event: "Resize") -> None:
        self.redraw(everything=True)

    def _strip(self, line: StyledLine, width: int) -> Strip:
        styles, only_ascii = self.look.styles, self.look.ascii
        segments = [Segment(plain(text, only_ascii), styles.rich(style)) for text, style in line]
        # The rest of a selected row has the background of its last segment.
        rest = TextStyle(bg=line[-1].style.bg if line and line[-1].style.bg == "cursor" else "")
        return Strip(segments).adjust_cell_length(width, styles.rich(rest))


def _difference(old: StyledLine, new: StyledLine, width: int) -> tuple[int, int]:
    """Return the cells ``[first, last)`` where two lines differ."""
    shorter = min(len(old), len(new))
    same = 0
    while same < shorter and old[same] == new[same]:
        same += 1
    first = line_width(new[:same])
    if line_width(old) != line_width(new):
        return min(first, width - 1), width
    alike = 0
    while alike < shorter - same and old[-1 - alike] == new[-1 - alike]:
        alike += 1
    last = line_width(new[: len(new) - alike])
    return min(first, width - 1), min(max(last, first + 1), width)


def plain(text: str, only_ascii: bool) -> str:
    """Return the text without terminal control characters, in ASCII if required."""
    if only_ascii and not text.isascii():
        for glyph, two_cells in _BESIDE_SPACE:
            text = glyph.sub(two_cells, text)
        text = "".join(c if c.isascii() else "?" for c in text.translate(_ASCII))
    return printable(text)
