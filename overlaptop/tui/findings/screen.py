"""The job's findings by gain: the list, and the selected finding in full."""

from typing import ClassVar

from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.first_line import most_urgent
from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.fleet.trouble import Trouble, trouble_of
from overlaptop.report import troubles
from overlaptop.report.hosts import ranks_and_hosts
from overlaptop.report.who_is_late import why_unmeasured
from overlaptop.text import duration, percent
from overlaptop.tui.draw.layout import Item, fit, hanging, paragraph, titled
from overlaptop.tui.draw.segments import BOLD, TEXT, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.draw.table import GAP, Column, Table
from overlaptop.tui.help.glossary import FINDINGS
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import FINDINGS_KEYS, bindings
from overlaptop.tui.widgets.screen import PageScreen
from overlaptop.tui.widgets.view import RowList

_SURE = {
    Certainty.MEASURED: "the cause itself was measured",
    Certainty.LIKELY: "the measurement fits this cause; similar causes are excluded",
    Certainty.POSSIBLE: "the measurement fits this cause and others",
}
_LIST_LEAST = 3
_NONE = "No findings: no rule found a cause of slow steps."
_NOT_YET = "No findings yet: rules need three measured steps."


class FindingsView(RowList[Finding]):
    """Findings, largest gain first; the cursor begins at the one of the first line."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        if (first := most_urgent(self.rows, self.state.first_line)) is not None:
            self.cursor = self.key(first)

    @property
    def rows(self) -> tuple[Finding, ...]:
        return self.state.findings or ()

    def key(self, row: Finding) -> object:
        """A finding's figures change while it holds."""
        return row.rule, row.ranks

    def draw(self, width: int, height: int) -> list[StyledLine]:
        found, trouble = self.state.findings, trouble_of(self.state.snapshot)
        said = _of_trouble(trouble, width) if trouble is not None else []
        self.above, height = RowList.above + len(said), height - len(said)
        if not found:
            why = why_unmeasured(self.state.snapshot.ranks) if found is None else ""
            words = f"No findings: {why}." if why else _NOT_YET if found is None else _NONE
            if trouble is not None and not why:
                words = "No findings."
            return [*said, fit(self._title(""), [], width), (), *paragraph(words, width, TEXT)]
        about = self._title(f"  {len(found)}")
        about.append(Item((dim("largest gain first; gains overlap and do not add up"),), 1))
        detail = self._in_full(found[self.at(found)], width)
        space = max(min(_LIST_LEAST, height - 3), height - 3 - len(detail))
        table = Table(_columns(width), width)
        rows = self.listed(found, space, table.row)
        return [*said, fit(about, [], width), table.header(), *rows, (), *detail]

    def _title(self, number: str) -> list[Item]:
        words = "as they were at the pause" if self.state.past_step is not None else ""
        if not words and trouble_of(self.state.snapshot) is not None:
            words = "of the steps before"
        moment = [Item((Segment(words, TextStyle("warning")),))] if words else []
        return [Item((*titled("Findings"), bold(number))), *moment]

    def _in_full(self, each: Finding, width: int) -> list[StyledLine]:
        gain = "not known"
        if each.gain_ns is not None:
            gain = f"at most {duration(each.gain_ns)} a step"
            share = each.gain_share
            if share is not None and self.state.snapshot.totals.measured_step != WHOLE_TRACE:
                gain += f" of {duration(each.step_ns)} ({percent(share)})"
        lines = paragraph(each.headline, width, BOLD)
        for label, words in (
            ("to do", each.advice),
            ("to win", gain),
            *self._slope(each),
            ("measured", each.measured),
            ("how sure", f"{each.certainty.value}: {_SURE[each.certainty]}"),
            ("about", f"{self._who(each)}; rule {each.rule}"),
        ):
            style = TextStyle("accent") if label == "to do" else TEXT
            lines += hanging((dim(f" {label:<10}"),), words, width, style)
        return lines

    def _who(self, each: Finding) -> str:
        ranks = sorted(each.ranks)
        return ranks_and_hosts(ranks, self.state.snapshot.ranks) if ranks else "the whole job"

    def _slope(self, each: Finding) -> list[tuple[str, str]]:
        """Return the result of delaying its rank, if it has only one and that was tried."""
        slope = self.state.slopes.get(each.ranks[0]) if len(each.ranks) == 1 else None
        if slope is None:
            return []
        from overlaptop.trials.slack import slope_words

        return [("slope", f"{slope_words(slope)}: share of a delay of this rank that lengthens the step")]


def _columns(width: int) -> list[Column[Finding]]:
    columns: list[Column[Finding]] = [
        Column("to win", 8, lambda each: bold(duration(each.gain_ns))),
        Column("how sure", 8, lambda each: dim(each.certainty.value), right=False, shown_from=50),
    ]
    space = width - 2 * GAP - sum(each.cells + GAP for each in columns if width >= each.shown_from)

    def title(each: Finding) -> str:
        return next((title for title in each.titles if len(title) <= space), each.titles[-1])

    return [*columns, Column("finding", space, title, right=False)]


def _of_trouble(trouble: Trouble, width: int) -> list[StyledLine]:
    """Return why no step ends, and what to do, to be shown above the findings."""
    style = TextStyle(troubles.color(trouble), bold=True)
    lines = paragraph(troubles.in_full(trouble), width, style)
    if words := troubles.to_do(trouble):
        words += "; n shows the line of each rank"
        lines += hanging((dim(f" {'to do':<10}"),), words, width, TextStyle("accent"))
    return [*lines, ()]


class FindingsScreen(PageScreen[FindingsView]):
    """The list, and the selected one in full."""

    title_in_help = FINDINGS
    BINDINGS: ClassVar = bindings(FINDINGS_KEYS)
    view_class = FindingsView

    async def action_open(self) -> None:
        if (found := self._view.selected) is not None and found.ranks:
            self.state.rank = found.ranks[0]
            self.dashboard.watch()
            await self.run_action("app.rank")
