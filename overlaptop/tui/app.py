"""The dashboard: reads the session often, draws seldom, and moves between screens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import ClassVar

from textual.app import SystemCommand
from textual.binding import Binding
from textual.screen import Screen

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.finished_session import FinishedSession
from overlaptop.fleet.session import Session
from overlaptop.launch.request import LaunchRequest
from overlaptop.report.hosts import is_there
from overlaptop.tui.capture.captures import refusal
from overlaptop.tui.capture.profiler_reference import ProfilerReference, read_truth
from overlaptop.tui.draw.confirm import Confirm
from overlaptop.tui.job_app import JobApp
from overlaptop.tui.keys import APP_KEYS, TRACE_KEYS
from overlaptop.tui.options import MAX_REFRESH_HZ, TuiOptions
from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.tui.screen import DashboardScreen
from overlaptop.tui.tune.compared import Comparing
from overlaptop.tui.workloads.earlier import EarlierJob
from overlaptop.tui.workloads.started import Started

TICK_S, IDLE_TICK_S = 0.1, 0.25
"""How often the session is read while steps arrive, and when none have for a while."""


class OverlaptopApp(JobApp):
    """One job on the screen."""

    TITLE = "overlaptop"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS: ClassVar = [
        Binding(key.keys, key.action, key.words, priority="ctrl+c" in key.keys)
        for key in (*APP_KEYS, *TRACE_KEYS)
        if key.action != "command_palette"
    ]

    def __init__(
        self,
        session: Session,
        options: TuiOptions | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(session, options or TuiOptions(), clock_s)
        self.comparing = Comparing(clock_s)
        self.started = Started(self.options.starter, self.seen)
        self._watched: frozenset[int] | None = None
        self._tick_s = TICK_S

    def get_default_screen(self) -> Screen[object]:
        """The overview lies below all others."""
        return OverviewScreen(self.state)  # type: ignore[return-value]

    def on_mount(self) -> None:
        """Start to read and to draw."""
        if (lines := self.options.connections) is not None:
            # At once, and not at the next tick: by how long an answer took the hosts' clocks are known.
            asyncio.get_running_loop().add_reader(lines.fileno(), lines.receive)
        self._show()
        self.set_timer(self._tick_s, self._tick)
        self.set_interval(1 / min(MAX_REFRESH_HZ, max(0.1, self.options.refresh_hz)), self._show)

    def on_unmount(self) -> None:
        """The lines are closed after this."""
        if (lines := self.options.connections) is not None:
            asyncio.get_running_loop().remove_reader(lines.fileno())

    def _tick(self) -> None:
        """Read the session. Also while paused: what is not read would be dropped."""
        self.read()
        # Of other hosts a picture takes longer to put together, and their lines are read as they speak.
        quick = self.latest.fresh and self.options.connections is None
        self._tick_s = TICK_S if quick else min(IDLE_TICK_S, self._tick_s * 1.25)
        self.set_timer(self._tick_s, self._tick)

    def _show(self) -> None:
        """Draw the newest snapshot, unless the picture is held still."""
        if not self.screen_stack:
            return  # a last tick while the app closes
        if self.state.paused_at_ns is None:
            self._take_in()
        else:
            self.state.paused_now_ns = self.latest.at_ns
        self._follow_the_start()
        self._find_the_way()
        self._watch()
        self._look_at_captures()
        if isinstance(self.screen, DashboardScreen):
            self.screen.redraw()

    def _take_in(self) -> None:
        """All that is drawn is of one moment."""
        state, control = self.state, self.control
        state.show(self.latest)
        state.hand = control.changing.selected(self.latest)
        state.change, state.newest_change = control.change, control.newest_change
        state.change_is_news = control.change_is_news
        state.searching = control.who_searches(self.latest)
        earlier = self.seen.earlier
        present = self.seen.present if earlier is not None else None
        state.compared = self.comparing.take(state.snapshot, earlier, present)

    def show_now(self) -> None:
        """After something was asked for: what has become of it so far."""
        self._show()

    def show_chosen(self) -> None:
        """After another rank was chosen: ask for its timeline and draw."""
        self._watch()
        if isinstance(self.screen, DashboardScreen):
            self.screen.redraw()

    def _watch(self) -> None:
        """Ask for the chosen rank's timeline; for all while a search of ours fits its model to them."""
        chosen = self.state.chosen
        wanted = frozenset({chosen.rank} if chosen else ())
        if self.control.needs_timelines:
            from overlaptop.models.bucket_sizes import MOST_WATCHED

            if len(self.latest.ranks) <= MOST_WATCHED:
                wanted = frozenset(view.rank for view in self.latest.ranks)
        if wanted != self._watched:
            self._watched = wanted
            self.session.watch(wanted)

    def _follow_the_start(self) -> None:
        """Turn to the job that was started as soon as it is there; say so if it failed."""
        from overlaptop.tui.workloads.screen import WorkloadsScreen

        if key := self.started.look(self.session):
            if key != self.session.job_key:
                self._turn_to(key)
            elif isinstance(self.screen, WorkloadsScreen):
                self.action_overview()
        news = self.started.news()
        if news and not isinstance(self.screen, WorkloadsScreen):
            self.notify(f"{news} (w: more)", severity="error", timeout=10, markup=False)

    def _find_the_way(self) -> None:
        """Where there is no job to be seen, or a choice of jobs, the list comes up by itself; and it goes
        when there is.
        """
        from overlaptop.tui.jobs.screen import JobsScreen

        top = self.screen
        if self.state.snapshot.job is None:
            if isinstance(top, OverviewScreen) and self.session.job_key is None:
                self.push_screen(JobsScreen(self.state, self.session.job_key))
        elif isinstance(top, JobsScreen) and top.opened_at != self.session.job_key:
            self.pop_screen()

    def open_job(self, key: str) -> None:
        """Turn to another job of this machine, as the user asked."""
        self.started.turned_elsewhere()
        self._turn_to(key)

    def _turn_to(self, key: str) -> None:
        self.session.select(key)
        self._watched = None
        self.go_on()
        self.read()
        self.action_overview()
        self._show()

    async def start(self, order: LaunchRequest) -> str:
        """Start a workload, and turn to it, in place of the one that was started here before. Returns why
        that cannot be, empty: it is on its way.
        """
        starter = self.options.starter
        if starter is None or self.options.readonly:
            return "this dashboard starts nothing"
        plan = await asyncio.to_thread(starter.plan, order)
        if not plan.fault:
            self.started.start(plan)
            self._show()
        return plan.fault

    async def ask_to_start(
        self, order: LaunchRequest, start: Callable[[LaunchRequest], Awaitable[None]]
    ) -> None:
        """Start a workload; ask first where that ends the one that was started here before."""
        starter = self.options.starter

        async def go() -> None:
            self.screen.run_worker(partial(start, order), group="start", exclusive=True)

        if starter is not None and starter.running:
            await self.ask(Confirm(f"end {starter.running} and start {order.label}?", go))
        else:
            await go()

    # Commands

    def truth_of(self, capture: CommandView) -> ProfilerReference | None:
        """What a capture's traces say, as far as that is known."""
        return self.captures.truths.get(capture.id)

    def _look_at_captures(self) -> None:
        """Have the traces read once all are written: of captures asked for here, or looked at."""
        from overlaptop.tui.capture.screen import CaptureScreen

        for capture in self.captures.turned_away(self.latest.commands):
            self.notify(f"{capture.words} was not made: {capture.reason}", markup=False)
        looked_at = isinstance(self.screen, CaptureScreen)
        for capture in self.captures.to_read(self.latest.commands, looked_at=looked_at):
            self.run_worker(self._read_truth(capture), exit_on_error=False)

    async def _read_truth(self, capture: CommandView) -> None:
        elsewhere = any(is_there(view.node) for view in self.latest.ranks)
        self.captures.truths[capture.id] = await read_truth(capture, elsewhere=elsewhere)
        self._show()

    # Screens

    def action_overview(self) -> None:
        """Close all that lies above it."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.show_chosen()

    def action_close(self) -> None:
        """Back to the screen below."""
        if len(self.screen_stack) > 1:
            self.pop_screen()

    async def action_rank(self) -> None:
        """Open the chosen rank."""
        from overlaptop.tui.rank.screen import RankScreen

        if self.state.chosen is not None and not isinstance(self.screen, RankScreen):
            self.action_overview()
            await self.push_screen(RankScreen(self.state))

    async def action_capture(self) -> None:
        """Ask for a capture."""
        from overlaptop.tui.capture.screen import CaptureScreen

        if self.state.snapshot.job is None:
            return
        if why := refusal(self.latest):
            self.notify(f"no capture: {why}", markup=False)
        elif isinstance(self.screen, CaptureScreen):
            await self.screen.ask()
        else:
            self.action_overview()
            await self.push_screen(CaptureScreen(self.state, asks=True))

    async def action_captures(self) -> None:
        """The newest capture."""
        from overlaptop.tui.capture.screen import CaptureScreen

        if isinstance(self.screen, CaptureScreen):
            self.pop_screen()
        elif self.state.snapshot.job is not None:
            await self.push_screen(CaptureScreen(self.state, asks=False))

    async def action_machine(self) -> None:
        """The machine under the chosen rank."""
        from overlaptop.tui.machine.screen import MachineScreen

        if isinstance(self.screen, MachineScreen):
            self.pop_screen()
        elif self.state.snapshot.job is not None:
            self.action_overview()
            await self.push_screen(MachineScreen(self.state))

    async def action_help(self) -> None:
        """Keys and words."""
        from overlaptop.tui.help.screen import HelpScreen

        if isinstance(self.screen, HelpScreen):
            self.pop_screen()
        elif isinstance(self.screen, DashboardScreen):
            await self.push_screen(HelpScreen(self.state, self.screen.title_in_help))

    async def action_notices(self) -> None:
        """What agents said."""
        from overlaptop.tui.help.screen import NoticesScreen

        await self._toggle(NoticesScreen)

    async def action_hosts(self) -> None:
        """The lines to other hosts."""
        from overlaptop.tui.hosts.screen import HostsScreen

        if self.state.snapshot.nodes:
            await self._toggle(HostsScreen)
        else:
            self.notify("only this machine is watched; others are: overlaptop HOST ...", timeout=3)

    async def action_jobs(self) -> None:
        """The list of jobs."""
        from overlaptop.tui.jobs.screen import JobsScreen

        if not isinstance(self.screen, JobsScreen):
            await self.push_screen(JobsScreen(self.state, self.session.job_key))

    async def action_workloads(self) -> None:
        """Workloads with their options, and what was tried."""
        from overlaptop.tui.workloads.screen import WorkloadsScreen

        starter = self.options.starter
        if starter is None:
            self.notify("no workload can be started from here", timeout=3)
        elif not isinstance(self.screen, WorkloadsScreen):
            self.clear_notifications()  # it says at more length how a job ended
            await self.push_screen(WorkloadsScreen(self.state, starter))

    @property
    def earlier(self) -> EarlierJob | None:
        """The newest other job that was watched, to compare the present one with."""
        return self.seen.earlier

    async def _toggle(self, kind: type[DashboardScreen]) -> None:
        if isinstance(self.screen, kind):
            self.pop_screen()
        else:
            await self.push_screen(kind(self.state))

    async def action_tune(self) -> None:
        """All knobs."""
        from overlaptop.tui.tune.screen import TuneScreen

        if isinstance(self.screen, TuneScreen):
            self.pop_screen()
        elif self.state.snapshot.job is not None:
            self.action_overview()
            await self.push_screen(TuneScreen(self.state))

    async def action_search(self) -> None:
        """The search for the best value; once more stops one of this dashboard."""
        from overlaptop.tui.search.screen import SearchScreen

        if isinstance(self.screen, SearchScreen):
            await self.screen.again()
        elif self.state.snapshot.job is not None:
            self.action_overview()
            await self.push_screen(SearchScreen(self.state))

    def action_turn(self, steps: int) -> None:
        """Another step of the trace, or the whole of it."""
        if isinstance(self.session, FinishedSession):
            self.session.turn(steps)
            self.read()
            self._show()

    # The look

    def action_pause(self) -> None:
        """Hold the picture still, or let it go on."""
        if self.state.paused_at_ns is not None:
            self.go_on()
        else:
            self.state.paused_at_ns = self.state.paused_now_ns = self.latest.at_ns
        self._show()

    def action_textures(self) -> None:
        """Glyphs besides colours; always so where there are none."""
        self.state.textured = not self.state.textured or self.plain or self.options.ascii
        self.redraw_everything()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the command palette offers: this app's keys by their words."""
        del screen
        for key in APP_KEYS:
            if key.action != "command_palette" and self.check_action(key.action, ()):
                yield SystemCommand(
                    key.action.replace("_", " "), key.words, getattr(self, f"action_{key.action}")
                )
        for name in self.themes:
            yield SystemCommand(f"theme {name}", "change the colours", lambda n=name: self.set_theme(n))
