"""The collectives of the step that is shown, on all ranks."""

from __future__ import annotations

from typing import ClassVar

from overlaptop.tui.collectives.rows import GROUPINGS, ORDERS
from overlaptop.tui.collectives.view import CollectiveTable
from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.help.glossary import COLLECTIVES
from overlaptop.tui.keys import COLLECTIVES_KEYS, bindings
from overlaptop.tui.page import PageScreen
from overlaptop.tui.timelines.screen import TimelinesScreen
from overlaptop.tui.widgets.key_bar import BACK_HINT, HELP_HINT, PAST_HINT, PAUSE_HINT, QUIT_HINT, STEP_HINT


class CollectivesScreen(PageScreen):
    """The table, and its keys."""

    title_in_help = COLLECTIVES
    BINDINGS: ClassVar = bindings(COLLECTIVES_KEYS)
    hints = (
        BACK_HINT,
        HELP_HINT,
        STEP_HINT,
        ("enter", "timeline", "screen.open", "timeline"),
        ("s", "sort", "screen.sort", "sort"),
        ("tab", "group by op, by bucket", "screen.group(1)", "group"),
        ("↑ ↓", "select", "screen.move(1)"),
        ("S", "reverse", "screen.reverse"),
        PAUSE_HINT,
        PAST_HINT,
        QUIT_HINT,
    )
    airy_from = 28

    def __init__(self, dashboard: Dashboard) -> None:
        self._table = CollectiveTable(dashboard)
        super().__init__(dashboard, self._table)

    def action_sort(self) -> None:
        orders = list(ORDERS)
        self._table.order = orders[(orders.index(self._table.order) + 1) % len(orders)]
        self._table.reverse = False
        self.redraw()

    def action_reverse(self) -> None:
        self._table.reverse = not self._table.reverse
        self.redraw()

    def action_group(self, direction: int) -> None:
        groupings = list(GROUPINGS)
        self._table.grouping = groupings[
            (groupings.index(self._table.grouping) + direction) % len(groupings)
        ]
        self.redraw()

    async def action_open(self) -> None:
        """The one that is selected, of several the one with most exposed time, on the timelines."""
        if (row := self._table.selected) is None:
            return
        state, wanted = self.state, self._table.costliest(row)
        ranks = [part.rank for part in wanted.parts]
        if state.chosen is None or state.chosen.rank not in ranks:
            state.rank = ranks[0] if wanted.late_rank is None else wanted.late_rank
            self.dashboard.watch()
        if (lanes := state.lanes) is not None and wanted in lanes.matched:
            state.choose_collective(lanes.matched.index(wanted))
        await self.app.push_screen(TimelinesScreen(self.dashboard, fits=True))
