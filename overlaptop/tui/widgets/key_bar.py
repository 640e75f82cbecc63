"""The most useful keys, at the foot of each screen; they can be clicked."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events

from overlaptop.tui.ink import DIM, Ink, Item, Line, Run, fit
from overlaptop.tui.state import ViewState
from overlaptop.tui.widgets.line_view import LineView


class KeyBar(LineView):
    """``hints``: key as shown, word, action; the last ones go first where it is narrow."""

    fades = False

    def __init__(self, state: ViewState, hints: Sequence[tuple[str, str, str]]) -> None:
        super().__init__(state)
        self.hints = hints

    def made_of(self) -> tuple[object, ...]:
        """Nothing that changes."""
        return ()

    def draw(self, width: int, height: int) -> list[Line]:  # noqa: ARG002
        """One line."""
        items = [
            Item(
                (Run(f" {key} ", Ink("bright", "cursor", bold=True, reverse=True)), Run(f" {word}", DIM)),
                at + 1,
            )
            for at, (key, word, _) in enumerate(self.hints)
        ]
        return [fit(items, [], width, "  ")]

    async def on_click(self, event: events.Click) -> None:
        """Do what the hint under the pointer says."""
        left = 0
        for key, word, action in self.hints:
            right = left + len(key) + len(word) + 3
            if left <= event.x < right:
                await self.screen.run_action(action)
                return
            left = right + 2
