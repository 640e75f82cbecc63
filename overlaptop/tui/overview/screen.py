"""The job at a glance: totals, a row for each rank, the timeline of the selected one."""

from functools import partial
from typing import ClassVar

from overlaptop.report.order import Filter, FilterError, known_quantities, sort_keys
from overlaptop.tui.help.glossary import OVERVIEW, TIMELINES
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import OVERVIEW_KEYS, TIMELINE_KEYS, TIMELINES_KEYS, bindings
from overlaptop.tui.model.state import following
from overlaptop.tui.model.viewport import WHOLE_STEP
from overlaptop.tui.overview.lines import FirstLineView, Legend, TotalsLine
from overlaptop.tui.overview.rank_table import RankTable
from overlaptop.tui.timeline.collectives import Collectives
from overlaptop.tui.timeline.history_chart import HistoryChart
from overlaptop.tui.timeline.timeline import Timeline, TimelineScreen
from overlaptop.tui.tune.change_panel import ChangePanel
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.prompt import LinePrompt


class OverviewScreen(TimelineScreen):
    """The first screen."""

    title_in_help = OVERVIEW
    BINDINGS: ClassVar = bindings((*OVERVIEW_KEYS, *TIMELINE_KEYS))

    def __init__(self, dashboard: Dashboard, *, on_axis: bool = False) -> None:
        """``on_axis``: draw the ranks' step on one axis, instead of its parts as bars."""
        self._table = RankTable(dashboard, on_axis=on_axis)
        self._collectives = Collectives(dashboard)
        super().__init__(
            dashboard,
            JobHeader(dashboard),
            FirstLineView(dashboard),
            TotalsLine(dashboard),
            self._table,
            Legend(dashboard),
            Timeline(dashboard, on_axis=on_axis),
            # In place of collectives and history, so that nothing else moves when it appears.
            ChangePanel(dashboard),
            self._collectives,
            HistoryChart(dashboard),
        )

    def redraw(self, *, everything: bool = False) -> None:
        self.set_class(self._table.folded, "-folded")
        super().redraw(everything=everything)

    def action_comparison(self) -> None:
        self.state.panel_hidden = not self.state.panel_hidden

    def action_move(self, rows: int) -> None:
        self.state.move(rows, self._table.listed if abs(rows) == 1 else self._table.places)

    def action_pan(self, direction: int) -> None:
        """Pan the timeline; over the marks of a folded job, select the rank beside the selected one."""
        if self._table.folded and self.state.viewport == WHOLE_STEP:
            self.state.move(direction, self._table.places)
        else:
            super().action_pan(direction)

    def action_page(self, pages: int) -> None:
        self.action_move(pages * self._table.page_rows)

    def action_select_rank(self, rank: int) -> None:
        self.state.rank = rank

    def action_sort_by(self, key: str) -> None:
        self.state.sort_by(key)

    def action_sort(self) -> None:
        """Sort by the next column, worst figures first (overlap: lowest, times: longest)."""
        self.state.sort_by(following(self.state.sort_key, sort_keys(self.state.snapshot.ranks)))

    def action_reverse(self) -> None:
        self.state.reverse = not self.state.reverse

    def action_map(self) -> None:
        known = known_quantities(self.state.snapshot.ranks)
        self.state.map_quantity = following(self.state.map_quantity, known)

    def action_collectives(self) -> None:
        self._collectives.display = not self._collectives.size
        self.set_class(not self._collectives.display, "-unlisted")

    async def action_filter(self) -> None:
        """Ask for a filter at the foot of the screen; it applies while it is typed."""
        take = partial(self._filter, self.state.filter)
        example = "3   0-3   overlap<80   step>50ms   host"
        words = self.state.filter.words
        await self.ask(LinePrompt("filter /", words, example, take, partial(take, typing=True)))

    def _filter(self, before: Filter, words: str, *, typing: bool = False) -> str:
        """Filter, or keep the filter ``before`` and return why; while typing, also if no rank matches."""
        try:
            wanted, fault = Filter.parse(words), ""
        except FilterError as error:
            wanted, fault = before, str(error)
        if typing and wanted.words and not any(map(wanted.keeps, self.state.snapshot.ranks)):
            wanted, fault = before, fault or f"no rank matches {words}"
        self.state.filter = wanted
        self.dashboard.on_change()
        return fault

    def action_back(self) -> None:
        """Go back to live from a past step; else drop the filter."""
        if self.state.past_step is not None:
            self.dashboard.resume()
        else:
            self.state.filter = Filter()


class TimelinesScreen(OverviewScreen):
    """The overview, with rows that are timelines: one step of all ranks on one axis."""

    title_in_help = TIMELINES
    BINDINGS: ClassVar = bindings(TIMELINES_KEYS)

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard, on_axis=True)

    def action_collective(self, lines: int) -> None:
        self.dashboard.hold_step()
        super().action_collective(lines)

    def action_back(self) -> None:
        self.app.pop_screen()
