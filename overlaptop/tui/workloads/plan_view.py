"""What enter would do: what it ends, what it leaves alone and the command line that it runs."""

from __future__ import annotations

from overlaptop.launch.request import LaunchPhase
from overlaptop.text import printable
from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.draw.segments import (
    DIM,
    KEY,
    TEXT,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    crop,
    paragraph,
    wrap,
)
from overlaptop.tui.view import JobView
from overlaptop.tui.workloads.form import FormState

_COMMAND_ROWS, _EFFECT_ROWS, _FAULT_ROWS = 3, 3, 6


class PlanView(JobView):
    """A line of words, or two, then the command line."""

    fades = False

    def __init__(self, dashboard: Dashboard, form: FormState) -> None:
        super().__init__(dashboard)
        self._form = form

    def full_height(self, width: int) -> int:
        """Lines that it would fill at this width."""
        return len(self._paragraphs(width))

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """The most important ones come first."""
        return [crop(line, width) for line in self._paragraphs(width)[:height]]

    def _paragraphs(self, width: int) -> list[StyledLine]:
        plan, status = self._form.plan, self.dashboard.launch.status
        if status.phase is LaunchPhase.ENDING:
            return paragraph(
                f"{self.dashboard.launch.message} …", width, TextStyle("warning", bold=True), rows=2
            )
        lost = self.dashboard.launch.message if status.phase is LaunchPhase.UNKNOWN else ""
        unknown = paragraph(lost, width, TextStyle("warning", bold=True), rows=2)
        if plan is None:
            return [(Segment(" looking at the machine …", DIM),)]
        if plan.fault:
            fault = paragraph(printable(plan.fault), width, TextStyle("error", bold=True), rows=_FAULT_ROWS)
            return [*unknown, *fault]
        # Why a job ended is said where its last lines are.
        text = self.dashboard.launch.message if status.phase is LaunchPhase.RUNNING else ""
        lines = unknown or paragraph(text, width, TextStyle("warning", bold=True), rows=2)
        items = [Item((Segment(" enter ", KEY),)), *self._effects()]
        lines += [(Segment(" "), *line) for line in wrap(items, width - 2, _EFFECT_ROWS, " ")]
        return [
            *lines,
            *paragraph(printable(plan.command_line), width, TextStyle("accent"), rows=_COMMAND_ROWS),
        ]

    def _effects(self) -> list[Item]:
        """Word by word."""
        launcher = self.dashboard.options.launcher
        if launcher is None:
            return []
        running = launcher.running
        others = [job.script for job in self.dashboard.session.jobs if not launcher.owns(job)]
        effects = f"ends {running}, then runs" if running else "runs"
        if self._form.host:
            effects += f" on {self._form.host}"
        items = [Item((Segment(word, TEXT),)) for word in printable(effects).split()]
        if others:
            names, goes = ", ".join(dict.fromkeys(others)), "goes" if len(others) == 1 else "go"
            words = f"({names}, not started here, {goes} on beside it)"
            items += [Item((Segment(word, DIM),)) for word in printable(words).split()]
        return items
