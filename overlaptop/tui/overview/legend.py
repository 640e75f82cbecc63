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
        textured, narrow, waits = self.look.textured, width < 70, self.state.waits
        items = []
        waiting = (WAITING,) if waits is not None and waits.times else ()
        fused = (FUSED,) if self.state.snapshot.totals.fused_ns else ()
        for part in (COMPUTE, HIDDEN, EXPOSED, *waiting, *fused, COPY, IDLE, STALL):
            word = part.word.removesuffix(" only") if narrow else f" {part.word}"
            shades = (HIDDEN_WAITING, part) if part is WAITING else (part,) * (1 if narrow else 2)
            swatch = [Segment(each.texture if textured else "█", TextStyle(each.key)) for each in shades]
            items.append(Item((*swatch, dim(word)), 1))
        right = []
        if words := self.state.filter.words:
            of = f"{len(self.state.rows)} of {len(self.state.snapshot.ranks)} ranks "
            right.append(Item((Segment(f"/{words}  {of}", TextStyle("accent")),)))
        items[0] = items[0]._replace(line=(Segment(" "), *items[0].line))
        return [fit(items, right, width, " " if narrow else "   ")]
