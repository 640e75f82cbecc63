"""A question at the foot of a screen, in place of its keys, whatever screen that is."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Static

from overlaptop.tui.text import printable

_ANSWER_CELLS = 14


class LinePrompt(Vertical):
    """What is asked, the answer, and what may be answered or is wrong with it: beside them where that fits,
    else below.
    """

    BINDINGS: ClassVar = [("escape", "leave", "not now")]
    DEFAULT_CSS = f"""
    LinePrompt {{ dock: bottom; height: auto; background: $background; }}
    LinePrompt > Horizontal {{ height: 1; }}
    LinePrompt .prompt {{ width: auto; max-width: 75%; height: 1; color: $accent; }}
    LinePrompt .prompt {{ text-wrap: nowrap; text-overflow: ellipsis; }}
    LinePrompt Input {{ width: {_ANSWER_CELLS}; border: none; height: 1; padding: 0; }}
    LinePrompt .beside {{ width: 1fr; height: 1; }}
    LinePrompt .below {{ width: 100%; height: auto; max-height: 3; padding: 0 1; }}
    LinePrompt .fault {{ color: $error; text-style: bold; }}
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
        self._words = printable(hint)
        self._beside = Static(classes="beside", markup=False)
        self._below = Static(classes="below", markup=False)

    def compose(self) -> ComposeResult:
        """Question, input, hint."""
        with Horizontal():
            yield Static(f" {self._asked} ", classes="prompt", markup=False)
            yield Input(self._answer, compact=True, max_length=24)
            yield self._beside
        yield self._below

    def on_mount(self) -> None:
        """Say what may be answered."""
        self._show(self.app.size.width)

    def on_resize(self, event: events.Resize) -> None:
        """The words may have to go below, or need not any more."""
        self._show(event.size.width)

    def _show(self, width: int) -> None:
        fits = cell_len(self._asked) + 2 + _ANSWER_CELLS + cell_len(self._words) <= width
        self._beside.update(self._words if fits else "")
        self._below.update("" if fits else self._words)
        self._below.display = not fits

    def focus(self, scroll_visible: bool = True, *_: object) -> LinePrompt:
        """Type here."""
        self.query_one(Input).focus(scroll_visible)
        return self

    def say(self, fault: str) -> None:
        """What is wrong with the answer."""
        self._words = printable(fault)
        for hint in (self._beside, self._below):
            hint.add_class("fault")
        self._show(self.size.width)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        event.stop()
        self.post_message(self.Answered(self, event.value))

    def action_leave(self) -> None:
        """Escape."""
        self.post_message(self.Left(self))
