"""The bases of all screens."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Generic, TypeVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from overlaptop.report.knobs import allowed_words, short_name
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import SCROLL_KEYS, bindings
from overlaptop.tui.model.knob_editor import SCRIPT
from overlaptop.tui.widgets.change_line import ChangeLine
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.prompt import LinePrompt, Prompt
from overlaptop.tui.widgets.view import JobView
from overlaptop.wire.knobs import Knob

View = TypeVar("View", bound=JobView)


class Views(Vertical, inherit_bindings=False):
    """Views, scrolled only by the screen's keys."""


class KeyHints(Footer):
    """The screen's keys, as many as fit: none is cut off."""

    def compose(self) -> ComposeResult:
        space = self.app.size.width + 1
        for hint in super().compose():
            if isinstance(hint, FooterKey):
                space -= cell_len(hint.key_display) + 1 + cell_len(hint.description) + 1
            if space < 0:
                return
            yield hint

    def on_resize(self) -> None:
        self.refresh(recompose=True)


class DashboardScreen(Screen[None], inherit_bindings=False):
    """Views from top to bottom, the newest change's progress, and keys; `dashboard.tcss` has heights."""

    title_in_help: ClassVar[str]
    """The section that the help opens on: one of glossary.SECTIONS; empty for the help itself."""

    def __init__(self, dashboard: Dashboard, *views: Widget) -> None:
        super().__init__()
        self.dashboard, self.state = dashboard, dashboard.state
        self._views, self._change = views, ChangeLine(dashboard)

    def compose(self) -> ComposeResult:
        yield Views(*self._views)
        yield self._change
        yield KeyHints(show_command_palette=False, compact=True)

    @property
    def knob(self) -> str:
        """Return the knob at this screen's cursor, which keys for values then change; empty: none."""
        return ""

    @property
    def prompt(self) -> Prompt | None:
        return next((each for each in reversed(self.query(Prompt)) if each.is_mounted), None)

    async def ask(self, prompt: Prompt) -> None:
        """Show a prompt at the foot of the screen, in place of an open one; it gets the next key."""
        await self.query(type(prompt)).remove()
        await self.mount(prompt)
        prompt.take_focus()

    async def ask_for_value(self, knob: Knob) -> None:
        take = partial(self.dashboard.answer, self.dashboard.knobs.type)
        original = f"{SCRIPT} ({knob.original_text})" if knob.original_text else SCRIPT
        answer = str(knob.value) if knob.value is not None else ""
        hint = f"{allowed_words(knob)}, or: {original}   esc: not now"
        await self.ask(LinePrompt(f"{short_name(knob.name)}: ", answer, hint, take))

    def redraw(self, *, everything: bool = False) -> None:
        for view in (*self._views, self._change):
            if isinstance(view, JobView):
                view.fit(self.app.size.width)
                view.redraw(everything=everything)

    def on_mount(self) -> None:
        self.redraw()

    def on_resize(self) -> None:
        self.redraw()

    def on_screen_resume(self) -> None:
        """Draw changes from the time when another screen was on top."""
        self.redraw(everything=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        return self.state.does(action)

    def action_back(self) -> None:
        self.app.pop_screen()


class PageScreen(DashboardScreen, Generic[View]):
    """One view with scrolling or a cursor, and its keys."""

    BINDINGS: ClassVar = bindings(SCROLL_KEYS)
    view_class: Callable[..., View]
    below_header = True

    def __init__(self, dashboard: Dashboard, *details: object) -> None:
        """``details``: what the view is made of besides the dashboard."""
        self._view = view = self.view_class(dashboard, *details)
        view.add_class("page")
        view.set_class(self.below_header, "below")
        super().__init__(dashboard, *(JobHeader(dashboard),) * self.below_header, view)

    def action_move(self, lines: int) -> None:
        self._view.move(lines)

    def action_page(self, pages: int) -> None:
        self._view.move(pages * max(1, self._view.size.height - 2))
