"""The form of a launch request, and its views: the workloads, the selected one's options, the effect of
enter, and the job's last lines.
"""

import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from textual import events

from overlaptop.fleet.records import BOUNDS
from overlaptop.launch.request import LaunchPhase, LaunchPlan, LaunchRequest
from overlaptop.text import UNKNOWN, bounded, count, duration, percent, printable
from overlaptop.tui.draw.layout import Item, crop, elided, fit, paragraph, wrap
from overlaptop.tui.draw.segments import BOLD, KEY, TEXT, Segment, StyledLine, TextStyle, bold, dim, on
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.earlier import EarlierJob
from overlaptop.tui.widgets.view import JobView, LinesView, Page, RowList
from overlaptop.workloads.catalog import Workload
from overlaptop.workloads.options import Option, value_text

_JOB = "watched so far, newest first"
_COLUMNS = (
    Column(_JOB, 16, right=False),
    Column("changed", 8, right=False),
    Column("steps", 7, shown_from=100),
    Column("step time", 9, shown_from=80),
    Column("overlap", 8),
    Column("exposed", 8, shown_from=90),
    Column("", 10, right=False),
)
_GIVEN = TextStyle("accent", bold=True)
_WIDEST_VALUE = 20
LONGEST_LINE = 500


class OptionRow(NamedTuple):
    """An option in the list."""

    option: Option
    value: str
    given: bool
    """True if the value was typed, else it is the default."""
    default: str


@dataclass
class FormState:
    """Written by the screen's actions, read by its widgets."""

    workload: Workload
    typed: dict[str, str] = field(default_factory=dict)
    """Typed options by workload: they stay when another workload is selected."""
    nproc: str = ""
    plan: LaunchPlan | None = None
    """The plan for the typed text; None until it is known."""

    @classmethod
    def beginning_with(cls, workloads: Sequence[Workload], request: LaunchRequest | None) -> "FormState":
        """Return a form filled with that request, so that the user can change one value."""
        named = {workload.name: workload for workload in workloads}
        if request is None or request.workload not in named:
            return cls(workloads[0])
        nproc = "" if request.nproc is None else str(request.nproc)
        return cls(named[request.workload], {request.workload: shlex.join(request.options)}, nproc)

    @property
    def words(self) -> tuple[str, str, str]:
        """The arguments of LaunchRequest.parse."""
        return self.workload.name, self.typed.get(self.workload.name, ""), self.nproc

    def rows(self) -> list[OptionRow]:
        """Return the options with their values; without a plan, the defaults on a CPU."""
        plan = self.plan if self.plan is not None and not self.plan.fault else None
        where, given = (plan.defaults, plan.given) if plan is not None else ("cpu", {})
        found = []
        for option in self.workload.options:
            default = option.default_on(where)
            value = given.get(option.name, default)
            texts = ["" if each is None else value_text(each) for each in (value, default)]
            found.append(OptionRow(option, texts[0], option.name in given, texts[1]))
        return found


class Title(JobView):
    """The purpose of this screen, and the running job."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        running = self.dashboard.running
        runs = Item((Segment(f"{running} runs, started here ", TextStyle("live")),), 1)
        name = Item((Segment(" overlaptop", TextStyle("accent", bold=True)), dim("   run a workload")))
        return [fit([name], [runs] if running else [], width)]


class WorkloadList(RowList[Workload]):
    """A line per workload: name and summary."""

    fades = False
    above = 0

    def __init__(self, dashboard: Dashboard, workloads: Sequence[Workload], form: FormState) -> None:
        super().__init__(dashboard)
        self._workloads, self.cursor = workloads, form.workload.name

    def full_height(self, width: int) -> int:  # noqa: ARG002
        return len(self._workloads)

    @property
    def rows(self) -> Sequence[Workload]:
        return self._workloads

    def key(self, row: Workload) -> object:
        return row.name

    def draw(self, width: int, height: int) -> list[StyledLine]:
        def line(workload: Workload, selected: bool) -> StyledLine:
            mark = Segment(" ▸ " if selected else "   ", TextStyle("accent", bold=True))
            words = elided((mark, bold(f"{workload.name:<17} "), dim(workload.summary)), width)
            return on(words, "cursor") if selected else words

        return self.listed(self._workloads, height, line)

    async def on_click(self, event: events.Click) -> None:
        await super().on_click(event)
        await self.screen.run_action("screen.move(0)")


class OptionList(Page):
    """A title, then a line per option; typed ones are highlighted."""

    counts_rest = False

    def __init__(self, dashboard: Dashboard, form: FormState) -> None:
        super().__init__(dashboard)
        self._form = form

    def full_height(self, width: int) -> int:  # noqa: ARG002
        return 1 + len(self._form.workload.options)

    def draw(self, width: int, height: int) -> list[StyledLine]:
        shown, count = super().draw(width, height - 1), len(self._form.workload.options)
        plan = self._form.plan
        place = f"  on {plan.place}" if plan is not None and plan.place else ""
        hidden = f"  {self.first + 1}–{self.first + len(shown)} of {count}" if len(shown) < count else ""
        name = bold(f" options of {self._form.workload.name}")
        return [elided((name, dim(place), dim(hidden)), width), *shown]

    def lines(self, width: int) -> list[StyledLine]:
        rows = self._form.rows()
        flags = max(len(row.option.shown) for row in rows)
        if flags + 40 > width:
            flags = max(len(row.option.flag) for row in rows)
        values = min(_WIDEST_VALUE, max(7, *(len(row.value) for row in rows)))
        lines = []
        for row in rows:
            option, what = row.option, row.option.what
            flag = option.shown if len(option.shown) <= flags else option.flag
            if row.given and row.default and row.default != row.value:
                what = f"{what}; default {row.default}"
            named = Segment(f"   {flag:<{flags}}  ", _GIVEN if row.given else TEXT)
            value = Segment(f"{row.value[:values] or UNKNOWN:<{values}}  ", _GIVEN if row.given else BOLD)
            lines.append(elided((named, value, dim(what)), width))
        return lines


class PlanView(LinesView):
    """The effect of enter and the command line, or why nothing can run."""

    fades = False

    def __init__(self, dashboard: Dashboard, form: FormState) -> None:
        super().__init__(dashboard)
        self._form = form

    def lines(self, width: int) -> list[StyledLine]:
        plan, phase = self._form.plan, self.dashboard.launch.status.phase
        message, warning = self.dashboard.launch.message, TextStyle("warning", bold=True)
        if phase is LaunchPhase.ENDING:
            return paragraph(f"{message} …", width, warning, rows=2)
        if plan is None:
            return [(dim(" looking at the machine …"),)]
        if plan.fault:
            return paragraph(printable(plan.fault), width, TextStyle("error", bold=True), rows=6)
        # The reason why a job ended is shown with its last lines.
        lines = paragraph(message, width, warning, rows=2) if phase is LaunchPhase.RUNNING else []
        items = [Item((Segment(word, TEXT),)) for word in printable(self._effects()).split()]
        effects = wrap([Item((Segment(" enter ", KEY),)), *items], width - 2, 3, " ")
        lines += [(Segment(" "), *line) for line in effects]
        return [*lines, *paragraph(printable(plan.command_line), width, TextStyle("accent"), rows=3)]

    def _effects(self) -> str:
        launcher, running = self.dashboard.options.launcher, self.dashboard.running
        jobs = [job for job in self.dashboard.session.jobs if not job.ended]
        others = [job.script for job in jobs if launcher and not launcher.owns(job)]
        effects = f"ends {running}, then runs" if running else "runs"
        if others:
            names, goes = ", ".join(dict.fromkeys(others)), "goes" if len(others) == 1 else "go"
            effects += f" ({names}, not started here, {goes} on beside it)"
        return effects


class JobOutput(Page):
    """How the job ended, and its last lines, newest last."""

    def full_height(self, width: int) -> int:
        """Return the height: 0 if the job wrote nothing."""
        status = self.dashboard.launch.status
        self.set_class(status.failed, "-failed")
        if not status.failed:
            self.first = sys.maxsize  # a failed job's lines can be scrolled
        if status.phase in (LaunchPhase.NOTHING, LaunchPhase.ENDING):
            return 0
        lines = len(self.lines(width))
        return len(self._title(width)) + lines if lines or status.failed else 0

    def draw(self, width: int, height: int) -> list[StyledLine]:
        title = self._title(width)
        return [*title, *super().draw(width, max(0, height - len(title)))]

    def lines(self, width: int) -> list[StyledLine]:
        launcher = self.dashboard.options.launcher
        style = TextStyle("error") if self.dashboard.launch.status.failed else TEXT
        written = launcher.output() if launcher is not None else ()
        texts = (printable(line.expandtabs(4))[:LONGEST_LINE] for line in written)
        space = max(16, width - 4)
        parts = (
            part for text in texts for part in textwrap.wrap(text, space, drop_whitespace=False) or [""]
        )
        return [crop((Segment(f"   {part}", style),), width) for part in parts]

    def _title(self, width: int) -> list[StyledLine]:
        """Return how the job ended, or why it did not start."""
        status = self.dashboard.launch.status
        if status.phase is not LaunchPhase.OVER:
            return [elided((bold(" its last lines"),), width)]
        style = TextStyle("error" if status.failed else "bright", bold=True)
        return paragraph(printable(f"{status.label} ended: {status.how}"), width, style, rows=4)


class TriedTable(JobView):
    """A line for each job and setting of its knobs."""

    fades = False

    def full_height(self, width: int) -> int:  # noqa: ARG002
        jobs = len(self.dashboard.jobs_seen.all)
        return 1 + jobs if jobs else 0

    def draw(self, width: int, height: int) -> list[StyledLine]:
        jobs = self.dashboard.jobs_seen.all[::-1][: max(0, height - 1)]
        words = {
            "": [job.how for job in jobs],
            "changed": map(_changed, jobs),
            _JOB: [_JOB, *(job.label for job in jobs)],
        }
        table, present = Table(_COLUMNS, width, words), self.dashboard.jobs_seen.present
        return [table.header(), *(table.row(_cells(job), cursor=job == present) for job in jobs)]


def _cells(job: EarlierJob) -> tuple[StyledLine, ...]:
    overlap = bounded(percent(job.overlap), BOUNDS["overlap"], exact=job.exact)
    return (
        (Segment(printable(job.label), BOLD if job.how == "runs" else TEXT),),
        (Segment(printable(_changed(job)), TextStyle("accent")),),
        (Segment(count(job.steps_done or None)),),
        (Segment(duration(job.step_ns)),),
        (Segment(overlap),),
        (Segment(duration(job.exposed_ns)),),
        (dim(job.how),),
    )


def _changed(job: EarlierJob) -> str:
    return ", ".join(setting.words for setting in job.settings if setting.changed)
