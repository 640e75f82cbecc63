"""A question at the foot of a screen, in place of its keys, whatever screen that is."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from overlaptop.tui.text import printable


class LinePrompt(Horizontal):
    """One line: what is asked, the answer, and what may be answered or is wrong with it."""

    BINDINGS: ClassVar = [("escape", "leave", "not now")]
    DEFAULT_CSS = """
    LinePrompt { dock: bottom; height: 1; background: $background; }
    LinePrompt > .prompt { width: auto; color: $accent; }
    LinePrompt > Input { width: 14; border: none; height: 1; padding: 0; }
    LinePrompt > .hint { width: 1fr; height: 1; }
    LinePrompt > .fault { color: $error; text-style: bold; }
    """

    class Answered(Message):
        """Enter was pressed."""

        def __init__(self, prompt: LinePrompt, words: str) -> None:
            super().__init__()
            self.prompt = prompt
            self.words = words

    class Left(Message):
        """Escape was pressed."""

        def __init__(self, prompt: LinePrompt) -> None:
            super().__init__()
            self.prompt = prompt

    def __init__(self, about: str, asked: str, answer: str, hint: str) -> None:
        """``about``: what the answer is for, in the program; ``asked``: on the screen."""
        super().__init__()
        self.about = about
        self._asked, self._answer = printable(asked), answer
        self._hint = Static(printable(hint), classes="hint", markup=False)

    def compose(self) -> ComposeResult:
        """Question, input, hint."""
        yield Static(f" {self._asked} ", classes="prompt", markup=False)
        yield Input(self._answer, compact=True, max_length=24)
        yield self._hint

    def focus(self, scroll_visible: bool = True, *_: object) -> LinePrompt:
        """Type here."""
        self.query_one(Input).focus(scroll_visible)
        return self

    def say(self, fault: str) -> None:
        """What is wrong with the answer."""
        self._hint.update(printable(fault))
        self._hint.add_class("fault")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        event.stop()
        self.post_message(self.Answered(self, event.value))

    def action_leave(self) -> None:
        """Escape."""
        self.post_message(self.Left(self))
