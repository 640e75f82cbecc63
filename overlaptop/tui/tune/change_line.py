"""How the newest change of a knob goes: one line, and more where it failed and the reason is long."""

from __future__ import annotations

from overlaptop.tui.draw.segments import (
    Item,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    dim,
    fit,
    paragraph,
)
from overlaptop.tui.tune.knob_editor import KnobChange, knob_words
from overlaptop.tui.view import JobView

MOST_LINES = 4
_GLYPHS = {"pending": ("◌", "warning"), "changed": ("●", "good"), "failed": ("✗", "error")}


class ChangeLine(JobView):
    """Of the newest one, whoever asked for it and be it a search. Empty where nothing was changed."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:
        change = self.state.newest_change
        return [] if change is None else change_lines(change, width)[:height]

    def full_height(self, width: int) -> int:
        change = self.state.newest_change
        return 0 if change is None else len(change_lines(change, width))


def change_lines(change: KnobChange, width: int, right: Item | None = None) -> list[StyledLine]:
    """From what to what, how far it is, and who asked, where that was not here; at most MOST_LINES.

    ``right``: for the right edge of the first line, where there is room.
    """
    glyph, color = _GLYPHS[change.state]
    style = TextStyle(color, bold=True)
    mark, values = Segment(f" {glyph} ", style), knob_words(change)
    by = [Item((dim("by "), Segment(change.by)), 2)] if change.by else []
    rights = [right] if right is not None else []
    if values and len(values) + len(change.words) + len(change.by) + 15 > width:
        head = fit([Item((mark, bold(values))), *by], rights, width)
        return [head, *paragraph(change.words, width, style, indent=3, rows=MOST_LINES - 1)]
    if not values and len(change.words) + 4 > width:
        first, *more = paragraph(change.words, width, style, indent=3, rows=MOST_LINES)
        return [(mark, *first[1:]), *more]
    status = Segment(change.words, TextStyle(color, bold=change.state != "changed"))
    line = (mark, bold(values), Segment("  "), status) if values else (mark, status)
    return [fit([Item(line), *by], rights, width)]
