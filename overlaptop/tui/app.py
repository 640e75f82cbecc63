"""The app: timers, themes, which screen is on top, and the keys that work on every screen."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.screen import Screen

from overlaptop.fleet.job_session import READONLY
from overlaptop.fleet.past import slowest_step
from overlaptop.fleet.session import Session
from overlaptop.tui.capture.screen import CaptureScreen
from overlaptop.tui.collectives.screen import CollectivesScreen
from overlaptop.tui.draw.themes import DARK, PALETTES, PLAIN, Look, Styles
from overlaptop.tui.findings.screen import FindingsScreen
from overlaptop.tui.help.screen import HelpScreen, NoticesScreen
from overlaptop.tui.hosts.screen import HostsScreen
from overlaptop.tui.jobs.screen import JobsScreen
from overlaptop.tui.machine.screen import MachineScreen
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import CHANGE_JOB, CHANGE_KNOB, NEED_JOB, Key, action_name, bindings
from overlaptop.tui.model.knob_editor import KnobEditor, ValueRefusedError
from overlaptop.tui.model.options import TuiOptions
from overlaptop.tui.model.running_trials import RunningTrials
from overlaptop.tui.model.state import following
from overlaptop.tui.overview.screen import OverviewScreen, TimelinesScreen
from overlaptop.tui.rank.screen import RankScreen
from overlaptop.tui.trials.screen import TrialsScreen
from overlaptop.tui.tune.screen import TuneScreen
from overlaptop.tui.widgets.prompt import Confirm
from overlaptop.tui.widgets.screen import DashboardScreen
from overlaptop.tui.widgets.view import plain
from overlaptop.tui.workloads.screen import WorkloadsScreen

OnTop = TypeVar("OnTop", bound=DashboardScreen)

MOST_UNREAD_S = 0.5  # Time between two reads, also while paused: unread data would be dropped
# fmt: off
APP_KEYS = (
    Key("right_square_bracket", "]", "trace_step(1)", "the next step of the trace", "[] step"),
    Key("left_square_bracket", "[", "trace_step(-1)",
        "the step before; before the first one is the whole trace"),
    Key("left_parenthesis", "(", "replay_seek(-10)", "10 s back in the recording"),
    Key("right_parenthesis", ")", "replay_seek(10)", "10 s on"),
    Key("N", "N", "next_event", "on to the next finding or trouble"),
    Key("question_mark,f1", "?  F1", "help", "this help", "F1 help"),
    Key("q", "q", "quit", "quit; asks first if that ends a job started here", "q quit"),
    Key("ctrl+c", "ctrl+c", "leave", "quit without asking"),
    Key("f", "f", "findings", "findings: why steps are slow, how to fix it, and the gain", "f why"),
    Key("T", "T", "timelines", "the timelines of all ranks on one axis", "T timelines"),
    Key("C,9", "C  9", "collectives",
        "the step's collectives on all ranks, with their costs", "C collectives"),
    Key("W", "W", "window",
        "totals and rows over the last 20 s, the last 60 s, the last 10 steps, one step", "W window"),
    Key("right_square_bracket", "]", "larger",
        "larger bucket size, or value of the knob selected under Tune; fast presses add up", "[] knob"),
    Key("left_square_bracket", "[", "smaller", "smaller value; esc cancels a change until it is sent"),
    Key("b", "b", "exact", "type an exact value, or script for the script's own"),
    Key("a", "a", "trials", "trials: compare other values with the present one", "a try values"),
    Key("u,7", "u  7", "tune", "Tune: all knobs, and the log of changes", "u tune"),
    Key("A", "A", "try_before", "A/B-test the last change"),
    Key("x", "x", "slack", "delay each rank in turn to find the critical path; asks first"),
    Key("w", "w", "workloads", "run a workload, and compare earlier runs", "w workloads"),
    Key("m,6", "m  6", "machine",
        "the machine: NUMA nodes, GPUs and links of the selected rank's host", "m machine"),
    Key("space,p", "space  p", "pause", "pause or resume (data keeps arriving)", "space pause"),
    Key("left_curly_bracket", "{", "earlier_step",
        "previous kept step, on all ranks; space: back to live", "{} past steps"),
    Key("right_curly_bracket", "}", "later_step", "next kept step"),
    Key("L", "L", "slowest", "the slowest step whose timeline is kept", "L slowest step"),
    Key("D", "D", "measure", "measure a burst of steps now; two may follow at once, then one each 30 s"),
    Key("R", "R", "record", "begin or end a recording of this job, a file in the current directory"),
    Key("H,8", "H  8", "hosts", "the watched hosts, and their connections", "H hosts"),
    Key("c", "c", "capture", "run torch.profiler on all ranks for some steps, as a reference", "c capture"),
    Key("5", "5", "captures", "the newest capture: progress, folder, overlap beside the live one"),
    Key("n,3", "n  3", "notices", "notices from agents", "n notices"),
    Key("o,4", "o  4", "jobs", "other jobs", "o jobs"),
    Key("1", "1", "overview", "overview"),
    Key("2", "2", "rank", "the selected rank"),
    Key("t", "t", "next_theme", "next theme", "t theme"),
    Key("g", "g", "textures", "glyphs besides colours"),
    Key("ctrl+p", "ctrl+p", "command_palette", "command palette"),
)
# fmt: on
"""Everywhere. `ViewState.offers` chooses between keys of a job, of a recording and of a trace."""


class OverlaptopApp(App[int]):
    """One job on the screen."""

    TITLE = "overlaptop"
    ALLOW_SELECT: ClassVar[bool] = False
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [  # noqa: RUF012 - as Textual declares it
        (0, "-tiny"), (8, "-low"), (12, "-short"), (18, "-middle"), (24, "-tall"), (28, "-airy"),
        (36, "-high"),
    ]  # fmt: skip
    CSS_PATH = Path(__file__).with_name("dashboard.tcss")
    BINDINGS: ClassVar = bindings(APP_KEYS)

    def __init__(
        self,
        session: Session,
        options: TuiOptions | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        options = options or TuiOptions()
        plain = bool(os.environ.get("NO_COLOR")) or options.theme == PLAIN.name
        super().__init__(ansi_color=True if plain else None)
        name = PLAIN.name if plain else options.theme or DARK.name
        for palette in PALETTES.values():
            self.register_theme(palette.theme())
        self.theme = name
        look = Look(Styles(PALETTES[name]), options.ascii, textured=plain or options.ascii)
        self.dashboard = Dashboard(session, options, look, clock_s)
        self.dashboard.on_change = self.show
        self.dashboard.tell = partial(self.notify, timeout=10, markup=False)
        self._offered: tuple[object, ...] = ()

    def get_default_screen(self) -> Screen[object]:
        return OverviewScreen(self.dashboard)  # type: ignore[return-value]

    def on_mount(self) -> None:
        options = self.dashboard.options
        if (connections := options.connections) is not None:
            # At once, not at the next tick: the hosts' clocks are derived from the answers' times.
            asyncio.get_running_loop().add_reader(connections.fileno(), connections.receive)
        self.read()  # this connects at once
        self.show()
        self.set_interval(1 / options.refresh_hz, self._tick)
        if 1 / options.refresh_hz > MOST_UNREAD_S:
            self.set_interval(MOST_UNREAD_S, self.read)

    # Reading and drawing

    def _tick(self) -> None:
        self.read()
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
        self.dashboard.watch()
        offered = self.dashboard.offered()
        if offered != self._offered:
            self._offered = offered
            self.refresh_bindings()
        if isinstance(self.screen, DashboardScreen):
            self.screen.redraw(everything=everything)

    def _follow_launch(self) -> None:
        """Show the started job as soon as it is there; notify if it failed."""
        session, launch = self.dashboard.session, self.dashboard.launch
        if key := launch.poll(session):
            turns = key != session.job_key
            if turns:
                self.dashboard.select_job(key)
            if isinstance(self.screen, WorkloadsScreen):
                turns = not self.screen.edited  # or keys for its form would go to the overview
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
                self.push_screen(JobsScreen(self.dashboard))
        elif isinstance(top, JobsScreen) and top.opened_at != key:
            self.pop_screen()

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
        bound = (each for _, known in chain for each in known.key_to_bindings.get(key, ()))
        actions = {action_name(each.action) for each in bound}
        state = self.dashboard.state
        if actions & CHANGE_JOB and state.readonly:
            self._say_once(READONLY)
        elif actions & NEED_JOB and state.snapshot.job is None:
            self._say_once("no job yet")
        elif actions & CHANGE_KNOB and state.moving:
            self._edited().editable()
            self.show()  # the change line has the reason

    def _say_once(self, words: str) -> None:
        """Notify of this, unless it is on the screen."""
        if all(told.message != words for told in self._notifications):
            self.notify(words, timeout=3, markup=False)

    async def run_action(self, action: Any, default_namespace: Any = None, namespaces: Any = None) -> bool:
        """Run an action of a key or a click, and draw: actions only change the state."""
        done = await super().run_action(action, default_namespace, namespaces)
        if done:
            self.show()
        return done

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        return self.dashboard.state.does(action)

    def get_key_display(self, binding: Binding) -> str:
        return plain(super().get_key_display(binding), self.dashboard.look.ascii)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        del screen
        for key in APP_KEYS:
            if key.action != "command_palette" and self.dashboard.state.offers(key.action):
                name = action_name(key.action).replace("_", " ")
                yield SystemCommand(name, key.words, partial(self.run_action, key.action))

    # Keys that change the job

    def _edited(self) -> KnobEditor:
        """Return the editor, after it has selected the knob at the screen's cursor."""
        self.dashboard.select_knob(self.screen.knob if isinstance(self.screen, DashboardScreen) else "")
        return self.dashboard.knobs

    def _step_knob(self, direction: int) -> None:
        self._edited().step(direction)

    action_larger = partialmethod(_step_knob, 1)
    action_smaller = partialmethod(_step_knob, -1)

    async def action_exact(self) -> None:
        if (selected := self._edited().editable()) is not None and isinstance(self.screen, DashboardScreen):
            await self.screen.ask_for_value(selected.knob)

    async def _shows_running(self) -> bool:
        """Show the running trials, and say that others must wait; False: none run."""
        if not self.dashboard.trials.running:
            return False
        await self._top(TrialsScreen)
        self._say_once("trials run: wait, or stop them with s")
        return True

    async def action_try_before(self) -> None:
        if await self._shows_running():
            return
        try:
            self.dashboard.trials.try_value_before(self.dashboard.latest)
        except ValueRefusedError as fault:
            self._say_once(str(fault))
        else:
            await self._top(TrialsScreen)

    async def action_trials(self) -> None:
        if not await self._shows_running():
            selected, top = self._edited().editable(), await self._top(TrialsScreen)
            if selected is not None:
                await top.ask_for_values(selected.knob)

    async def action_slack(self) -> None:
        if await self._shows_running():
            return
        try:
            delays, question = self.dashboard.trials.delays(self.dashboard.latest)
        except ValueRefusedError as fault:
            self._say_once(str(fault))
        else:
            await self._confirm(question, partial(self._delay, delays))

    async def _delay(self, delays: RunningTrials) -> None:
        self.dashboard.trials.begin_delays(delays)
        await self._top(TrialsScreen)

    async def _confirm(self, question: str, do: Callable[[], Awaitable[None]]) -> None:
        if isinstance(self.screen, DashboardScreen):
            await self.screen.ask(Confirm(question, do))

    async def action_capture(self) -> None:
        await (await self._top(CaptureScreen)).ask_for_steps()

    async def action_quit(self) -> None:
        if running := self.dashboard.running:
            await self._confirm(f"quit? {running}, started here, ends", self._end)
        else:
            await self._end()

    action_leave = partialmethod(App.exit, None, 128 + signal.SIGINT)

    async def _end(self) -> None:
        self.exit()

    # Screens

    async def _open(self, kind: type[Any], *, over: bool = False, **about: object) -> None:
        """Open a screen above the overview, or ``over`` the present one. If it is on top, close it."""
        if isinstance(self.screen, kind):
            self.pop_screen()
            return
        if not over:
            self.action_overview()
        await self.push_screen(kind(self.dashboard, **about))

    async def _top(self, kind: type[OnTop]) -> OnTop:
        if not isinstance(self.screen, kind):
            await self._open(kind, over=True)
        assert isinstance(self.screen, kind)
        return self.screen

    def action_overview(self) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()

    action_machine = partialmethod(_open, MachineScreen)
    action_collectives = partialmethod(_open, CollectivesScreen)
    action_findings = partialmethod(_open, FindingsScreen)
    action_tune = partialmethod(_open, TuneScreen)
    action_captures = partialmethod(_open, CaptureScreen, over=True)
    action_notices = partialmethod(_open, NoticesScreen, over=True)
    action_hosts = partialmethod(_open, HostsScreen, over=True)
    action_jobs = partialmethod(_open, JobsScreen, over=True)

    async def action_rank(self) -> None:
        if self.dashboard.state.selected is not None and not isinstance(self.screen, RankScreen):
            await self._open(RankScreen)

    async def action_timelines(self) -> None:
        await self._open(TimelinesScreen, over=isinstance(self.screen, CollectivesScreen))

    async def action_help(self) -> None:
        about = self.screen.title_in_help if isinstance(self.screen, DashboardScreen) else ""
        await self._open(HelpScreen, over=True, about=about, everywhere=APP_KEYS)

    async def action_workloads(self) -> None:
        if self.dashboard.options.launcher is None:
            self._say_once("no workload can be started from here")
        else:
            self.clear_notifications()  # the screen shows in more detail how a job ended
            await self._open(WorkloadsScreen, over=True)

    # Steps, and the look

    def action_trace_step(self, steps: int) -> None:
        self.dashboard.turn(steps)

    action_earlier_step = partialmethod(action_trace_step, -1)
    action_later_step = partialmethod(action_trace_step, 1)

    def action_show_step(self, number: int) -> None:
        self.dashboard.show_step(number)

    def action_slowest(self) -> None:
        self.dashboard.show_step(slowest_step(self.dashboard.state.snapshot))

    def action_pause(self) -> None:
        if self.dashboard.state.paused_at_ns is not None:
            self.dashboard.resume()
        else:
            self.dashboard.pause()

    def action_window(self) -> None:
        if self.dashboard.state.past_step is not None:
            self._say_once("a past step has no window of steps; space: newest step")
        else:
            self.dashboard.state.next_window()

    def action_replay_seek(self, seconds: int) -> None:
        self.dashboard.seek(seconds)

    def action_next_event(self) -> None:
        if not self.dashboard.seek_event():
            self._say_once("no other finding or trouble up to here; N goes on")

    def action_measure(self) -> None:
        self.dashboard.measure()
        self._say_once("asked for a burst of measured steps: two may follow at once, then one each 30 s")

    def action_record(self) -> None:
        self.dashboard.record()

    def action_next_theme(self) -> None:
        look = self.dashboard.look
        if look.plain:
            self._say_once("no colours: NO_COLOR is set, or the plain theme was chosen")
            return
        self.theme = following(self.theme, [name for name in PALETTES if name != PLAIN.name])
        look.styles = Styles(PALETTES[self.theme])
        self.show(everything=True)

    def action_textures(self) -> None:
        """Toggle glyphs besides colours; they are always on without colours."""
        look = self.dashboard.look
        look.textured = not look.textured or look.plain or look.ascii
        self.show(everything=True)
