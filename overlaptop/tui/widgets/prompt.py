"""Prompts at the foot of a screen. They receive all keys while they are on it."""

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult, RenderResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Input, Static

from overlaptop.text import printable


class Prompt(Widget, inherit_bindings=False):
    """A question, or input fields, at the foot of a screen."""

    DEFAULT_CSS = "Prompt { width: 100%; background: $background; }"

    async def press(self, key: events.Key) -> bool:
        """Take a key before any binding; return whether it is used up, as text is."""
        raise NotImplementedError

    def take_focus(self) -> None:
        """Activate this prompt's bindings at once: `focus` waits for other messages."""
        focus_at_once(self)


def focus_at_once(widget: Widget) -> None:
    """Focus a widget without waiting for other messages. One mounted while the app closes has no screen."""
    if widget.is_attached:
        widget.screen.set_focus(widget)


class Confirm(Prompt, can_focus=True):
    """A confirmation against slips of a key: only y accepts. Other keys than y, n and esc do nothing."""

    BINDINGS: ClassVar = [("y,Y", "accept", "do it"), ("n,N,escape", "leave", "not now")]

    def __init__(self, asked: str, do: Callable[[], Awaitable[None]]) -> None:
        """``asked``: the action on y, as a question."""
        super().__init__()
        self._asked = printable(asked)
        self._do = do

    def render(self) -> RenderResult:
        return Text(f"{self._asked}   y: yes   esc: no")

    async def press(self, key: events.Key) -> bool:
        return key.key not in ("y", "Y", "n", "N", "escape")

    async def action_accept(self) -> None:
        await self.remove()
        await self._do()

    async def action_leave(self) -> None:
        await self.remove()


class LineInput(Input, inherit_bindings=False):
    """Calls back directly. Textual's own input sends messages, which would arrive after later keys."""

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
        """``entered``: called on enter; ``max_length``: in characters; 0: no limit."""
        self._entered, self._changed = entered, changed
        super().__init__(
            value, placeholder, id=id, max_length=max_length, select_on_focus=False, compact=True
        )

    async def press(self, key: events.Key) -> bool:
        if key.is_printable:
            await self._on_key(key)
        return key.is_printable

    def watch_value(self) -> None:
        if self.is_mounted:
            self._changed()

    async def action_submit(self) -> None:
        await self._entered()


class LinePrompt(Prompt):
    """The question, the answer, and below them the possible answers or the error."""

    BINDINGS: ClassVar = [("escape", "leave", "not now")]

    def __init__(
        self,
        asked: str,
        answer: str,
        hint: str,
        take: Callable[[str], str],
        typed: Callable[[str], str] | None = None,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        """``take``: runs the answer and returns the error; empty: the prompt closes. ``typed``: called at
        each key, with a partial answer; the prompt stays, and escape answers with nothing. ``left``: called
        after escape.
        """
        super().__init__()
        self._asked, self._take, self._typed, self._left = f" {printable(asked)}", take, typed, left
        example = hint if typed is not None else ""
        self._input = LineInput(answer, self._answer, self._type, placeholder=example, max_length=80)
        self._hint = Static("" if typed is not None else printable(hint), classes="hint", markup=False)

    @property
    def words(self) -> str:
        return self._input.value

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static(self._asked, classes="prompt", markup=False)
            yield self._input
        yield self._hint

    def on_mount(self) -> None:
        self._input.select_all()

    async def press(self, key: events.Key) -> bool:
        return await self._input.press(key)

    def take_focus(self) -> None:
        focus_at_once(self._input)

    async def action_leave(self) -> None:
        if self._typed is not None:
            self._typed("")
        await self.remove()
        self._left()

    async def _answer(self) -> None:
        if fault := self._take(self._input.value):
            self._say(fault)
        else:
            await self.remove()

    def _type(self) -> None:
        if self._typed is not None:
            self._say(self._typed(self._input.value))

    def _say(self, fault: str) -> None:
        self._hint.add_class("fault")
        self._hint.update(printable(fault))
