"""All ranks of a large job as marks, two ranks a cell, coloured by their deviation from the median.

The upper mark of a cell is the even local rank. Each line holds whole nodes, so that a bad GPU position is
a vertical stripe and a bad node is a short horizontal one.
"""

from collections.abc import Collection, Sequence

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.order import LEVELS, QUANTITIES, Deviations
from overlaptop.text import whole_percent
from overlaptop.tui.draw.layout import Item, fit
from overlaptop.tui.draw.segments import KEY, Segment, StyledLine, TextStyle, bold, dim

_UPPER = "▀"
_COLORS = {-2: "far_better", -1: "better", 0: "usual", 1: "worse", 2: "far_worse"}
_GLYPHS = {-2: "=", -1: "-", 0: "·", 1: "+", 2: "#"}
_UNKNOWN, _SELECTED, _MEMBER = "?", "◆", "○"


class RankMap:
    """The places of the marks in this many columns."""

    def __init__(self, ranks: Sequence[RankView], node_ranks: int, width: int) -> None:
        """``ranks``: in the order of `by_place`."""
        self.ranks = ranks
        most = max(2, 2 * width)
        whole = most // node_ranks * node_ranks if node_ranks % 2 == 0 else 0
        self.line_ranks = whole or most
        """Ranks on one line."""

    @property
    def height(self) -> int:
        return -(-len(self.ranks) // self.line_ranks)

    def line_of(self, rank: int) -> int:
        """Return the line of a rank's mark; 0 if it has none."""
        at = next((at for at, view in enumerate(self.ranks) if view.rank == rank), 0)
        return at // self.line_ranks

    def ranks_at(self, column: int, line: int) -> list[int]:
        """Return the ranks of a cell; none beside the marks."""
        at = line * self.line_ranks + 2 * column
        here = self.ranks[at : at + 2] if 0 <= 2 * column < self.line_ranks else ()
        return [view.rank for view in here]

    def line(
        self,
        number: int,
        found: Deviations,
        selected: int | None,
        members: Collection[int],
        *,
        textured: bool,
    ) -> StyledLine:
        """``members``: ranks of the selected rank's groups. ``textured``: a glyph of the worse rank."""
        ranks = self.ranks[number * self.line_ranks :][: self.line_ranks]
        line: list[Segment] = []
        for at in range(0, len(ranks), 2):
            cell = ranks[at : at + 2]
            if textured:
                segment = _glyph(cell, found, selected, members)
            else:
                colors = [_color(view, found, selected, members) for view in cell]
                segment = Segment(_UPPER, TextStyle(colors[0], colors[1] if len(colors) > 1 else ""))
            if line and line[-1].style == segment.style:
                segment = Segment(line.pop().text + segment.text, segment.style)
            line.append(segment)
        return tuple(line)


def _color(view: RankView, found: Deviations, selected: int | None, members: Collection[int]) -> str:
    level = found.level(view.rank)
    if view.rank == selected:
        return "bright"
    if level is None or view.ended or view.node_lost:
        return "screen"
    return "member" if level == 0 and view.rank in members else _COLORS[level]


def _glyph(
    cell: Sequence[RankView], found: Deviations, selected: int | None, members: Collection[int]
) -> Segment:
    numbers = [view.rank for view in cell]
    levels = [level for each in numbers if (level := found.level(each)) is not None]
    if selected in numbers:
        return Segment(_SELECTED, TextStyle("bright", bold=True))
    if not levels or any(view.ended or view.node_lost for view in cell):
        return Segment(_UNKNOWN, TextStyle("warning"))
    level = max(levels, key=abs)
    if level == 0 and any(each in members for each in numbers):
        return Segment(_MEMBER, TextStyle("text"))
    return Segment(_GLYPHS[level], TextStyle("dim" if level == 0 else _COLORS[level], bold=level != 0))


def map_header(name: str, found: Deviations, width: int, *, textured: bool) -> StyledLine:
    """Return the quantity, its median, and what the marks mean."""

    def mark(level: int) -> Segment:
        return Segment(_GLYPHS[level] if textured else "█", TextStyle(_COLORS[level]))

    low, high = map(whole_percent, LEVELS)
    suspect, other = ("more", "less") if QUANTITIES[name].is_bad_high else ("less", "more")
    left = [
        Item((bold(name), dim(" median "), bold(QUANTITIES[name].describe(found.median)))),
        Item((Segment("M", KEY), dim(" next")), 1),
    ]
    right = [
        Item((mark(1), dim(f" {low} "), mark(2), dim(f" {high} {suspect}")), 2),
        Item((mark(-1), dim(f" {low} "), mark(-2), dim(f" {high} {other}")), 3),
    ]
    return (Segment("  "), *fit(left, right, width - 3))
