"""What the bars' and lanes' colours and glyphs mean."""

from __future__ import annotations

from overlaptop.tui.ink import DIM, Ink, Item, Line, Run, fit
from overlaptop.tui.parts import STALL, STEP_PARTS
from overlaptop.tui.widgets.line_view import LineView


class Legend(LineView):
    """One line."""

    fades = False

    def draw(self, width: int, height: int) -> list[Line]:  # noqa: ARG002
        """Each part's glyph in its colour, and its word."""
        textured, gap = self.state.textured, "   " if width >= 70 else "  "
        items = []
        for part in (*STEP_PARTS, STALL):
            word = part.word.removesuffix(" only") if width < 70 else part.word
            glyph = part.texture if textured else "█"
            items.append(Item((Run(glyph * 2 + " ", Ink(part.key)), Run(word, DIM)), 1))
        words, rows = self.state.filter.words, len(self.state.rows)
        right = []
        if words:
            shown = f"/{words}  {rows} of {len(self.state.snapshot.ranks)} ranks "
            right.append(Item((Run(shown, Ink("accent")),)))
        return [fit([Item((Run(" "), *items[0].line), 1), *items[1:]], right, width, gap)]
