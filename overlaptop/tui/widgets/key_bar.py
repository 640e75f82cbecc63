"""The most useful keys, at the foot of each screen; they can be clicked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual import events

from overlaptop.tui.changing import knob_words
from overlaptop.tui.ink import DIM, KEY, Ink, Item, Line, Run, crop, fit, joined
from overlaptop.tui.keys import changes_something
from overlaptop.tui.knob_values import short_name
from overlaptop.tui.state import ViewState
from overlaptop.tui.widgets.line_view import LineView
from overlaptop.wire.knobs import BUCKET_CAP_MB

_TOLD_SHARE = 60
"""Per cent of the line for how a change goes: keys stay in sight."""


class Hint(NamedTuple):
    """A key as it is shown, a word for it, and the action."""

    key: str
    word: str
    action: str


KNOB_HINT = ("[ ]", "", "app.larger")
"""Its word is the name of the knob in hand."""


class KeyBar(LineView):
    """``hints``: key as shown, word, action; the last ones go first where it is narrow."""

    fades = False

    def __init__(
        self,
        state: ViewState,
        hints: Sequence[tuple[str, str, str]],
        *,
        tells_changes: bool = True,
        offered: Callable[[str], bool] | None = None,
    ) -> None:
        """``tells_changes``: also say how a change of a knob goes, as nothing else on this screen does.
        ``offered``: whether an action does something just now; None: all do.
        """
        super().__init__(state)
        self._hints = [Hint(*hint) for hint in hints]
        self._tells_changes = tells_changes
        self._offered = offered

    @property
    def hints(self) -> list[Hint]:
        """Those of keys that do something just now."""
        found = []
        for hint in self._hints:
            if self.state.readonly and changes_something(hint.action):
                continue
            if self._offered is not None and not self._offered(hint.action):
                continue
            if hint.action == KNOB_HINT[2]:
                if not self.state.can_change or self.state.hand is None:
                    continue
                name = self.state.hand.knob.name
                hint = hint._replace(word="bucket size" if name == BUCKET_CAP_MB else short_name(name))
            found.append(hint)
        return found

    def made_of(self) -> tuple[object, ...]:
        """What is offered, and what is told."""
        return (self._told(), *self.hints)

    def draw(self, width: int, height: int) -> list[Line]:  # noqa: ARG002
        """One line."""
        told = self._told()
        items = [
            Item((Run(f" {hint.key} ", KEY), Run(f" {hint.word}", DIM)), at + 1)
            for at, hint in enumerate(self.hints)
        ]
        return [fit(items, [Item(crop(told, _TOLD_SHARE * width // 100))] if told else [], width, "  ")]

    async def on_click(self, event: events.Click) -> None:
        """Do what the hint under the pointer says."""
        left = 0
        for key, word, action in self.hints:
            right = left + len(key) + len(word) + 3
            if left <= event.x < right:
                await self.screen.run_action(action)
                return
            left = right + 2

    def _told(self) -> Line:
        """How the newest change goes, until it has been made; a failure stays."""
        change = self.state.change
        if not self._tells_changes or change is None or self.state.panel_hidden:
            return ()
        if change.state == "changed" and not self.state.change_is_news:
            return ()
        ink = Ink({"failed": "error", "changed": "good"}.get(change.state, "warning"), bold=True)
        parts: list[Line] = [(Run(words, ink),) for words in (knob_words(change), change.words) if words]
        return (*joined(parts, ": "), Run(" "))
