"""Where a filter for ranks is typed."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Static

from overlaptop.tui.text import printable


class FilterInput(Vertical):
    """At the foot of the screen: a prompt and the words, and below them what is wrong with these."""

    BINDINGS: ClassVar = [("escape", "leave", "drop the filter")]
    DEFAULT_CSS = """
    FilterInput { dock: bottom; height: auto; background: $background; }
    FilterInput > Horizontal { height: 1; }
    FilterInput .prompt { width: 9; color: $accent; }
    FilterInput Input { width: 1fr; border: none; height: 1; padding: 0; }
    FilterInput > .fault { width: 100%; height: auto; max-height: 4; padding: 0 1; color: $error; }
    """

    class Typed(Message):
        """The words changed."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    class Left(Message):
        """The user is done."""

        def __init__(self, keep: bool) -> None:
            super().__init__()
            self.keep = keep

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words
        self._fault = Static("", classes="fault", markup=False)
        self._fault.display = False

    def compose(self) -> ComposeResult:
        """Prompt, input, fault."""
        with Horizontal():
            yield Static(" filter /", classes="prompt")
            yield Input(self._words, placeholder="3   0-3   overlap<80   step>50ms   host", compact=True)
        yield self._fault

    def focus(self, scroll_visible: bool = True, *_: object) -> FilterInput:
        """Type here."""
        self.query_one(Input).focus(scroll_visible)
        return self

    def say(self, fault: str) -> None:
        """What is wrong; empty: nothing."""
        self._fault.update(printable(fault))
        self._fault.display = bool(fault)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        event.stop()
        self.post_message(self.Typed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter keeps it."""
        event.stop()
        self.post_message(self.Left(keep=True))

    def action_leave(self) -> None:
        """Escape drops it."""
        self.post_message(self.Left(keep=False))
