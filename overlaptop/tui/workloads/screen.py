"""Which workload to run, with which options; what was tried so far; and why a job did not start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult

from overlaptop.launch.request import (
    JobLauncher,
    LaunchError,
    LaunchPhase,
    LaunchPlan,
    LaunchRequest,
)
from overlaptop.tui.draw.segments import Item, Segment, StyledLine, TextStyle, dim, fit
from overlaptop.tui.help.glossary import WORKLOADS
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import WORKLOADS_KEYS, bindings
from overlaptop.tui.widgets.key_bar import BACK_HINT, HELP_HINT, KeyBar
from overlaptop.tui.widgets.prompt import Confirm
from overlaptop.tui.widgets.screen import DashboardScreen, Heights
from overlaptop.tui.widgets.view import JobView
from overlaptop.tui.workloads.form import FormState
from overlaptop.tui.workloads.tried_table import TriedTable
from overlaptop.tui.workloads.views import JobOutput, OptionList, PlanView, WorkloadList

if TYPE_CHECKING:
    from overlaptop.tui.workloads.option_input import OptionInput

HINTS = (
    ("enter", "run", "screen.run", "run"),
    BACK_HINT,
    ("↑ ↓", "workload", "screen.move(1)", "choose"),
    ("tab", "processes", "screen.other_field", "procs"),
    ("F9", "end the job", "screen.end", "end"),
    HELP_HINT._replace(key="F1"),
    ("page down", "scroll", "screen.scroll(1)"),
)
_SCROLL_LINES = 4
_WORDS_RUNNING, _WORDS_FAILED = 6, 12
"""Lines for what a job wrote, of one that failed before all others have what they need."""


class _Title(JobView):
    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        running = self.dashboard.running
        runs = Item((Segment(f"{running} runs, started here ", TextStyle("live")),), 1)
        name = Item((Segment(" overlaptop", TextStyle("accent", bold=True)), dim("   run a workload")))
        return [fit([name], [runs] if running else [], width)]


class WorkloadsScreen(DashboardScreen):
    """Typing goes to the options at once; the arrows choose the workload."""

    title_in_help = WORKLOADS
    BINDINGS: ClassVar = bindings(WORKLOADS_KEYS)

    def __init__(self, dashboard: Dashboard, launcher: JobLauncher) -> None:
        super().__init__(dashboard)
        self._launcher = launcher
        self._form = FormState.beginning_with(launcher.workloads, launcher.status().request)
        self._words_started = self._form.words
        self._head = _Title(dashboard)
        self._workloads = WorkloadList(dashboard, self._form)
        self._options = OptionList(dashboard, self._form)
        self._tried = TriedTable(dashboard)
        self._output = JobOutput(dashboard)
        self._plan = PlanView(dashboard, self._form)
        self._keys = KeyBar(dashboard, HINTS, shows_change=False, offered=self._offered)
        self._input: OptionInput | None = None

    @property
    def edited(self) -> bool:
        """Whether another request is being written than the one that was started last."""
        return self._form.words != self._words_started

    def compose(self) -> ComposeResult:
        # Textual's Input takes 20 ms to import: not before it is needed.
        from overlaptop.tui.workloads.option_input import OptionInput

        yield self._head
        yield self._workloads
        yield self._options
        yield self._tried
        yield self._output
        yield self._plan
        self._input = OptionInput(self._form, self._replan, self.action_run)
        yield self._input
        yield self._keys

    def on_mount(self) -> None:
        self._replan()

    def heights(self, width: int, height: int) -> Heights:
        """The line to type in first, then what it would do; the lists share what is left."""
        airy = 1 if height >= 28 else 0
        foot = 1 if height >= 6 else 0
        title = 1 if height >= 10 else 0
        rest = max(0, height - 1 - foot - title)
        plan = min(self._plan.full_height(width), rest, max(1, height // 4))
        rest -= plan
        listed = min(len(self._form.workloads), max(min(rest, 3), rest * 2 // 5))
        rest = max(0, rest - listed - 5 * airy)

        failed = self.dashboard.launch.status.failed
        words_wanted = min(self._output.full_height(width), height if failed else _WORDS_RUNNING)
        tried_wanted, options_wanted = self._tried.full_height, self._options.full_height
        words = min(words_wanted, min(_WORDS_FAILED, rest // 2) if failed else rest // 5)
        words = words if words >= min(2, words_wanted) else 0
        tried = min(tried_wanted, (rest - words) // 3)
        tried = tried if tried >= 2 else 0
        options = min(options_wanted, rest - words - tried)
        left = rest - words - tried - options
        more = min(left, tried_wanted - tried) if tried else 0
        tried, left = tried + more, left - more
        more = min(left, words_wanted - words) if words else 0
        words, left = words + more, left - more
        return (
            (self._head, title, 0),
            (self._workloads, listed, airy),
            (self._options, options, airy),
            (self._tried, tried, airy if tried else 0),
            (self._output, words, airy if words else 0),
            (self._plan, plan, airy + left + airy * ((tried == 0) + (words == 0))),
            *(((self._input, 1, 0),) if self._input is not None else ()),
            (self._keys, foot, 0),
        )

    def _offered(self, action: str) -> bool:
        """A job can be ended where one runs that was started here."""
        return action != "screen.end" or bool(self._launcher.running)

    def action_move(self, rows: int) -> None:
        self._form.move(rows)
        self._turned()

    def action_other_field(self) -> None:
        if self._input is not None:
            self._input.action_other_field()

    def action_scroll(self, pages: int) -> None:
        """What a failed job wrote, else the options."""
        if self.dashboard.launch.status.failed and self._output.display:
            self._output.move(pages * _SCROLL_LINES)
        else:
            self._options.move(pages * _SCROLL_LINES)

    async def action_end(self) -> None:
        if running := self._launcher.running:
            await self.ask(Confirm(f"end {running}?", self._end))

    async def _end(self) -> None:
        self._launcher.stop()
        self.dashboard.on_change()

    async def action_run(self) -> None:
        """Run it; asks first where it ends another one."""
        status = self._launcher.status()
        try:
            request = self._form.request()
        except LaunchError:
            return  # shown already
        if self._form.plan is None or self._form.plan.request != request:
            await self._make_plan(request)  # enter came more quickly
        plan = self._form.plan
        if plan is not None and plan.request == request and plan.fault:
            return
        if status.phase is not LaunchPhase.ENDING or status.request != request:
            await self.ask_to_start(request, self._run)

    def _turned(self) -> None:
        self._options.first = 0
        if self._input is not None:
            self._input.show_form()
        self._replan()

    def _replan(self) -> None:
        try:
            request = self._form.request()
        except LaunchError as fault:
            self.workers.cancel_group(self, "plan")  # of what was typed before: it would replace the fault
            self._take(LaunchPlan(LaunchRequest(self._form.workload.name), str(fault)))
        else:
            # Not its coroutine: a quicker key cancels it before it begins, which would be warned of.
            make: Callable[[], Awaitable[None]] = partial(self._make_plan, request)
            self.run_worker(make, group="plan", exclusive=True)

    async def _make_plan(self, request: LaunchRequest) -> None:
        self._take(await asyncio.to_thread(self._launcher.plan, request))

    async def _run(self, request: LaunchRequest) -> None:
        self._words_started = self._form.words
        fault = await self.dashboard.start(request)
        if fault:
            self._take(LaunchPlan(request, fault))

    def _take(self, plan: LaunchPlan) -> None:
        self._form.plan = plan
        if self._input is not None and self._input.is_mounted:
            self._input.show_place()
        self.redraw()
