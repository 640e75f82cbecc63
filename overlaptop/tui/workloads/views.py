"""The form of a launch request, and its views: the workloads, the selected one's options, the effect of
enter, and the job's last lines.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from textual import events

from overlaptop.fleet.records import BOUNDS
from overlaptop.launch.request import LaunchPhase, LaunchPlan, LaunchRequest
from overlaptop.text import UNKNOWN, bounded, count, duration, percent, printable
from overlaptop.tui.draw.layout import elided, folded, hanging, paragraph, titled
from overlaptop.tui.draw.segments import BOLD, KEY, TEXT, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.earlier import EarlierJob
from overlaptop.tui.widgets.view import JobView, LinesView, Page, RowList
from overlaptop.workloads.catalog import Workload
from overlaptop.workloads.options import Option, value_text

_GIVEN = TextStyle("accent", bold=True)
_CHOICES_FROM = 120  # Width from which an option's choices are shown
LONGEST_LINE = 500


@dataclass
class FormState:
    """Written by the screen's actions, read by its widgets."""

    workload: Workload
    typed: dict[str, str] = field(default_factory=dict)
    """Typed options by workload: they stay when another workload is selected."""
    nproc: str = ""
    plan: LaunchPlan | None = None  # The plan for the typed text; None until it is known

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

    def value(self, option: Option) -> tuple[str, str, bool]:
        """Return an option's value and default, and whether it was typed. Without a plan: on a CPU."""
        plan = self.plan if self.plan is not None and not self.plan.fault else None
        default = option.default_on(plan.defaults if plan is not None else "cpu")
        given = plan.given if plan is not None else {}
        value, usual = given.get(option.name, default), "" if default is None else value_text(default)
        return "" if value is None else value_text(value), usual, option.name in given


class WorkloadList(RowList[Workload]):
    """A line per workload: name and summary."""

    fades = False
    above = 1

    def __init__(self, dashboard: Dashboard, workloads: Sequence[Workload], form: FormState) -> None:
        super().__init__(dashboard)
        self._workloads, self.cursor = workloads, form.workload.name

    def full_height(self, width: int) -> int:  # noqa: ARG002
        return self.above + len(self._workloads)

    @property
    def rows(self) -> Sequence[Workload]:
        return self._workloads

    def key(self, row: Workload) -> object:
        return row.name

    def draw(self, width: int, height: int) -> list[StyledLine]:
        table = Table(_WORKLOADS, width, self._workloads)
        return [titled("Workloads"), *self.listed(self._workloads, height - self.above, table.row)]

    async def on_click(self, event: events.Click) -> None:
        await super().on_click(event)
        await self.screen.run_action("screen.move(0)")


class OptionList(Page):
    """A line per option of the selected workload; typed ones are highlighted."""

    def __init__(self, dashboard: Dashboard, form: FormState) -> None:
        super().__init__(dashboard)
        self._form = form

    def full_height(self, width: int) -> int:  # noqa: ARG002
        return 1 + len(self._form.workload.options)

    def heading(self, width: int) -> list[StyledLine]:
        plan = self._form.plan
        place = f"  on {plan.place}" if plan is not None and plan.place else ""
        return [elided((bold(f" options of {self._form.workload.name}"), dim(place)), width)]

    def lines(self, width: int) -> list[StyledLine]:
        form, options = self._form, self._form.workload.options

        def flag(option: Option) -> Segment:
            words = option.shown if width >= _CHOICES_FROM else option.flag
            return Segment(words, _GIVEN if form.value(option)[2] else TEXT)

        def value(option: Option) -> Segment:
            words, _, given = form.value(option)
            return Segment(words or UNKNOWN, _GIVEN if given else BOLD)

        def what(option: Option) -> Segment:
            words, default, given = form.value(option)
            usual = f"; default {default}" if given and default not in ("", words) else ""
            return dim(option.what + usual)

        columns = [
            Column("", 7, flag, right=False, grows=True),
            Column("", 7, value, right=False, grows=True),
            Column("", 7, what, right=False, grows=True),
        ]
        return list(map(Table(columns, width, options).row, options))


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
        lines += hanging(
            (Segment(" "), Segment(" enter ", KEY), Segment(" ")), printable(self._effects()), width
        )
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
        status = self.dashboard.launch.status
        self.set_class(status.failed, "-failed")
        if not status.failed:
            self.first = sys.maxsize  # a failed job's lines can be scrolled
        if status.phase in (LaunchPhase.NOTHING, LaunchPhase.ENDING):
            return 0
        lines = len(self.lines(width))
        return len(self.heading(width)) + lines if lines or status.failed else 0

    def heading(self, width: int) -> list[StyledLine]:
        status = self.dashboard.launch.status
        if status.phase is not LaunchPhase.OVER:
            return [elided((bold(" its last lines"),), width)]
        style = TextStyle("error" if status.failed else "bright", bold=True)
        return paragraph(printable(f"{status.label} ended: {status.how}"), width, style, rows=4)

    def lines(self, width: int) -> list[StyledLine]:
        launcher = self.dashboard.options.launcher
        style = TextStyle("error") if self.dashboard.launch.status.failed else TEXT
        written = launcher.output() if launcher is not None else ()
        texts = (printable(line.expandtabs(4))[:LONGEST_LINE] for line in written)
        return [part for text in texts for part in folded(text, width, style) or [()]]


class TriedTable(JobView):
    """A line for each job and setting of its knobs."""

    fades = False

    def full_height(self, width: int) -> int:  # noqa: ARG002
        jobs = len(self.dashboard.jobs_seen.all)
        return 1 + jobs if jobs else 0

    def draw(self, width: int, height: int) -> list[StyledLine]:
        jobs = self.dashboard.jobs_seen.all[::-1][: max(0, height - 1)]
        table, present = Table(_TRIED, width, jobs), self.dashboard.jobs_seen.present
        return [table.header(), *(table.row(job, cursor=job == present) for job in jobs)]


def _changed(job: EarlierJob) -> str:
    return ", ".join(setting.words for setting in job.settings if setting.changed)


def _overlap(job: EarlierJob) -> str:
    return bounded(percent(job.overlap), BOUNDS["overlap"], exact=job.exact)


def _label(job: EarlierJob) -> Segment:
    return Segment(printable(job.label), BOLD if job.how == "runs" else TEXT)


_WORKLOADS: tuple[Column[Workload], ...] = (
    Column("", 16, lambda workload: bold(workload.name), right=False, grows=True),
    Column("", 20, lambda workload: dim(workload.summary), right=False, grows=True),
)
_TRIED: tuple[Column[EarlierJob], ...] = (
    Column("watched so far", 16, _label, right=False, grows=True),
    Column("changed", 8, lambda job: Segment(printable(_changed(job)), _GIVEN), right=False, grows=True),
    Column("steps", 7, lambda job: count(job.steps_done or None), shown_from=100),
    Column("step time", 9, lambda job: duration(job.step_ns), shown_from=80),
    Column("overlap", 8, _overlap),
    Column("exposed", 8, lambda job: duration(job.exposed_ns), shown_from=90),
    Column("", 10, lambda job: dim(job.how), right=False, grows=True),
)
