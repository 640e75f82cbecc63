"""Lines of text that are typed in: a question at the foot of a screen, in place of its keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Input, Static

from overlaptop.text import printable
from overlaptop.tui.widgets.prompt import Prompt


class LineInput(Input, inherit_bindings=False):
    """Calls where Textual's own sends messages: these would come behind keys that are there already."""

    BINDINGS: ClassVar = [Binding("enter", "submit", "run", key_display="enter"), *Input.BINDINGS]

    def __init__(
        self,
        value: str,
        entered: Callable[[], Awaitable[None]],
        changed: Callable[[], None] = lambda: None,
        *,
        placeholder: str = "",
        id: str | None = None,  # noqa: A002
        max_length: int = 0,
    ) -> None:
        """``entered``: enter was pressed; ``max_length``: of characters; 0: no end."""
        self._entered, self._changed = entered, changed
        super().__init__(
            value, placeholder, id=id, max_length=max_length, select_on_focus=False, compact=True
        )

    async def press(self, key: events.Key) -> bool:
        """Put a character in; returns whether the key was one."""
        if key.is_printable:
            await self._on_key(key)
        return key.is_printable

    def take_focus(self) -> None:
        """At once, which `focus` does not."""
        self.screen.set_focus(self)

    def watch_value(self) -> None:
        if self.is_mounted:
            self._changed()

    async def action_submit(self) -> None:
        await self._entered()


_ANSWER_CELLS = 22


class LinePrompt(Prompt):
    """What is asked, the answer, and what may be answered or is wrong with it: beside them where that fits,
    else below.
    """

    BINDINGS: ClassVar = [("escape", "leave", "not now")]
    DEFAULT_CSS = f"""
    LinePrompt {{ dock: bottom; height: auto; }}
    LinePrompt > Horizontal {{ height: 1; }}
    LinePrompt .prompt {{ width: auto; max-width: 75%; height: 1; color: $accent; }}
    LinePrompt .prompt {{ text-wrap: nowrap; text-overflow: ellipsis; }}
    LinePrompt Input {{ width: {_ANSWER_CELLS}; border: none; height: 1; padding: 0; }}
    LinePrompt .beside {{ width: 1fr; height: 1; }}
    LinePrompt .below {{ width: 100%; height: auto; max-height: 4; padding: 0 1; }}
    LinePrompt .fault {{ color: $error; text-style: bold; }}
    """

    def __init__(self, asked: str, answer: str, hint: str, take: Callable[[str], str]) -> None:
        """``take``: does what was answered; returns what is wrong with it, empty: nothing, and the prompt
        goes.
        """
        super().__init__()
        self._asked = f"{printable(asked)} "
        self._words = printable(hint)
        self._take = take
        self._input = LineInput(answer, self._answer, max_length=80)
        self._beside = Static(classes="beside", markup=False)
        self._below = Static(classes="below", markup=False)

    @property
    def words(self) -> str:
        return self._input.value

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static(f" {self._asked}", classes="prompt", markup=False)
            yield self._input
            yield self._beside
        yield self._below

    def on_mount(self) -> None:
        self._show(self.app.size.width)
        self._input.select_all()

    def on_resize(self, event: events.Resize) -> None:
        self._show(event.size.width)

    async def press(self, key: events.Key) -> bool:
        return await self._input.press(key)

    def take_focus(self) -> None:
        self._input.take_focus()

    async def action_leave(self) -> None:
        await self.remove()

    async def _answer(self) -> None:
        if fault := self._take(self._input.value):
            self._say(fault)
        else:
            await self.remove()

    def _say(self, fault: str) -> None:
        self._words = printable(fault)
        for hint in (self._beside, self._below):
            hint.add_class("fault")
        self._show(self.size.width)

    def _show(self, width: int) -> None:
        fits = cell_len(self._asked) + 1 + _ANSWER_CELLS + cell_len(self._words) <= width
        self._beside.update(self._words if fits else "")
        self._below.update("" if fits else self._words)
        self._below.display = not fits
