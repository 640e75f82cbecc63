"""The list of findings, and the selected one: what was measured, what it can win, how sure, what to do."""

from __future__ import annotations

from overlaptop.findings.finding import Certainty, Finding
from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.text import UNKNOWN, duration, named_ranks, percent
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
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.view import RowList

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


class FindingsView(RowList[Finding]):
    """What can win most first."""

    @property
    def rows(self) -> tuple[Finding, ...]:
        return self.state.findings or ()

    def key(self, row: Finding) -> object:
        """A finding's figures change while it holds."""
        return row.rule, row.ranks

    def draw(self, width: int, height: int) -> list[StyledLine]:
        found = self.state.findings
        if not found:
            words = _NOT_YET if found is None else _NONE
            return [fit(self._title(""), [], width), (), *paragraph(words, width, TEXT)]
        about = self._title(f"  {len(found)}")
        about.append(Item((dim("what mending can win most first; gains overlap: they do not add up"),), 1))
        detail = self._in_full(found[self.at(found)], width)
        room = max(min(_LIST_LEAST, height - 3), height - 3 - len(detail))
        table = Table(_COLUMNS, width, {"finding": [each.title for each in found]})

        def row(each: Finding, chosen: bool) -> StyledLine:
            gain = UNKNOWN if each.gain_ns is None else duration(each.gain_ns)
            cells = ((bold(gain),), (dim(each.certainty.value),), (Segment(each.title),))
            return table.row(cells, cursor=chosen)

        return [fit(about, [], width), table.header(), *self.listed(found, room, row), (), *detail]

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
