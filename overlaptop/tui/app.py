"""The app: timers, themes, keys and which screen is on top. What keys do to the job is the Dashboard's."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.screen import Screen
from textual.theme import BUILTIN_THEMES

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.job_session import READONLY
from overlaptop.fleet.past import slowest_step
from overlaptop.fleet.session import Session
from overlaptop.report.hosts import is_there
from overlaptop.tui.capture.screen import CaptureScreen
from overlaptop.tui.collectives.screen import CollectivesScreen
from overlaptop.tui.draw.themes import DARK, LIGHT, PALETTES, PLAIN, Look, Styles
from overlaptop.tui.findings.screen import FindingsScreen
from overlaptop.tui.help.screen import HelpScreen, NoticesScreen
from overlaptop.tui.hosts.screen import HostsScreen
from overlaptop.tui.jobs.screen import JobsScreen
from overlaptop.tui.machine.screen import MachineScreen
from overlaptop.tui.model.captures import read_reference, refusal
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import APP_KEYS, REPLAY_KEYS, TRACE_KEYS, changes_job, needs_job, needs_knob
from overlaptop.tui.model.knob_values import ValueRefusedError
from overlaptop.tui.model.options import MAX_REFRESH_HZ, TuiOptions
from overlaptop.tui.model.running_trials import RunningTrials
from overlaptop.tui.model.state import following
from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.tui.rank.screen import RankScreen
from overlaptop.tui.timelines.screen import TimelinesScreen
from overlaptop.tui.trials.screen import TrialsScreen
from overlaptop.tui.tune.screen import TuneScreen
from overlaptop.tui.widgets.line_view import plain
from overlaptop.tui.widgets.prompt import Confirm
from overlaptop.tui.widgets.screen import DashboardScreen
from overlaptop.tui.workloads.screen import WorkloadsScreen

OnTop = TypeVar("OnTop", bound=DashboardScreen)

MOST_UNREAD_S = 0.5
"""Time between two reads, also while paused: unread data would be dropped."""
_NO_JOB = "no job yet"
_TRIALS_RUN = "trials run: wait, or stop them with s"


class OverlaptopApp(App[int]):
    """One job on the screen."""

    TITLE = "overlaptop"
    ALLOW_SELECT: ClassVar[bool] = False
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [  # noqa: RUF012 - as Textual declares it
        (0, "-tiny"), (8, "-low"), (12, "-short"), (18, "-middle"), (24, "-tall"), (28, "-airy"),
        (36, "-high"),
    ]  # fmt: skip
    CSS_PATH = Path(__file__).with_name("dashboard.tcss")
    BINDINGS: ClassVar = [
        key.binding() for key in (*TRACE_KEYS, *REPLAY_KEYS, *APP_KEYS) if key.action != "command_palette"
    ]

    def __init__(
        self,
        session: Session,
        options: TuiOptions | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError for an unknown theme."""
        options = options or TuiOptions()
        plain = bool(os.environ.get("NO_COLOR")) or options.theme == PLAIN.name
        super().__init__(ansi_color=True if plain else None)
        name = PLAIN.name if plain else options.theme or DARK.name
        if name not in PALETTES:
            raise ValueError(f"no theme {name!r}: there are {', '.join(PALETTES)}")
        look = Look(Styles(PALETTES[name]), options.ascii, textured=plain or options.ascii)
        self.dashboard = Dashboard(session, options, look, clock_s)
        self.dashboard.on_change = self.show
        self._reads = 0
        self._offered: tuple[object, ...] = ()
        self._offer_themes(name)

    def get_default_screen(self) -> Screen[object]:
        return OverviewScreen(self.dashboard)  # type: ignore[return-value]

    def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, lambda _theme: self._take_theme())
        options = self.dashboard.options
        if (connections := options.connections) is not None:
            # At once, not at the next tick: the hosts' clocks are derived from the answers' times.
            asyncio.get_running_loop().add_reader(connections.fileno(), connections.receive)
        self.read()  # this connects at once
        self.show()
        drawn_s = 1 / min(MAX_REFRESH_HZ, max(0.1, options.refresh_hz))
        self._reads_a_drawing = ceil(drawn_s / MOST_UNREAD_S)
        self.set_interval(drawn_s / self._reads_a_drawing, self._tick)

    def on_unmount(self) -> None:
        if (connections := self.dashboard.options.connections) is not None:
            asyncio.get_running_loop().remove_reader(connections.fileno())

    # Reading and drawing

    def _tick(self) -> None:
        self.read()
        self._reads += 1
        if self._reads % self._reads_a_drawing == 0:
            self.show()

    def read(self) -> None:
        self.dashboard.read()

    def show(self, *, everything: bool = False) -> None:
        """Draw the last snapshot, ``everything`` if colours changed, and open the screen that it needs."""
        if not self.screen_stack:
            return  # a last tick while the app closes
        self.dashboard.update()
        self._follow_launch()
        self._follow_jobs()
        self._follow_captures()
        if news := self.dashboard.recording.take_news():
            self.notify(news, timeout=10, markup=False)
        self.dashboard.watch()
        offered = self.dashboard.offered()
        if offered != self._offered:
            self._offered = offered
            self.refresh_bindings()
        if isinstance(self.screen, DashboardScreen):
            self.screen.redraw(everything=everything)

    def _follow_launch(self) -> None:
        """Show the started job as soon as it is there; notify if it failed.

        The form stays while another request is being typed: its next keys would go to the overview.
        """
        session, launch = self.dashboard.session, self.dashboard.launch
        if key := launch.poll(session):
            turns = key != session.job_key
            if turns:
                self.dashboard.select_job(key)
            if isinstance(self.screen, WorkloadsScreen):
                turns = not self.screen.edited
            if turns:
                self.action_overview()
        failure = launch.take_failure()
        if failure and not isinstance(self.screen, WorkloadsScreen):
            self.notify(f"{failure} (w: more)", severity="error", timeout=10, markup=False)

    def _follow_jobs(self) -> None:
        """Show the job list if there is no job or a choice of jobs; close it once a job is chosen."""
        top, key = self.screen, self.dashboard.session.job_key
        if self.dashboard.state.snapshot.job is None:
            if isinstance(top, OverviewScreen) and key is None:
                self.push_screen(JobsScreen(self.dashboard, key))
        elif isinstance(top, JobsScreen) and top.opened_at != key:
            self.pop_screen()

    def _follow_captures(self) -> None:
        """Read a capture's traces once all are written, if it was requested here or is on the screen."""
        captures, commands = self.dashboard.captures, self.dashboard.latest.commands
        for capture in captures.refused(commands):
            self.notify(f"{capture.words} was not made: {capture.reason}", markup=False)
        for capture in captures.to_read(commands, looked_at=isinstance(self.screen, CaptureScreen)):
            self.run_worker(self._read_traces(capture), exit_on_error=False)

    async def _read_traces(self, capture: CommandView) -> None:
        elsewhere = any(is_there(view.node) for view in self.dashboard.latest.ranks)
        self.dashboard.captures.references[capture.id] = await read_reference(capture, elsewhere=elsewhere)
        self.show()

    # Keys

    async def on_event(self, event: events.Event) -> None:
        """Finish all actions of a key before the next one, which then goes to the screen that it opened.

        Textual would first send all waiting keys to the present focus.
        """
        top = self.screen_stack[-1] if self.screen_stack else None
        if (
            not isinstance(event, events.Key)
            or event.is_forwarded
            or not isinstance(top, DashboardScreen)
            or not top.is_mounted  # its own queue keeps the key until it is mounted
        ):
            await super().on_event(event)
            return
        self.app_focus = True  # as in Textual for a terminal that sends keys
        prompt = top.prompt
        if prompt is not None:
            prompt.take_focus()
        if await self._check_bindings(event.key, priority=True):
            return
        if prompt is not None and await prompt.press(event):
            return
        if event.key == "escape" and prompt is None and self.dashboard.knobs.cancel():
            self.show()
            return
        if not await self._check_bindings(event.key):
            self._say_why_not(event.key)

    def _say_why_not(self, key: str) -> None:
        """Say why the key does nothing here, if it works elsewhere."""
        chain = self.screen._modal_binding_chain  # noqa: SLF001 - active_bindings lacks refused ones
        actions = {each.action for _, bound in chain for each in bound.key_to_bindings.get(key, ())}
        if any(map(changes_job, actions)) and self.dashboard.state.readonly:
            self._say_once(READONLY)
        elif any(map(needs_job, actions)) and self.dashboard.state.snapshot.job is None:
            self._say_once(_NO_JOB)
        elif any(map(needs_knob, actions)) and self.dashboard.state.moving:
            self._select_knob()
            self.dashboard.knobs.editable(self.dashboard.latest)  # the change line has the reason
            self.show()
        elif "hosts" in actions and self.dashboard.state.moving:
            self.notify("only this machine is watched; overlaptop HOST ... watches others", timeout=3)

    def _say_once(self, words: str) -> None:
        """Say why a key does nothing; once, however often it is pressed."""
        if all(told.message != words for told in self._notifications):
            self.notify(words, timeout=3)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        return self.dashboard.state.does(action)

    def get_key_display(self, binding: Binding) -> str:
        return plain(super().get_key_display(binding), self.dashboard.look.ascii)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        del screen
        for key in APP_KEYS:
            if key.action != "command_palette" and self.dashboard.state.offers(key.action):
                name = key.action.partition("(")[0].replace("_", " ")
                yield SystemCommand(name, key.words, partial(self.run_action, key.action))
        for name in self.themes:
            change = partial(setattr, self, "theme", name)
            yield SystemCommand(f"theme {name}", "change the colours", change)

    # Keys that change the job

    def action_larger(self) -> None:
        self._step(1)

    def action_smaller(self) -> None:
        self._step(-1)

    def _select_knob(self) -> None:
        self.dashboard.select_knob(self.screen.knob if isinstance(self.screen, DashboardScreen) else "")

    def _step(self, direction: int) -> None:
        self._select_knob()
        self.dashboard.step_knob(direction)
        self.show()

    async def action_exact(self) -> None:
        self._select_knob()
        if isinstance(self.screen, DashboardScreen):
            await self.screen.ask_for_value()

    async def _shows_running(self) -> bool:
        """Show the running trials, and say that others must wait; False: none run."""
        if not self.dashboard.trials.running:
            return False
        await self._top(TrialsScreen)
        self._say_once(_TRIALS_RUN)
        return True

    async def action_try_before(self) -> None:
        if await self._shows_running():
            return
        try:
            self.dashboard.trials.try_value_before(self.dashboard.latest)
        except ValueRefusedError as fault:
            self.notify(str(fault), markup=False)
        else:
            await self._top(TrialsScreen)
        self.show()

    async def action_trials(self) -> None:
        if await self._shows_running():
            return
        self._select_knob()
        await (await self._top(TrialsScreen)).ask_for_values()

    async def action_slack(self) -> None:
        trials, top = self.dashboard.trials, self.screen
        if await self._shows_running() or not isinstance(top, DashboardScreen):
            return
        try:
            delays, question = trials.delays(self.dashboard.latest)
        except ValueRefusedError as fault:
            self.notify(str(fault), markup=False)
        else:
            await top.ask(Confirm(question, partial(self._delay, delays)))

    async def _delay(self, delays: RunningTrials) -> None:
        self.dashboard.trials.begin_delays(delays)
        await self._top(TrialsScreen)
        self.show()

    async def action_capture(self) -> None:
        if why := refusal(self.dashboard.latest):
            self.notify(f"no capture: {why}", markup=False)
        else:
            await (await self._top(CaptureScreen)).ask_for_steps()

    async def action_quit(self) -> None:
        running = self.dashboard.running
        if running and isinstance(self.screen, DashboardScreen):
            await self.screen.ask(Confirm(f"quit? {running}, started here, ends", self._end))
        else:
            await self._end()

    async def action_leave(self) -> None:
        self.exit(return_code=128 + signal.SIGINT)

    async def _end(self) -> None:
        self.exit()

    # Screens

    def _to_overview(self) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()

    async def _open(self, kind: type[Any], *, over: bool = False, **about: object) -> None:
        """Open a screen above the overview, or ``over`` the present one. If it is on top, close it."""
        if isinstance(self.screen, kind):
            self.pop_screen()
            return
        if not over:
            self._to_overview()
        await self.push_screen(kind(self.dashboard, **about))

    async def _top(self, kind: type[OnTop]) -> OnTop:
        """Return the screen of this kind on top, opened over the present one if need be."""
        if not isinstance(self.screen, kind):
            await self._open(kind, over=True)
        assert isinstance(self.screen, kind)
        return self.screen

    def action_overview(self) -> None:
        self._to_overview()
        self.show()

    async def action_rank(self) -> None:
        if self.dashboard.state.selected is not None and not isinstance(self.screen, RankScreen):
            await self._open(RankScreen)

    async def action_machine(self) -> None:
        await self._open(MachineScreen)

    async def action_collectives(self) -> None:
        await self._open(CollectivesScreen)

    async def action_findings(self) -> None:
        await self._open(FindingsScreen)

    async def action_timelines(self) -> None:
        await self._open(TimelinesScreen, over=isinstance(self.screen, CollectivesScreen))

    async def action_tune(self) -> None:
        await self._open(TuneScreen)

    async def action_captures(self) -> None:
        await self._open(CaptureScreen, over=True)

    async def action_help(self) -> None:
        about = self.screen.title_in_help if isinstance(self.screen, DashboardScreen) else ""
        await self._open(HelpScreen, over=True, about=about)

    async def action_notices(self) -> None:
        await self._open(NoticesScreen, over=True)

    async def action_hosts(self) -> None:
        await self._open(HostsScreen, over=True)

    async def action_jobs(self) -> None:
        if not isinstance(self.screen, JobsScreen):
            await self.push_screen(JobsScreen(self.dashboard, self.dashboard.session.job_key))

    async def action_workloads(self) -> None:
        launcher = self.dashboard.options.launcher
        if launcher is None:
            self.notify("no workload can be started from here", timeout=3)
        elif not isinstance(self.screen, WorkloadsScreen):
            self.clear_notifications()  # the screen shows in more detail how a job ended
            await self.push_screen(WorkloadsScreen(self.dashboard, launcher))

    def action_trace_step(self, steps: int) -> None:
        self.dashboard.turn(steps)
        self.show()

    def action_earlier_step(self) -> None:
        self.action_trace_step(-1)

    def action_later_step(self) -> None:
        self.action_trace_step(1)

    def action_show_step(self, number: int | None) -> None:
        self.dashboard.show_step(number)
        self.show()

    def action_slowest(self) -> None:
        self.action_show_step(slowest_step(self.dashboard.state.snapshot))

    # The look

    @property
    def themes(self) -> list[str]:
        plain = self.dashboard.look.plain
        return [] if plain else [name for name in PALETTES if name != PLAIN.name]

    def action_next_theme(self) -> None:
        if self.themes:
            self.theme = following(self.theme, self.themes)
        else:
            self.notify("no colours: NO_COLOR is set, or the plain theme was chosen", timeout=3)

    def action_pause(self) -> None:
        if self.dashboard.state.paused_at_ns is not None:
            self.dashboard.resume()
        else:
            self.dashboard.pause()
        self.show()

    def action_window(self) -> None:
        if self.dashboard.state.past_step is not None:
            self.notify("a past step has no window of steps; space: newest step", timeout=3)
        else:
            self.dashboard.state.next_window()
            self.show()

    def action_replay_seek(self, seconds: int) -> None:
        self.dashboard.seek(seconds)
        self.show()

    def action_next_event(self) -> None:
        if not self.dashboard.seek_event():
            self.notify("no other finding or trouble up to here; N goes on", timeout=3)
        self.show()

    def action_measure(self) -> None:
        self.dashboard.measure()
        words = "asked for a burst of measured steps: two may follow at once, then one each 30 s"
        self.notify(words, timeout=3)

    def action_record(self) -> None:
        self.dashboard.record()
        self.show()

    def action_textures(self) -> None:
        """Toggle glyphs besides colours; they are always on without colours."""
        look = self.dashboard.look
        look.textured = not look.textured or look.plain or look.ascii
        self.show(everything=True)

    def _offer_themes(self, name: str) -> None:
        """Offer only themes whose colours suit bars."""
        for palette in PALETTES.values():
            if (palette is PLAIN) == self.dashboard.look.plain:
                self.register_theme(palette.theme())
        self.theme = name
        for builtin in BUILTIN_THEMES:
            self.unregister_theme(builtin)

    def _take_theme(self) -> None:
        palette = PALETTES.get(self.theme) or (DARK if self.current_theme.dark else LIGHT)
        self.dashboard.look.styles = Styles(palette)
        self.show(everything=True)
