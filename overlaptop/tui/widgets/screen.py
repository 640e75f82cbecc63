"""DashboardScreen: what all screens do alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer

from overlaptop.launch.request import LaunchRequest
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.widgets.change_line import ChangeLine
from overlaptop.tui.widgets.line_view import LineView
from overlaptop.tui.widgets.prompt import Confirm, Prompt


class Views(Vertical, inherit_bindings=False):
    """They scroll by the screen's keys, if at all."""


class DashboardScreen(Screen[None], inherit_bindings=False):
    """Views from top to bottom, how the newest change goes, and the keys; `dashboard.tcss` has heights."""

    title_in_help: ClassVar[str]
    """Whose keys and words the help opens on: one of glossary.SECTIONS; the help's own is empty."""

    def __init__(self, dashboard: Dashboard, *views: Widget) -> None:
        super().__init__()
        self.dashboard, self.state = dashboard, dashboard.state
        self._views, self._change = views, ChangeLine(dashboard)

    def compose(self) -> ComposeResult:
        yield Views(*self._views)
        yield self._change
        yield Footer(show_command_palette=False, compact=True)

    @property
    def knob(self) -> str:
        """Name of the knob that this screen has a cursor on: keys for values mean that one; empty: none."""
        return ""

    @property
    def prompt(self) -> Prompt | None:
        """What is typed in now: the newest one that is there."""
        return next((each for each in reversed(self.query(Prompt)) if each.is_mounted), None)

    async def ask(self, prompt: Prompt) -> None:
        """Put a question at the foot of the screen, in place of one that is there; the next key is its."""
        await self.query(type(prompt)).remove()
        await self.mount(prompt)
        prompt.take_focus()

    async def ask_to_start(
        self, request: LaunchRequest, start: Callable[[LaunchRequest], Awaitable[None]]
    ) -> None:
        """Start a workload; ask first where that ends the one that was started here before."""

        async def go() -> None:
            self.run_worker(partial(start, request), group="start", exclusive=True)

        if running := self.dashboard.running:
            await self.ask(Confirm(f"end {running} and start {request.label}?", go))
        else:
            await go()

    def redraw(self, *, everything: bool = False) -> None:
        """Show the state as it is now."""
        for view in (*self._views, self._change):
            if isinstance(view, LineView):
                view.fit(self.app.size.width)
                view.redraw(everything=everything)

    def show_selected(self) -> None:
        """After another rank was selected: ask for its timeline and draw."""
        self.dashboard.watch()
        self.redraw()

    def on_mount(self) -> None:
        self.redraw()

    def on_resize(self) -> None:
        self.redraw()

    def on_screen_resume(self) -> None:
        """Catch up with what happened while another screen was on top."""
        self.redraw(everything=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        return self.state.does(action)

    def action_back(self) -> None:
        self.app.pop_screen()
