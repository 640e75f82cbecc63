"""What the bars' and lanes' colours and glyphs mean."""

from __future__ import annotations

from overlaptop.tui.draw.segments import Item, Segment, StyledLine, TextStyle, dim, fit
from overlaptop.tui.timeline.parts import (
    COMPUTE,
    COPY,
    EXPOSED,
    FUSED,
    HIDDEN,
    HIDDEN_WAITING,
    IDLE,
    STALL,
    WAITING,
)
from overlaptop.tui.view import JobView


class Legend(JobView):
    """One line."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        textured, gap = self.look.textured, "   " if width >= 70 else "  "
        items = []
        waiting = (WAITING,) if self.state.waits is not None else ()
        fused = (FUSED,) if self.state.snapshot.totals.fused_ns else ()
        for part in (COMPUTE, HIDDEN, EXPOSED, *waiting, *fused, COPY, IDLE, STALL):
            word = part.word.removesuffix(" only") if width < 70 else part.word
            beside = HIDDEN_WAITING if part is WAITING else part
            swatch = [
                Segment(each.texture if textured else "█", TextStyle(each.key)) for each in (beside, part)
            ]
            items.append(Item((*swatch, dim(f" {word}")), 1))
        right = []
        if words := self.state.filter.words:
            of = f"{len(self.state.rows)} of {len(self.state.snapshot.ranks)} ranks "
            right.append(Item((Segment(f"/{words}  {of}", TextStyle("accent")),)))
        return [fit([Item((Segment(" "), *items[0].line), 1), *items[1:]], right, width, gap)]
