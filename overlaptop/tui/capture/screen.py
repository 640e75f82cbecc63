"""The profiler as a reference: asks for a capture, follows it, and shows it beside the live figures."""

from __future__ import annotations

from overlaptop.tui.capture.view import CaptureView
from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.help.glossary import CAPTURE
from overlaptop.tui.page import PageScreen
from overlaptop.tui.widgets.key_bar import BACK_HINT, HELP_HINT, QUIT_HINT
from overlaptop.wire import commands
from overlaptop.wire.codec import WireError

DEFAULT_STEPS = 5


class CaptureScreen(PageScreen):
    """The newest capture, whichever dashboard asked for it."""

    title_in_help = CAPTURE
    hints = (
        BACK_HINT,
        ("c", "capture", "app.capture", "capture"),
        ("↑ ↓", "scroll", "screen.move(1)"),
        HELP_HINT,
        QUIT_HINT,
    )
    airy_from = 12

    def __init__(self, dashboard: Dashboard, *, asks: bool) -> None:
        """``asks``: begin with the prompt for a new one."""
        super().__init__(dashboard, CaptureView(dashboard))
        self._asks = asks

    async def on_mount(self) -> None:
        if self._asks:
            await self.ask_for_steps()

    async def ask_for_steps(self) -> None:
        # Textual's Input takes 20 ms to import: not before it is needed.
        from overlaptop.tui.draw.line_prompt import LinePrompt

        hint = "enter: start   esc: not now"
        await self.ask(LinePrompt("steps to capture", str(DEFAULT_STEPS), hint, self._capture))

    def _capture(self, words: str) -> str:
        if not words.strip().isdecimal():
            return "type a whole number of steps"
        try:
            return self.dashboard.send(commands.make(commands.CAPTURE, {"steps": int(words)}))
        except (ValueError, WireError) as error:
            return str(error)
