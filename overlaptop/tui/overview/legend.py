"""What the bars' and lanes' colours and glyphs mean."""

from __future__ import annotations

from overlaptop.tui.draw.segments import Item, Segment, StyledLine, TextStyle, dim, fit
from overlaptop.tui.timeline.parts import STALL, STEP_PARTS
from overlaptop.tui.view import JobView


class Legend(JobView):
    """One line."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        textured, gap = self.look.textured, "   " if width >= 70 else "  "
        items = []
        for part in (*STEP_PARTS, STALL):
            word = part.word.removesuffix(" only") if width < 70 else part.word
            glyph = part.texture if textured else "█"
            items.append(Item((Segment(glyph * 2 + " ", TextStyle(part.key)), dim(word)), 1))
        right = []
        if words := self.state.filter.words:
            of = f"{len(self.state.rows)} of {len(self.state.snapshot.ranks)} ranks "
            right.append(Item((Segment(f"/{words}  {of}", TextStyle("accent")),)))
        return [fit([Item((Segment(" "), *items[0].line), 1), *items[1:]], right, width, gap)]
