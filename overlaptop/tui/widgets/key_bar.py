"""The most useful keys, at the foot of each screen; they can be clicked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual import events

from overlaptop.tui.draw.segments import (
    KEY,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    dim,
    elided,
    fit,
    line_width,
)
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import needs_knob
from overlaptop.tui.widgets.view import JobView
from overlaptop.wire.knobs import BUCKET_CAP_MB

_CHANGE_SHARE = 60
"""Per cent of the line for how a change goes: keys stay visible."""


class Hint(NamedTuple):
    """A key as it is shown, words for it, and the action."""

    key: str
    word: str
    action: str
    short: str | None = None
    """A shorter word, of a key that matters so much on this screen that it stays where it is narrow."""


HELP_HINT = Hint("?", "help", "app.help", "")
"""Never left out."""
BACK_HINT = Hint("esc", "back", "screen.back", "back")
QUIT_HINT = Hint("q", "quit", "app.quit", "quit")
"""Its words say where it ends a job."""
KNOB_HINT = Hint("[ ]", "", "app.larger")
"""Its words are the name of the selected knob."""
STEP_HINT = Hint("[ ]", "step", "app.trace_step(1)", "step")
"""Of a trace."""
PAUSE_HINT = Hint("space", "pause", "app.pause")
"""Its word says where it ends a pause."""
PAST_HINT = Hint("{ }", "past steps", "app.earlier_step")
COLLECTIVES_HINT = Hint("C", "collectives", "app.collectives")
TIMELINES_HINT = Hint("T", "timelines", "app.timelines")
Hints = Sequence[tuple[str, str, str] | tuple[str, str, str, str] | Hint]
_Placed = tuple[StyledLine, Hint]
"""A hint as it is drawn."""


class KeyBar(JobView):
    """``hints``: key as shown, word, action, and perhaps a short word, the most important first.

    Those with a short word all stay visible, the last ones with it, as long as there is any room for that;
    of the others those that fit are shown.
    """

    fades = False

    def __init__(
        self,
        dashboard: Dashboard,
        hints: Hints,
        *,
        shows_change: bool = True,
        offered: Callable[[str], bool] = lambda _action: True,
    ) -> None:
        """``shows_change``: also show how a change of a knob goes, as nothing else on this screen does.
        ``offered``: whether an action does something just now.
        """
        super().__init__(dashboard)
        self._hints = [Hint(*hint) for hint in hints]
        self._shows_change = shows_change
        self._offered = offered

    @property
    def hints(self) -> list[Hint]:
        found = []
        for hint in self._hints:
            if not (self.state.offers(hint.action) and self._offered(hint.action)):
                continue
            if needs_knob(hint.action) and not self.state.can_change:
                continue
            if hint.action == KNOB_HINT.action:
                name = self.state.selected_name
                hint = hint._replace(word="bucket size" if name == BUCKET_CAP_MB else name, short="knob")
            elif hint.action == PAUSE_HINT.action and self.state.paused_at_ns is not None:
                hint = hint._replace(word="live again", short="live")
            elif hint.action == PAST_HINT.action and not self.state.moving:
                continue
            elif hint.action == QUIT_HINT.action and self.dashboard.running:
                hint = hint._replace(word="quit and end the job", short="end job")
            found.append(hint)
        return found

    def made_of(self) -> tuple[object, ...]:
        return (self._change_line(), *self.hints)

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        placed, gap, change = self._placed(width)
        return [fit([Item(line) for line, _ in placed], [Item(change)] if change else [], width, gap)]

    async def on_click(self, event: events.Click) -> None:
        left = 0
        placed, gap, _ = self._placed(self.size.width)
        for line, hint in placed:
            right = left + line_width(line)
            if left <= event.x < right:
                await self.screen.run_action(hint.action)
                return
            left = right + len(gap)

    def _placed(self, width: int) -> tuple[list[_Placed], str, StyledLine]:
        """The hints that are shown, the gap between them, and how a change goes: with words as long as
        there is room for while no important hint has to go.
        """
        change = elided(self._change_line(), _CHANGE_SHARE * width // 100)
        room = width - (line_width(change) + 2 if change else 0)
        hints = self.hints
        important = [hint for hint in hints if hint.short is not None]
        for gap, shortened in [(gap, n) for gap in ("  ", " ") for n in range(len(important) + 1)]:
            short = important[len(important) - shortened :]
            placed = [(_drawn(hint, short=hint in short, tight=gap == " "), hint) for hint in hints]
            if _width([each for each in placed if each[1] in important], gap) <= room:
                break
        while _width(placed, gap) > room and (goes := _first_to_go(placed)) is not None:
            placed.remove(goes)
        return placed, gap, change

    def _change_line(self) -> StyledLine:
        """How the newest change goes, until it has been made; a failure stays."""
        change = self.state.change
        if not self._shows_change or change is None or self.state.panel_hidden:
            return ()
        if change.state == "changed" and not self.state.change_is_news:
            return ()
        style = TextStyle({"failed": "error", "changed": "good"}.get(change.state, "warning"), bold=True)
        words = ": ".join(filter(None, (change.values_in_words, change.words)))
        return (Segment(f"{words} ", style),)


def _drawn(hint: Hint, *, short: bool, tight: bool) -> StyledLine:
    word = hint.short if short and hint.short is not None else hint.word
    key = Segment(f" {hint.key} ", KEY)
    return (key, dim(word if tight else f" {word}")) if word else (key,)


def _width(placed: Sequence[_Placed], gap: str) -> int:
    return sum(line_width(line) for line, _ in placed) + len(gap) * max(0, len(placed) - 1)


def _first_to_go(placed: Sequence[_Placed]) -> _Placed | None:
    """The last of those that matter less, else the last one; never the help's."""
    others = [each for each in placed if each[1].action != HELP_HINT.action]
    lesser = [each for each in others if each[1].short is None]
    return next(reversed(lesser or others), None)
