"""The profiler as a reference: asks for a capture, follows it, and shows it beside the live figures."""

from __future__ import annotations

from typing import ClassVar

from overlaptop.tui.capture.view import CaptureView
from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.help.glossary import CAPTURE
from overlaptop.tui.keys import CAPTURE_KEYS, bindings
from overlaptop.tui.screen import DashboardScreen, Heights
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.key_bar import HELP_HINT, QUIT_HINT, KeyBar
from overlaptop.wire import commands
from overlaptop.wire.codec import WireError

HINTS = (
    ("esc", "back", "screen.back", "back"),
    ("c", "capture", "app.capture", "capture"),
    ("↑ ↓", "scroll", "screen.move(1)"),
    HELP_HINT,
    QUIT_HINT,
)
DEFAULT_STEPS = 5


class CaptureScreen(DashboardScreen):
    """The newest capture, whichever dashboard asked for it."""

    title_in_help = CAPTURE
    BINDINGS: ClassVar = bindings(CAPTURE_KEYS)

    def __init__(self, dashboard: Dashboard, *, asks: bool) -> None:
        """``asks``: begin with the prompt for a new one."""
        super().__init__(dashboard)
        self._asks = asks
        self._header = JobHeader(dashboard)
        self._view = CaptureView(dashboard)
        self._keys = KeyBar(dashboard, HINTS)

    async def on_mount(self) -> None:
        """Ask at once, where that is what one came for."""
        if self._asks:
            await self.ask_for_steps()

    def heights(self, width: int, height: int) -> Heights:  # noqa: ARG002
        """All for the capture."""
        above = 1 if height >= 12 else 0
        return (
            (self._header, 1, 0),
            (self._view, max(1, height - 2 - above), above),
            (self._keys, 1, 0),
        )

    async def ask_for_steps(self) -> None:
        """Ask for the number of steps at the foot of the screen."""
        # Textual's Input takes 20 ms to import: not before it is needed.
        from overlaptop.tui.draw.line_prompt import LinePrompt

        hint = "enter: start   esc: not now"
        await self.ask(LinePrompt("steps to capture", str(DEFAULT_STEPS), hint, self._capture))

    def _capture(self, words: str) -> str:
        """Send the command, or return why not."""
        if not words.strip().isdecimal():
            return "type a whole number of steps"
        try:
            return self.dashboard.send(commands.make(commands.CAPTURE, {"steps": int(words)}))
        except (ValueError, WireError) as error:
            return str(error)

    def action_move(self, lines: int) -> None:
        """Scroll."""
        self._view.scroll_lines(lines)
