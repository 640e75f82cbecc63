"""The progress of the newest change of a knob."""

from overlaptop.tui.draw.layout import Item, fit, paragraph
from overlaptop.tui.draw.segments import Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.model.knob_editor import KnobChange
from overlaptop.tui.widgets.view import LinesView

MOST_LINES = 4
_GLYPHS = {"pending": ("◌", "warning"), "changed": ("●", "good"), "failed": ("✗", "error")}


class ChangeLine(LinesView):
    """The newest change from any dashboard, until it is complete; a failure stays."""

    fades = False

    def lines(self, width: int) -> list[StyledLine]:
        state, change = self.state, self.state.change
        is_old = change is not None and change.state == "changed" and not state.change_is_news
        return [] if change is None or is_old or state.panel_hidden else change_lines(change, width)


def change_lines(change: KnobChange, width: int, right: Item | None = None) -> list[StyledLine]:
    """Return values, progress and author in up to MOST_LINES. ``right``: at the right edge, if it fits."""
    glyph, color = _GLYPHS[change.state]
    style = TextStyle(color, bold=True)
    mark, values = Segment(f" {glyph} ", style), change.values_text
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
