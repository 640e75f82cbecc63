"""The first line below the header: the one thing that costs most."""

from __future__ import annotations

from overlaptop.report.headline import headline
from overlaptop.tui.draw.segments import DIM, Segment, StyledLine, TextStyle, elided
from overlaptop.tui.view import JobView

_WARNING = TextStyle("warning", bold=True)


class HeadlineView(JobView):
    """One line."""

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        found = headline(self.state.snapshot)
        if found is None:
            return []
        words = found.words if len(found.words) + 3 < width else found.brief
        if found.warns:
            return [elided((Segment(" ! ", _WARNING), Segment(words, _WARNING)), width - 1)]
        return [elided((Segment(" · ", DIM), Segment(words)), width - 1)]
