"""The list of findings, and the selected one: what was measured, what it can win, how sure, what to do."""

from __future__ import annotations

from textual import events

from overlaptop.findings.finding import Certainty, Finding
from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.text import UNKNOWN, duration, named_ranks, percent
from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.draw.segments import (
    BOLD,
    TEXT,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    dim,
    fit,
    hanging,
    paragraph,
    titled,
)
from overlaptop.tui.draw.table import Column, Table, scrolled
from overlaptop.tui.view import JobView

_COLUMNS = (
    Column("to win", 8),
    Column("how sure", 8, right=False, shown_from=50),
    Column("finding", 24, right=False),
)
_SURE = {
    Certainty.MEASURED: "the cause itself was measured",
    Certainty.LIKELY: "what was measured fits this cause, and others that look alike are excluded",
    Certainty.POSSIBLE: "what was measured fits this cause, and others, too",
}
_LIST_LEAST = 3
_NONE = "Nothing is found: no rule sees a cause that costs steps time."
_NOT_YET = "Nothing is known yet: rules look at three measured steps or more."


class FindingsView(JobView):
    """What can win most first."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._cursor: tuple[str, tuple[int, ...]] | None = None
        """Rule and ranks: a finding's figures change while it holds. None: the first one."""
        self._first = 0

    @property
    def selected(self) -> Finding | None:
        """The one that the cursor is on."""
        found = self.state.findings or ()
        return found[self._at(found)] if found else None

    def move(self, lines: int) -> None:
        """Select the one that many lines further down; stops at either end."""
        if found := self.state.findings:
            self._cursor = _key(found[min(max(self._at(found) + lines, 0), len(found) - 1)])
            self.redraw()

    def draw(self, width: int, height: int) -> list[StyledLine]:
        found = self.state.findings
        if not found:
            words = _NOT_YET if found is None else _NONE
            return [fit(self._title(""), [], width), (), *paragraph(words, width, TEXT)]
        at, about = self._at(found), self._title(f"  {len(found)}")
        about.append(Item((dim("what mending can win most first; gains overlap: they do not add up"),), 1))
        detail = self._in_full(found[at], width)
        room = max(min(_LIST_LEAST, height - 3), height - 3 - len(detail))
        shown = room - 1 if 1 < room < len(found) else max(1, room)
        self._first = scrolled(self._first, at, len(found), shown)
        table = Table(_COLUMNS, width, {"finding": [each.title for each in found]})
        lines = [fit(about, [], width), table.header()]
        for index, each in enumerate(found[self._first : self._first + shown], self._first):
            cells = ((bold(_gain(each)),), (dim(each.certainty.value),), (Segment(each.title),))
            lines.append(table.row(cells, cursor=index == at))
        if (more := len(found) - self._first - shown) > 0:
            lines.append((dim(f"  … {more:,} more below"),))
        return [*lines, (), *detail]

    async def on_click(self, event: events.Click) -> None:
        found, at = self.state.findings or (), self._first + event.y - 2
        if event.y >= 2 and at < len(found):
            self._cursor = _key(found[at])
            self.redraw()
            if event.chain >= 2:
                await self.screen.run_action("screen.open")

    async def wheel(self, direction: int, x: int) -> None:  # noqa: ARG002
        """Move the cursor."""
        self.move(direction)

    def _at(self, found: tuple[Finding, ...]) -> int:
        return next((at for at, each in enumerate(found) if _key(each) == self._cursor), 0)

    def _title(self, number: str) -> list[Item]:
        """A past step is of another moment than what was found."""
        past = self.state.past_step is not None
        moment = Item((Segment("as they were at the pause", TextStyle("warning")),))
        return [Item((*titled("Findings"), bold(number))), *([moment] if past else [])]

    def _in_full(self, each: Finding, width: int) -> list[StyledLine]:
        totals, gain = self.state.snapshot.totals, "not known"
        if each.gain_ns is not None:
            gain = f"at most {duration(each.gain_ns)} a step"
            if totals.step_ns and totals.measured_step != WHOLE_TRACE:
                gain += f" ({percent(each.gain_ns / totals.step_ns)})"
        lines = paragraph(each.title, width, BOLD)
        for label, words in (
            ("to do", each.advice),
            ("to win", gain),
            ("measured", each.measured),
            ("how sure", f"{each.certainty.value}: {_SURE[each.certainty]}"),
            ("about", f"{named_ranks(each.ranks) if each.ranks else 'the whole job'}; rule {each.rule}"),
        ):
            style = TextStyle("accent") if label == "to do" else TEXT
            lines += hanging((dim(f" {label:<9}"),), words, width, style)
        return lines


def _key(each: Finding) -> tuple[str, tuple[int, ...]]:
    return each.rule, each.ranks


def _gain(each: Finding) -> str:
    return UNKNOWN if each.gain_ns is None else duration(each.gain_ns)
