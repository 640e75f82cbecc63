"""The job at a glance: totals, a row for each rank, the timeline of the selected one."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from overlaptop.report.order import Filter, FilterError
from overlaptop.tui.draw.segments import joined, line_width
from overlaptop.tui.help.glossary import OVERVIEW
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import OVERVIEW_KEYS, TIMELINE_KEYS, bindings
from overlaptop.tui.overview.first_line import FirstLineView
from overlaptop.tui.overview.legend import Legend
from overlaptop.tui.overview.rank_table import RankTable
from overlaptop.tui.overview.totals_line import TotalsLine, total_items
from overlaptop.tui.timeline.collectives import Collectives
from overlaptop.tui.timeline.history_chart import HistoryChart
from overlaptop.tui.timeline.screen import TimelineScreen
from overlaptop.tui.timeline.timeline import Timeline
from overlaptop.tui.tune.change_panel import LEAST_LINES, ChangePanel, wanted_lines
from overlaptop.tui.tune.change_panel import MOST_LINES as CHANGE_LINES
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.key_bar import (
    COLLECTIVES_HINT,
    HELP_HINT,
    KNOB_HINT,
    PAST_HINT,
    PAUSE_HINT,
    QUIT_HINT,
    STEP_HINT,
    TIMELINES_HINT,
    KeyBar,
)
from overlaptop.tui.widgets.screen import Heights

HINTS = (
    ("f", "why", "app.findings", "why"),
    TIMELINES_HINT._replace(short="lines"),
    COLLECTIVES_HINT._replace(short="calls"),
    ("enter", "rank", "app.rank", "rank"),
    ("W", "window", "app.window", ""),
    STEP_HINT,
    HELP_HINT,
    QUIT_HINT,
    KNOB_HINT._replace(short=None),
    ("a", "try values", "app.trials"),
    ("u", "tune", "app.tune"),
    ("w", "workloads", "app.workloads"),
    ("m", "machine", "app.machine"),
    PAUSE_HINT,
    PAST_HINT,
    ("+ -", "zoom", "screen.zoom(1)"),
    ("/", "filter", "screen.filter"),
    ("s", "sort", "screen.sort"),
    ("← →", "pan", "screen.pan(1)"),
    ("H", "hosts", "app.hosts"),
    ("c", "capture", "app.capture"),
    ("v", "list", "screen.collectives"),
    ("L", "slowest step", "app.slowest"),
    ("n", "notices", "app.notices"),
    ("o", "jobs", "app.jobs"),
    ("t", "theme", "app.next_theme"),
)
_TIMELINE_LEAST, _ROWS_LEAST, _LIST_LEAST = 6, 4, 4
_HISTORY_LEAST, _HISTORY_MOST = 6, 24


class OverviewScreen(TimelineScreen):
    """What opens first."""

    title_in_help = OVERVIEW
    BINDINGS: ClassVar = bindings((*OVERVIEW_KEYS, *TIMELINE_KEYS))

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._header = JobHeader(dashboard)
        self._first_line = FirstLineView(dashboard)
        self._totals = TotalsLine(dashboard)
        self._panel = ChangePanel(dashboard)
        self._table = RankTable(dashboard)
        self._legend = Legend(dashboard)
        self._timeline = Timeline(dashboard)
        self._collectives = Collectives(dashboard)
        self._history = HistoryChart(dashboard)
        self._keys = KeyBar(dashboard, HINTS, shows_change=False, offered=self._offered)

    def heights(self, width: int, height: int) -> Heights:
        """Rows of ranks first, then the timeline, then its collectives; little screens lose the last.

        What a change brought stands below the timeline, where it takes the place of collectives and
        history: nothing that is looked at meanwhile moves when it comes.
        """
        airy = 1 if height >= 28 else 0
        foot = 1 if height >= 8 else 0
        head = 2 if height >= 18 else 1
        one_line = (
            line_width(joined([item.line for item in total_items(self.state, width)], "  ")) <= width - 1
        )
        sums = 1 if one_line or height < 16 else 2
        first_line = 1 if height >= 8 else 0
        legend = 1 if height >= 12 else 0
        rest = height - foot - head - first_line - sums - legend - 2 * airy
        wanted = self._table.full_height
        # What is left over sets the parts of a small screen apart, whether there is a panel or not.
        more = 1 if not airy and 2 <= rest - wanted - self._timeline.full_height < _LIST_LEAST else 0
        rest -= 2 * more

        listed = self.state.show_collectives
        below = _LIST_LEAST if listed else 0
        panel = self._panel_lines(width, rest - min(wanted, _ROWS_LEAST) - _TIMELINE_LEAST - below)
        above_panel = airy if panel > 1 else 0
        rest -= panel + above_panel
        table = min(wanted, max(_ROWS_LEAST, rest - _TIMELINE_LEAST - below))
        timeline = min(self._timeline.full_height, rest - table - below)
        if timeline < 2:
            table, timeline, below = min(rest, wanted), 0, 0
        left = rest - table - timeline
        if listed is not False and left - airy >= _LIST_LEAST:
            below = max(_LIST_LEAST, min(left - airy, self.state.most_collectives + 1))
            if left - 2 * airy - _HISTORY_LEAST >= 2 * _LIST_LEAST:
                below = min(below, left - 2 * airy - _HISTORY_LEAST)
        above_list = airy if below < left else 0
        left -= below + above_list if below else 0
        history = min(_HISTORY_MOST, left - airy) if left - airy >= _HISTORY_LEAST else 0
        left -= history + airy if history else 0
        if not airy and left >= 2:
            more, left = 1, left - 2
        return (
            (self._header, head, 0),
            (self._first_line, first_line, 0),
            (self._totals, sums, 0),
            (self._table, max(1, table), airy + more),
            (self._legend, legend, 0),
            (self._timeline, timeline, airy + more),
            (self._panel, panel, above_panel),
            (self._collectives, below, above_list),
            (self._history, history, airy),
            (self._keys, foot, max(0, left)),
        )

    def _offered(self, action: str) -> bool:
        return action != "app.hosts" or bool(self.state.snapshot.nodes)

    def _panel_lines(self, width: int, room: int) -> int:
        """All of it, or its first figures, or one line; a failure keeps its words."""
        wanted = wanted_lines(self.state, width)
        if wanted < LEAST_LINES or room >= LEAST_LINES:
            return min(wanted, max(room, CHANGE_LINES))
        change = self.state.change
        return min(wanted, CHANGE_LINES if change is not None and change.state == "failed" else 1)

    def action_comparison(self) -> None:
        self.state.hide_panel()
        self.redraw()

    def action_move(self, rows: int) -> None:
        self.state.move(rows)
        self.show_selected()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * self._table.page_rows)

    def action_select_rank(self, rank: int) -> None:
        self.state.rank = rank
        self.show_selected()

    def action_sort_by(self, key: str) -> None:
        self.state.sort_by(key)
        self.redraw()

    def action_sort(self) -> None:
        self.state.sort_by_next()
        self.redraw()

    def action_reverse(self) -> None:
        self.state.reverse = not self.state.reverse
        self.redraw()

    def action_collectives(self) -> None:
        self.state.show_collectives = not self._collectives.display
        self.redraw()

    async def action_filter(self) -> None:
        """Ask for a filter at the foot of the screen; it works while it is typed."""
        # Textual's Input takes 20 ms to import: not before it is needed.
        from overlaptop.tui.overview.filter_input import FilterInput

        take = partial(self._filter, self.state.filter)
        await self.ask(FilterInput(self.state.filter.words, take, partial(take, typing=True)))

    def _filter(self, before: Filter, words: str, *, typing: bool = False) -> str:
        """Filter by words; returns why they are not taken, or not while they are typed: they keep no rank.
        Then the filter from ``before`` stays.
        """
        try:
            wanted, fault = Filter.parse(words), ""
        except FilterError as error:
            wanted, fault = before, str(error)
        if typing and wanted.words and not any(map(wanted.keeps, self.state.snapshot.ranks)):
            wanted, fault = before, fault or f"no rank matches {words}"
        self.state.filter = wanted
        self.show_selected()
        return fault

    def action_back(self) -> None:
        """Back to live from a past step; else drop the filter."""
        if self.state.past_step is not None:
            self.dashboard.resume()
            self.dashboard.on_change()
            return
        self.state.filter = Filter()
        self.show_selected()
