"""The dashboard: reads the session often, draws seldom, and moves between screens."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.screen import Screen
from textual.theme import BUILTIN_THEMES

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.tui.keys import APP_KEYS
from overlaptop.tui.options import MAX_REFRESH_HZ, Session, TuiOptions
from overlaptop.tui.palette import DARK, LIGHT, PALETTES, PLAIN, Inks
from overlaptop.tui.screens.base import DashboardScreen
from overlaptop.tui.screens.overview import OverviewScreen
from overlaptop.tui.state import ViewState
from overlaptop.tui.truth import READING, Truth, read_truth
from overlaptop.wire.messages import WRITTEN, Command

TICK_S, IDLE_TICK_S = 0.1, 0.25
"""How often the session is read while steps arrive, and when none have for a while."""


class OverlaptopApp(App[int]):
    """One job on the screen."""

    TITLE = "overlaptop"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"
    ALLOW_SELECT = False
    CSS = """
    Screen { background: $background; color: $foreground; overflow: hidden; }
    LineView { width: 100%; height: 1; }
    """
    BINDINGS: ClassVar = [
        Binding(key.keys, key.action, key.words, priority="ctrl+c" in key.keys)
        for key in APP_KEYS
        if key.action != "command_palette"
    ]

    def __init__(self, session: Session, options: TuiOptions | None = None) -> None:
        self.options = options or TuiOptions()
        without_colors = bool(os.environ.get("NO_COLOR")) or self.options.theme == PLAIN.name
        self._plain = without_colors
        super().__init__(ansi_color=True if without_colors else None)
        name = PLAIN.name if without_colors else self.options.theme or DARK.name
        if name not in PALETTES:
            raise ValueError(f"no theme {name!r}: there are {', '.join(PALETTES)}")
        self.inks = Inks(PALETTES[name])
        self._retheme(name)
        self.session = session
        self.latest: Snapshot = session.tick()
        self.state = ViewState(self.latest, textured=without_colors or self.options.ascii)
        self.launch_said = ""
        """What the launcher says of a job that is not on the screen yet."""
        self._started, self._started_beside = False, session.job_key
        self._truths: dict[str, Truth] = {}
        """By capture: what its traces say."""
        self._asked: set[str] = set()
        """The commands that this dashboard has sent."""
        self._watched: frozenset[int] | None = None
        self._tick_s = TICK_S

    def get_default_screen(self) -> Screen[object]:
        """The overview lies below all others."""
        return OverviewScreen(self.state)  # type: ignore[return-value]

    def on_mount(self) -> None:
        """Start to read and to draw."""
        self._show()
        self.set_timer(self._tick_s, self._tick)
        self.set_interval(1 / min(MAX_REFRESH_HZ, max(0.1, self.options.refresh_hz)), self._show)
        self.theme_changed_signal.subscribe(self, lambda _theme: self._take_theme())

    def _tick(self) -> None:
        """Read the session. Also while paused: what is not read would be dropped."""
        self.latest = self.session.tick()
        self._tick_s = TICK_S if self.latest.fresh else min(IDLE_TICK_S, self._tick_s * 1.25)
        self.set_timer(self._tick_s, self._tick)

    def _show(self) -> None:
        """Draw the newest snapshot, unless the picture is held still."""
        if not self.screen_stack:
            return  # a last tick while the app closes
        state = self.state
        if state.paused_at_ns is None:
            state.snapshot = self.latest
        else:
            state.paused_now_ns = self.latest.at_ns
        self._ask_the_launcher()
        self._find_the_way()
        self._watch_chosen()
        self._look_at_captures()
        if isinstance(self.screen, DashboardScreen):
            self.screen.redraw()

    def show_chosen(self) -> None:
        """After another rank was chosen: ask for its timeline and draw."""
        self._watch_chosen()
        if isinstance(self.screen, DashboardScreen):
            self.screen.redraw()

    def _watch_chosen(self) -> None:
        chosen = self.state.chosen
        wanted = frozenset({chosen.rank} if chosen else ())
        if wanted != self._watched:
            self._watched = wanted
            self.session.watch(wanted)

    def _ask_the_launcher(self) -> None:
        """Only until its job is found: it may turn the session to that job, which must happen but once."""
        if self._started_beside != self.session.job_key:
            self._started, self._started_beside = False, self.session.job_key
        asked = self._started or self.session.job_key is None
        status = self.options.launch_status
        self.launch_said = status() if asked and status is not None else ""

    def _find_the_way(self) -> None:
        """Where there is no job to be seen, or a choice of jobs, the list comes up by itself; and it goes
        when there is.
        """
        from overlaptop.tui.screens.jobs import JobsScreen

        top = self.screen
        if self.state.snapshot.job is None:
            if isinstance(top, OverviewScreen) and self.session.job_key is None:
                self.push_screen(JobsScreen(self.state, self.session.job_key))
        elif isinstance(top, JobsScreen) and top.opened_at != self.session.job_key:
            self.pop_screen()

    def open_job(self, key: str) -> None:
        """Turn to another job of this machine."""
        self.session.select(key)
        self._watched = None
        self.state.paused_at_ns = self.state.paused_now_ns = None
        self.latest = self.session.tick()
        self.action_overview()
        self._show()

    def start(self, workload: str) -> None:
        """Start a bundled workload. Raises what the options' callback raises."""
        if self.options.start_workload is not None:
            self.options.start_workload(workload)
            self._started, self._started_beside = True, self.session.job_key

    # Commands

    def send(self, command: Command) -> str:
        """Tell the job to do something; returns why that cannot be, empty: it is on its way."""
        fault = self.session.send(command)
        if not fault:
            self._asked.add(command.id)
            self.latest = self.session.tick()
            self._show()
        return fault

    def truth_of(self, capture: CommandView) -> Truth | None:
        """What a capture's traces say, as far as that is known."""
        return self._truths.get(capture.id)

    def _look_at_captures(self) -> None:
        """Have the traces read once all are written: of captures asked for here, or looked at."""
        from overlaptop.tui.screens.capture import CaptureScreen

        for command in self.latest.commands:
            if command.id in self._asked and command.busy and command.done:
                self._asked.discard(command.id)
                self.notify(f"{command.words} was not made: {command.reason}", markup=False)
            wanted = command.id in self._asked or isinstance(self.screen, CaptureScreen)
            if wanted and command.state == WRITTEN and command.id not in self._truths:
                self._truths[command.id] = READING
                self.run_worker(self._read_truth(command), exit_on_error=False)

    async def _read_truth(self, capture: CommandView) -> None:
        self._truths[capture.id] = await read_truth(capture)
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

    def action_rank(self) -> None:
        """Open the chosen rank."""
        from overlaptop.tui.screens.rank import RankScreen

        if self.state.chosen is not None and not isinstance(self.screen, RankScreen):
            self.action_overview()
            self.push_screen(RankScreen(self.state))

    async def action_capture(self) -> None:
        """Ask for a capture."""
        from overlaptop.tui.screens.capture import CaptureScreen

        if self.state.snapshot.job is None:
            return
        if not self.state.moving:
            self.notify("a job that is over cannot be captured")
        elif isinstance(self.screen, CaptureScreen):
            await self.screen.ask()
        else:
            self.action_overview()
            self.push_screen(CaptureScreen(self.state, asks=True))

    def action_captures(self) -> None:
        """The newest capture."""
        from overlaptop.tui.screens.capture import CaptureScreen

        if isinstance(self.screen, CaptureScreen):
            self.pop_screen()
        elif self.state.snapshot.job is not None:
            self.push_screen(CaptureScreen(self.state, asks=False))

    def action_machine(self) -> None:
        """The machine under the chosen rank."""
        from overlaptop.tui.screens.machine import MachineScreen

        if isinstance(self.screen, MachineScreen):
            self.pop_screen()
        elif self.state.snapshot.job is not None:
            self.action_overview()
            self.push_screen(MachineScreen(self.state))

    def action_help(self) -> None:
        """Keys and words."""
        from overlaptop.tui.screens.pages import HelpScreen

        self._toggle(HelpScreen)

    def action_notices(self) -> None:
        """What agents said."""
        from overlaptop.tui.screens.pages import NoticesScreen

        self._toggle(NoticesScreen)

    def action_jobs(self) -> None:
        """The list of jobs."""
        from overlaptop.tui.screens.jobs import JobsScreen

        if not self.state.moving:
            self.notify("a trace is open: there is no job to turn to", timeout=3)
        elif not isinstance(self.screen, JobsScreen):
            self.push_screen(JobsScreen(self.state, self.session.job_key))

    def _toggle(self, kind: type[DashboardScreen]) -> None:
        if isinstance(self.screen, kind):
            self.pop_screen()
        else:
            self.push_screen(kind(self.state))

    # The look

    def action_pause(self) -> None:
        """Hold the picture still, or let it go on."""
        paused = self.state.paused_at_ns is not None
        self.state.paused_at_ns = self.state.paused_now_ns = None if paused else self.latest.at_ns
        self._show()

    def action_textures(self) -> None:
        """Glyphs besides colours; always so where there are none."""
        self.state.textured = not self.state.textured or self._plain or self.options.ascii
        self._redraw_everything()

    def action_next_theme(self) -> None:
        """The next one that has colours."""
        if self._plain:
            self.notify("no colours: NO_COLOR is set, or the plain theme was chosen", timeout=3)
            return
        names = [name for name in PALETTES if name != PLAIN.name]
        self.theme = names[(names.index(self.inks.palette.name) + 1) % len(names)]

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the command palette offers: this app's keys by their words."""
        del screen
        for key in APP_KEYS:
            if key.action != "command_palette":
                yield SystemCommand(
                    key.action.replace("_", " "), key.words, getattr(self, f"action_{key.action}")
                )
        if not self._plain:
            for name in PALETTES:
                if name != PLAIN.name:
                    yield SystemCommand(
                        f"theme {name}", "change the colours", lambda n=name: self._set_theme(n)
                    )

    def _set_theme(self, name: str) -> None:
        self.theme = name

    def _retheme(self, name: str) -> None:
        """Only themes whose colours are made for bars are offered."""
        for palette in PALETTES.values():
            if (palette is PLAIN) == self._plain:
                self.register_theme(palette.theme())
        self.theme = name
        for builtin in BUILTIN_THEMES:
            self.unregister_theme(builtin)

    def _take_theme(self) -> None:
        palette = PALETTES.get(self.theme) or (DARK if self.current_theme.dark else LIGHT)
        self.inks = Inks(palette)
        self._redraw_everything()

    def _redraw_everything(self) -> None:
        if isinstance(self.screen, DashboardScreen):
            self.screen.redraw(everything=True)
