"""DashboardScreen: what all screens do alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget

from overlaptop.launch.request import LaunchRequest
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.widgets.line_view import LineView
from overlaptop.tui.widgets.prompt import Confirm, Prompt

Heights = tuple[tuple[Widget, int, int], ...]
"""Widgets from top to bottom, with the height of each (0: not shown) and the blank lines above it."""


class DashboardScreen(Screen[None]):
    """A column of LineViews whose heights follow from the screen's size and from what there is to show."""

    title_in_help: ClassVar[str]
    """Whose keys and words the help opens on: one of glossary.SECTIONS; the help's own is empty."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__()
        self.dashboard, self.state = dashboard, dashboard.state
        self._arranged: list[tuple[int, int]] = []

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

    def heights(self, width: int, height: int) -> Heights:
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        for widget, _, _ in self.heights(self.app.size.width, self.app.size.height):
            yield widget

    def redraw(self, *, everything: bool = False) -> None:
        """Show the state as it is now; lays out again only if the shares have changed."""
        self._arrange()
        for view in self.query(LineView):
            if view.display:
                view.redraw(everything=everything)

    def show_selected(self) -> None:
        """After another rank was selected: ask for its timeline and draw."""
        self.dashboard.watch()
        self.redraw()

    def on_resize(self, event: events.Resize) -> None:
        self._arrange(event.size.width, event.size.height)

    def on_screen_resume(self) -> None:
        """Catch up with what happened while another screen was on top."""
        self.redraw(everything=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        return self.state.offers(action)

    def action_back(self) -> None:
        self.app.pop_screen()

    def _arrange(self, width: int = 0, height: int = 0) -> None:
        width, height = width or self.size.width, height or self.size.height
        if not width or not height or not self.is_mounted:
            return
        shares = self.heights(width, height)
        arranged = [(lines, above) for _, lines, above in shares]
        if arranged == self._arranged:
            return
        self._arranged = arranged
        for widget, lines, above in shares:
            widget.display = lines > 0
            if lines > 0:
                widget.styles.height = lines
                widget.styles.margin = (above, 0, 0, 0)
