"""The options of a workload: what each would be, and what it does."""

from __future__ import annotations

from overlaptop.text import UNKNOWN
from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.draw.segments import BOLD, DIM, TEXT, Segment, StyledLine, TextStyle, elided
from overlaptop.tui.view import ScrollView
from overlaptop.tui.workloads.form import FormState, OptionRow

_GIVEN = TextStyle("accent", bold=True)
_WIDEST_VALUE = 20


class OptionList(ScrollView):
    """A title, then a line each; those that were typed stand out."""

    fades = False

    def __init__(self, dashboard: Dashboard, form: FormState) -> None:
        super().__init__(dashboard)
        self._form = form

    @property
    def full_height(self) -> int:
        """Lines that it would fill."""
        return 1 + len(self._form.workload.options)

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """Those in sight."""
        rows = self._form.rows()
        below = max(0, height - 1)
        self.first = max(0, min(self.first, len(rows) - below))
        flags = max(len(row.option.shown) for row in rows)
        if flags + 40 > width:
            flags = max(len(row.option.flag) for row in rows)
        values = min(_WIDEST_VALUE, max(7, *(len(row.value) for row in rows)))
        shown = [self._line(row, flags, values) for row in rows[self.first : self.first + below]]
        return [self._title(len(rows), below, width), *(elided(line, width) for line in shown)]

    def _title(self, count: int, below: int, width: int) -> StyledLine:
        plan = self._form.plan
        place = f"  on {plan.place}" if plan is not None and plan.place else ""
        hidden = f"  {self.first + 1}–{self.first + below} of {count}" if 0 < below < count else ""
        name = self._form.workload.name
        return elided(
            (Segment(f" options of {name}", BOLD), Segment(place, DIM), Segment(hidden, DIM)), width
        )

    def _line(self, row: OptionRow, flags: int, values: int) -> StyledLine:
        option = row.option
        flag = option.shown if len(option.shown) <= flags else option.flag
        what = option.what
        if row.given and row.default and row.default != row.value:
            what = f"{what}; default {row.default}"
        return (
            Segment(f"   {flag:<{flags}}  ", _GIVEN if row.given else TEXT),
            Segment(f"{row.value[:values] or UNKNOWN:<{values}}  ", _GIVEN if row.given else BOLD),
            Segment(what, DIM),
        )
