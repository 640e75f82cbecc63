"""The ground truth on demand: asks for a capture, follows it, and shows it beside the live figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult

from overlaptop.tui.keys import CAPTURE_KEYS, bindings
from overlaptop.tui.screens.base import DashboardScreen, Heights
from overlaptop.tui.state import ViewState
from overlaptop.tui.widgets.capture_view import CaptureView
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.key_bar import KeyBar
from overlaptop.wire import commands
from overlaptop.wire.codec import WireError

if TYPE_CHECKING:
    from overlaptop.tui.widgets.steps_input import StepsInput

HINTS = (
    ("esc", "back", "screen.back"),
    ("c", "capture", "app.capture"),
    ("↑ ↓", "scroll", "screen.move(1)"),
    ("?", "help", "app.help"),
    ("q", "quit", "app.quit"),
)


class CaptureScreen(DashboardScreen):
    """The newest capture, whichever dashboard asked for it."""

    BINDINGS: ClassVar = bindings(CAPTURE_KEYS)

    def __init__(self, state: ViewState, *, asks: bool) -> None:
        """``asks``: begin with the prompt for a new one."""
        super().__init__(state)
        self._asks = asks
        self._header = JobHeader(state)
        self._view = CaptureView(state)
        self._keys = KeyBar(state, HINTS)
        self._input: StepsInput | None = None

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield self._header
        yield self._view
        yield self._keys

    async def on_mount(self) -> None:
        """Ask at once, where that is what one came for."""
        if self._asks:
            await self.ask()

    def heights(self, width: int, height: int) -> Heights:  # noqa: ARG002
        """All for the capture; the prompt takes the place of the keys."""
        above = 1 if height >= 12 else 0
        return (
            (self._header, 1, 0),
            (self._view, max(1, height - 2 - above), above),
            (self._input or self._keys, 1, 0),
        )

    async def ask(self) -> None:
        """Ask for the number of steps at the foot of the screen."""
        # Textual's Input takes 20 ms to import: not before it is needed.
        from overlaptop.tui.widgets.steps_input import StepsInput

        if self._input is None:
            self._input = StepsInput()
            await self.mount(self._input, after=self._keys)
            self._keys.display = False
            self._arranged = []
            self._input.focus()
            self.redraw()

    async def on_steps_input_asked(self, message: StepsInput.Asked) -> None:
        """Send the command, or say why not."""
        assert self._input is not None
        if not message.words.strip().isdecimal():
            self._input.say("type a whole number of steps")
            return
        try:
            command = commands.make(commands.CAPTURE, {"steps": int(message.words)})
            fault = self.dashboard.send(command)
        except (ValueError, WireError) as error:
            fault = str(error)
        if fault:
            self._input.say(fault)
        else:
            await self._leave_prompt()

    async def on_steps_input_left(self) -> None:
        """No capture."""
        await self._leave_prompt()

    def action_move(self, lines: int) -> None:
        """Scroll."""
        self._view.scroll_lines(lines)

    def action_back(self) -> None:
        """To where one came from."""
        self.dashboard.action_close()

    async def _leave_prompt(self) -> None:
        if self._input is not None:
            await self._input.remove()
            self._input = None
            self._keys.display = True
            self._arranged = []
            self.redraw(everything=True)
