"""Prompts: they receive all keys while they are on the screen. No input widget,
which takes long to import.
"""

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import RenderResult
from textual.widget import Widget

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
