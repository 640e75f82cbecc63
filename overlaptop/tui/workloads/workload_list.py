"""The workloads that can be run, with a cursor."""

from __future__ import annotations

from textual import events
from textual.message import Message

from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.draw.segments import BOLD, DIM, Item, Segment, StyledLine, TextStyle, fit, on
from overlaptop.tui.view import JobView
from overlaptop.tui.workloads.form import FormState


class WorkloadList(JobView):
    """A line each: name and summary."""

    fades = False

    class WorkloadChosen(Message):
        """A line was clicked."""

        def __init__(self, at: int) -> None:
            super().__init__()
            self.at = at

    def __init__(self, dashboard: Dashboard, form: FormState) -> None:
        super().__init__(dashboard)
        self._form = form
        self._first = 0

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """As many as fit, that under the cursor among them."""
        shown = self._form.workloads
        last = max(0, len(shown) - height)
        self._first = min(max(self._first, self._form.at - height + 1), self._form.at, last)
        return [self._line(at, width) for at in range(self._first, min(self._first + height, len(shown)))]

    def _line(self, at: int, width: int) -> StyledLine:
        workload, cursor = self._form.workloads[at], at == self._form.at
        items = [Item((Segment(f"{workload.name:<17}", BOLD),)), Item((Segment(workload.summary, DIM),))]
        line = (
            Segment(" ▸ " if cursor else "   ", TextStyle("accent", bold=True)),
            *fit(items, [], width - 3, " "),
        )
        return on(line, "cursor") if cursor else line

    def on_click(self, event: events.Click) -> None:
        """Choose."""
        at = self._first + event.y
        if at < len(self._form.workloads):
            self.post_message(self.WorkloadChosen(at))
