"""The meaning of the bars' and lanes' colours and glyphs."""

from overlaptop.tui.draw.segments import Item, Segment, StyledLine, TextStyle, dim, fit
from overlaptop.tui.model.parts import FUSED, HIDDEN_WAITING, LEGEND, WAITING
from overlaptop.tui.widgets.view import JobView


class Legend(JobView):
    """One line."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        textured, narrow, waits = self.look.textured, width < 70, self.state.waits
        absent = []
        if waits is None or not waits.times:
            absent.append(WAITING)
        if not self.state.snapshot.totals.fused_ns:
            absent.append(FUSED)
        items = []
        for part in (each for each in LEGEND if each not in absent):
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
