"""Where the number of steps of a capture is typed."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

DEFAULT_STEPS = 5


class StepsInput(Horizontal):
    """One line: a prompt, the number, and what is wrong with it."""

    BINDINGS: ClassVar = [("escape", "leave", "no capture")]
    DEFAULT_CSS = """
    StepsInput { height: 1; }
    StepsInput > .prompt { width: 18; color: $accent; }
    StepsInput > Input { width: 8; border: none; height: 1; padding: 0; }
    StepsInput > .hint { width: 1fr; }
    """

    class Asked(Message):
        """Enter was pressed."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    class Left(Message):
        """Escape was pressed."""

    def __init__(self) -> None:
        super().__init__()
        self._hint = Static("enter: start   esc: not now", classes="hint", markup=False)

    def compose(self) -> ComposeResult:
        """Prompt, input, hint."""
        yield Static(" steps to capture ", classes="prompt")
        yield Input(str(DEFAULT_STEPS), compact=True, max_length=6)
        yield self._hint

    def focus(self, scroll_visible: bool = True, *_: object) -> StepsInput:
        """Type here."""
        self.query_one(Input).focus(scroll_visible)
        return self

    def say(self, fault: str) -> None:
        """What is wrong with the number."""
        self._hint.update(fault)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        event.stop()
        self.post_message(self.Asked(event.value))

    def action_leave(self) -> None:
        """Escape."""
        self.post_message(self.Left())
