"""What the form shows: the workloads, the options of one, what enter would do, and the job's last lines."""

from __future__ import annotations

import textwrap

from textual import events

from overlaptop.launch.request import LaunchPhase, LaunchStatus
from overlaptop.text import UNKNOWN, printable
from overlaptop.tui.draw.segments import (
    BOLD,
    KEY,
    TEXT,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    crop,
    dim,
    elided,
    fit,
    on,
    paragraph,
    wrap,
)
from overlaptop.tui.draw.table import scrolled
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.widgets.view import JobView, ScrollView
from overlaptop.tui.workloads.form import FormState, OptionRow

_GIVEN = TextStyle("accent", bold=True)
_WIDEST_VALUE = 20
_COMMAND_ROWS, _EFFECT_ROWS, _FAULT_ROWS = 3, 3, 6
LONGEST_LINE = 500


class FormView(ScrollView):
    """A part of the form."""

    fades = False

    def __init__(self, dashboard: Dashboard, form: FormState) -> None:
        super().__init__(dashboard)
        self._form = form


class WorkloadList(FormView):
    """A line each: name and summary."""

    def draw(self, width: int, height: int) -> list[StyledLine]:
        shown = self._form.workloads
        self.first = scrolled(self.first, self._form.at, len(shown), height)
        end = min(self.first + height, len(shown))
        return [
            self._line(at, width, len(shown) - end if at == end - 1 else 0) for at in range(self.first, end)
        ]

    def _line(self, at: int, width: int, below: int) -> StyledLine:
        workload, cursor = self._form.workloads[at], at == self._form.at
        items = [Item((bold(f"{workload.name:<17}"),)), Item((dim(workload.summary),))]
        more = [Item((dim(f" {below} more below"),))] if below else []
        line = (
            Segment(" ▸ " if cursor else "   ", TextStyle("accent", bold=True)),
            *fit(items, more, width - 3, " "),
        )
        return on(line, "cursor") if cursor else line

    async def on_click(self, event: events.Click) -> None:
        at = self.first + event.y
        if at < len(self._form.workloads):
            await self.screen.run_action(f"screen.move({at - self._form.at})")


class OptionList(FormView):
    """A title, then a line each; those that were typed stand out."""

    @property
    def full_height(self) -> int:
        return 1 + len(self._form.workload.options)

    def draw(self, width: int, height: int) -> list[StyledLine]:
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
        return elided((bold(f" options of {name}"), dim(place), dim(hidden)), width)

    def _line(self, row: OptionRow, flags: int, values: int) -> StyledLine:
        option = row.option
        flag = option.shown if len(option.shown) <= flags else option.flag
        what = option.what
        if row.given and row.default and row.default != row.value:
            what = f"{what}; default {row.default}"
        return (
            Segment(f"   {flag:<{flags}}  ", _GIVEN if row.given else TEXT),
            Segment(f"{row.value[:values] or UNKNOWN:<{values}}  ", _GIVEN if row.given else BOLD),
            dim(what),
        )


class PlanView(FormView):
    """A line of words, or two, then the command line."""

    def full_height(self, width: int) -> int:
        return len(self._paragraphs(width))

    def draw(self, width: int, height: int) -> list[StyledLine]:
        return [crop(line, width) for line in self._paragraphs(width)[:height]]

    def _paragraphs(self, width: int) -> list[StyledLine]:
        plan, phase = self._form.plan, self.dashboard.launch.status.phase
        message, warning = self.dashboard.launch.message, TextStyle("warning", bold=True)
        if phase is LaunchPhase.ENDING:
            return paragraph(f"{message} …", width, warning, rows=2)
        if plan is None:
            return [(dim(" looking at the machine …"),)]
        if plan.fault:
            return paragraph(printable(plan.fault), width, TextStyle("error", bold=True), rows=_FAULT_ROWS)
        # Why a job ended stands with its last lines.
        runs = phase is LaunchPhase.RUNNING
        lines = paragraph(message, width, warning, rows=2) if runs else []
        items = [Item((Segment(" enter ", KEY),)), *self._effects()]
        lines += [(Segment(" "), *line) for line in wrap(items, width - 2, _EFFECT_ROWS, " ")]
        return [
            *lines,
            *paragraph(printable(plan.command_line), width, TextStyle("accent"), rows=_COMMAND_ROWS),
        ]

    def _effects(self) -> list[Item]:
        launcher = self.dashboard.options.launcher
        if launcher is None:
            return []
        running = launcher.running
        others = [job.script for job in self.dashboard.session.jobs if not launcher.owns(job)]
        effects = f"ends {running}, then runs" if running else "runs"
        items = [Item((Segment(word, TEXT),)) for word in printable(effects).split()]
        if others:
            names, goes = ", ".join(dict.fromkeys(others)), "goes" if len(others) == 1 else "go"
            words = f"({names}, not started here, {goes} on beside it)"
            items += [Item((dim(word),)) for word in printable(words).split()]
        return items


class JobOutput(JobView):
    """A title, then its last lines, the newest at the foot unless one has scrolled back."""

    fades = False
    _back = 0
    """Lines below the foot."""

    def full_height(self, width: int) -> int:
        """Lines that it would fill, roughly; 0: there are none."""
        launcher, status = self.dashboard.options.launcher, self.dashboard.launch.status
        if launcher is None or status.phase in (LaunchPhase.NOTHING, LaunchPhase.ENDING):
            return 0
        lines = len(launcher.output())
        return len(_title(status, width)) + lines if lines or status.failed else 0

    def draw(self, width: int, height: int) -> list[StyledLine]:
        launcher, status = self.dashboard.options.launcher, self.dashboard.launch.status
        if launcher is None:
            return []
        lines = [
            part
            for line in launcher.output()
            for part in textwrap.wrap(
                printable(line.expandtabs(4))[:LONGEST_LINE], max(16, width - 4), drop_whitespace=False
            )
            or [""]
        ]
        title = _title(status, width)
        below = max(0, height - len(title))
        self._back = max(0, min(self._back, len(lines) - below))
        end = len(lines) - self._back
        style = TextStyle("error") if status.failed else TEXT
        if below and (end < len(lines) or end > below):
            place = dim(f"  lines {max(0, end - below) + 1}–{end} of {len(lines)}")
            title = [*title[:-1], elided((*title[-1], place), width)]
        return [
            *title,
            *(crop((Segment(f"   {line}", style),), width) for line in lines[max(0, end - below) : end]),
        ]

    def move(self, lines: int) -> None:
        self._back = max(0, self._back - lines)
        self.redraw()


def _title(status: LaunchStatus, width: int) -> list[StyledLine]:
    """How it ended: of a job that could not even be started, that is all there is."""
    if status.phase is not LaunchPhase.OVER:
        return [elided((bold(" what it wrote last"),), width)]
    style = TextStyle("error" if status.failed else "bright", bold=True)
    return paragraph(printable(f"{status.label} ended: {status.how}"), width, style, rows=4)
