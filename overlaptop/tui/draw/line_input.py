"""LineInput: one line of text, whose keys are taken one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from textual import events
from textual.widgets import Input


class LineInput(Input):
    """Calls where Textual's own sends messages: these would come behind keys that are there already."""

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
