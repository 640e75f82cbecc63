"""The first line below the header: the one thing that costs most, and how many findings there are."""

from __future__ import annotations

from overlaptop.findings.finding import why_late
from overlaptop.findings.first_line import first_line
from overlaptop.text import plural
from overlaptop.tui.draw.segments import (
    BOLD_WARNING,
    DIM,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    dim,
    fit,
    line_width,
)
from overlaptop.tui.view import JobView

_WIDE = 90


class FirstLineView(JobView):
    """One line; at its right end the key that opens what explains it."""

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        state = self.state
        # A past step is of another moment than findings.
        found = (state.findings or ()) if state.past_step is None else ()
        said = first_line(state.snapshot, found)
        if said is None:
            return []
        more = plural(len(found), "finding") if width >= _WIDE else ""
        right = (dim(more), Segment(" f ▸ ", TextStyle("accent", bold=True))) if found else ()
        ladder = [said.words, said.brief, said.briefest]
        if said.late_rank is not None and (cause := why_late(found, said.late_rank)):
            explained = said.because(cause)
            ladder = [explained.words, explained.brief, explained.briefest, *ladder]
        room = width - 4 - line_width(right)
        words = next((each for each in ladder if len(each) <= room), said.briefest)
        if len(words) > width - 3:
            words = words.partition(" (")[0]  # a cost without its share of the step
        style = BOLD_WARNING if said.warns else TextStyle()
        mark = Segment(" ! ", style) if said.warns else Segment(" · ", DIM)
        return [fit([Item((mark, Segment(words, style)))], [Item(right, 1)] if right else [], width, " ")]

    async def on_click(self) -> None:
        await self.screen.run_action("app.findings")
