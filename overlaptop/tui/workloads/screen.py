"""Start a workload with options; the history of runs; and why a job did not start."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar

from overlaptop.launch.request import LaunchError, LaunchPhase, LaunchPlan, LaunchRequest
from overlaptop.tui.help.glossary import WORKLOADS
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import WORKLOADS_KEYS, bindings
from overlaptop.tui.widgets.prompt import Confirm
from overlaptop.tui.widgets.screen import DashboardScreen
from overlaptop.tui.workloads.views import (
    FormState,
    JobOutput,
    OptionList,
    PlanView,
    TriedTable,
    WorkloadList,
)


class WorkloadsScreen(DashboardScreen):
    """Text goes to the options at once; the arrows choose the workload."""

    title_in_help = WORKLOADS
    BINDINGS: ClassVar = bindings(WORKLOADS_KEYS)

    def __init__(self, dashboard: Dashboard) -> None:
        """The dashboard must have a launcher."""
        launcher = dashboard.options.launcher
        assert launcher is not None
        self._launcher = launcher
        self._form = FormState.beginning_with(launcher.workloads, launcher.status().request)
        self._words_started = self._form.words
        self._options, self._output = OptionList(dashboard, self._form), JobOutput(dashboard)
        self._workloads = WorkloadList(dashboard, launcher.workloads, self._form)
        # Textual's Input takes 20 ms to import: not before it is needed.
        from overlaptop.tui.workloads.option_input import OptionInput

        self._input = OptionInput(self._form, self._replan, self.action_run)
        super().__init__(
            dashboard,
            self._workloads,
            self._options,
            TriedTable(dashboard),
            self._output,
            PlanView(dashboard, self._form),
            self._input,
        )

    @property
    def edited(self) -> bool:
        """Return whether the typed request differs from the last one started."""
        return self._form.words != self._words_started

    def on_mount(self) -> None:
        super().on_mount()
        self._replan()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "end" and not self._launcher.running:
            return False
        return super().check_action(action, parameters)

    def action_move(self, rows: int) -> None:
        self._workloads.move(rows)
        if (workload := self._workloads.selected) is not None:
            self._form.workload, self._form.plan = workload, None
        self._options.first = 0
        self._input.show_form()
        self._replan()

    def action_other_field(self) -> None:
        self._input.action_other_field()

    def action_scroll(self, lines: int) -> None:
        """Scroll a failed job's output, else the options."""
        if self.dashboard.launch.status.failed:
            self._output.move(lines)
        else:
            self._options.move(lines)

    async def action_end(self) -> None:
        if running := self._launcher.running:
            await self.ask(Confirm(f"end {running}?", self._end))

    async def _end(self) -> None:
        self._launcher.stop()

    async def action_run(self) -> None:
        """Run it; ask first if it ends another one."""
        await self._make_plan()
        plan, status = self._form.plan, self._launcher.status()
        if plan is None or plan.fault:
            return  # already on the screen
        request = plan.request
        if status.phase is LaunchPhase.ENDING and status.request == request:
            return
        if running := self.dashboard.running:
            asked = f"end {running} and start {request.label}?"
            await self.ask(Confirm(asked, partial(self._start, plan)))
        else:
            await self._start(plan)

    async def _start(self, plan: LaunchPlan) -> None:
        self._words_started = self._form.words
        self.dashboard.launch.start(plan)

    def _replan(self) -> None:
        make: Callable[[], Awaitable[None]] = self._make_plan
        self.run_worker(make, group="plan", exclusive=True)

    async def _make_plan(self) -> None:
        try:
            request = LaunchRequest.parse(*self._form.words)
        except LaunchError as fault:
            plan = LaunchPlan(LaunchRequest(self._form.workload.name), str(fault))
        else:
            plan = await asyncio.to_thread(self._launcher.plan, request)
        self._form.plan = plan
        if self._input.is_mounted:
            self._input.show_place()
        self.redraw()
