"""What enter would do: what it ends, what it leaves alone and the command line that it runs."""

from __future__ import annotations

from overlaptop.tui.draft import Draft
from overlaptop.tui.ink import DIM, KEY, TEXT, Ink, Item, Line, Run, crop, paragraph, wrap
from overlaptop.tui.starting import Phase
from overlaptop.tui.state import ViewState
from overlaptop.tui.text import printable
from overlaptop.tui.widgets.line_view import LineView

_COMMAND_ROWS, _EFFECT_ROWS, _FAULT_ROWS = 3, 3, 6


class PlanView(LineView):
    """A line of words, or two, then the command line."""

    fades = False

    def __init__(self, state: ViewState, draft: Draft) -> None:
        super().__init__(state)
        self._draft = draft

    def full_height(self, width: int) -> int:
        """Lines that it would fill at this width."""
        return len(self._paragraphs(width))

    def draw(self, width: int, height: int) -> list[Line]:
        """The most important ones come first."""
        return [crop(line, width) for line in self._paragraphs(width)[:height]]

    def _paragraphs(self, width: int) -> list[Line]:
        plan, status = self._draft.plan, self.dashboard.started.status
        if status.phase is Phase.ENDING:
            return paragraph(f"{self.dashboard.started.said} …", width, Ink("warning", bold=True), rows=2)
        lost = self.dashboard.started.said if status.phase is Phase.UNKNOWN else ""
        unknown = paragraph(lost, width, Ink("warning", bold=True), rows=2)
        if plan is None:
            return [(Run(" looking at the machine …", DIM),)]
        if plan.fault:
            fault = paragraph(printable(plan.fault), width, Ink("error", bold=True), rows=_FAULT_ROWS)
            return [*unknown, *fault]
        # Why a job ended is said where its last lines are.
        said = self.dashboard.started.said if status.phase is Phase.RUNNING else ""
        lines = unknown or paragraph(said, width, Ink("warning", bold=True), rows=2)
        items = [Item((Run(" enter ", KEY),)), *self._effects()]
        lines += [(Run(" "), *line) for line in wrap(items, width - 2, _EFFECT_ROWS, " ")]
        return [*lines, *paragraph(printable(plan.command_line), width, Ink("accent"), rows=_COMMAND_ROWS)]

    def _effects(self) -> list[Item]:
        """Word by word."""
        starter = self.dashboard.options.starter
        if starter is None:
            return []
        running = starter.running
        others = [job.script for job in self.dashboard.session.jobs if not starter.owns(job)]
        effects = f"ends {running}, then runs" if running else "runs"
        if self._draft.host:
            effects += f" on {self._draft.host}"
        items = [Item((Run(word, TEXT),)) for word in printable(effects).split()]
        if others:
            names, goes = ", ".join(dict.fromkeys(others)), "goes" if len(others) == 1 else "go"
            words = f"({names}, not started here, {goes} on beside it)"
            items += [Item((Run(word, DIM),)) for word in printable(words).split()]
        return items
