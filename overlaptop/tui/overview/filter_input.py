"""Where a filter for ranks is typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from overlaptop.text import printable
from overlaptop.tui.draw.line_input import LineInput
from overlaptop.tui.draw.prompt import Prompt


class FilterInput(Prompt):
    """At the foot of the screen: a prompt and the words, and below them what is wrong with these."""

    BINDINGS: ClassVar = [("escape", "leave", "drop the filter")]
    DEFAULT_CSS = """
    FilterInput { dock: bottom; height: auto; }
    FilterInput > Horizontal { height: 1; }
    FilterInput .prompt { width: 9; color: $accent; }
    FilterInput Input { width: 1fr; border: none; height: 1; padding: 0; }
    FilterInput > .fault { width: 100%; height: auto; max-height: 4; padding: 0 1; color: $error; }
    """

    def __init__(self, words: str, take: Callable[[str], str]) -> None:
        """``take``: filters by words, while they are typed; returns what is wrong with them."""
        super().__init__()
        self._take = take
        example = "3   0-3   overlap<80   step>50ms   host"
        self._input = LineInput(words, self.remove, self._filter, placeholder=example)
        self._fault = Static("", classes="fault", markup=False)
        self._fault.display = False

    @property
    def words(self) -> str:
        """What is typed."""
        return self._input.value

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static(" filter /", classes="prompt")
            yield self._input
        yield self._fault

    def on_mount(self) -> None:
        self._input.select_all()

    async def press(self, key: events.Key) -> bool:
        return await self._input.press(key)

    def take_focus(self) -> None:
        self._input.take_focus()

    async def action_leave(self) -> None:
        """Escape drops it."""
        self._input.value = ""
        await self.remove()

    def _filter(self) -> None:
        fault = self._take(self.words)
        self._fault.update(printable(fault))
        self._fault.display = bool(fault)
