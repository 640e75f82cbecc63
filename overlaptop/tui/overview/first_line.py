"""The first line below the header: the costliest problem, and the number of findings."""

from collections.abc import Sequence

from overlaptop.fleet.snapshot import Window
from overlaptop.report.who_is_late import who_is_late
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
from overlaptop.tui.widgets.view import JobView

_WIDE = 90
SPARE = 8
"""Columns that must be free before a longer form returns."""


class FirstLineView(JobView):
    """One line; at its right end the key that opens its explanation."""

    _form, _right, _line = 0, 0, object()
    """The form drawn last, the widest right end so far, and their line."""

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        state = self.state
        # Findings are not about a past step.
        found = (state.findings or ()) if state.past_step is None else ()
        is_of_step = state.past_step is not None or (state.paused_at_ns and state.window is Window.STEP)
        said = who_is_late(state.snapshot) if is_of_step else state.first_line
        if said is None:
            return []
        more = plural(len(found), "finding") if width >= _WIDE else ""
        right = (dim(more), Segment(" f ▸ ", TextStyle("accent", bold=True))) if found else ()
        words = self._fitting(said.forms, width, line_width(right), (width, said.key))
        style = BOLD_WARNING if said.warns else TextStyle()
        mark = Segment(" ! ", style) if said.warns else Segment(" · ", DIM)
        return [fit([Item((mark, Segment(words, style)))], [Item(right, 1)] if right else [], width, " ")]

    def _fitting(self, forms: Sequence[str], width: int, right: int, line: object) -> str:
        """Return the first form that fits. A longer form than before returns only with SPARE columns left:
        a figure with another digit must not change the sentence.
        """
        if self._line != line:
            self._form = self._right = 0
        self._right, before = max(right, self._right), self._form
        space = width - 4 - self._right
        spare = [SPARE if at < before else 0 for at in range(len(forms))]
        fits = (at for at, each in enumerate(forms) if len(each) + spare[at] <= space)
        self._form, self._line = next(fits, len(forms) - 1), line
        return forms[self._form]

    async def on_click(self) -> None:
        await self.screen.run_action("app.findings")
