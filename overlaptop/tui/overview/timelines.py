"""One step of all ranks on one axis: the overview, with rows that are timelines."""

from typing import ClassVar

from overlaptop.tui.help.glossary import TIMELINES
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import TIMELINES_KEYS, bindings
from overlaptop.tui.overview.screen import OverviewScreen


class TimelinesScreen(OverviewScreen):
    """Rows and lanes on the axis of all ranks, and the selected rank's collectives."""

    title_in_help = TIMELINES
    BINDINGS: ClassVar = bindings(TIMELINES_KEYS)

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard, on_axis=True)

    def action_collective(self, lines: int) -> None:
        self.dashboard.hold_step()
        super().action_collective(lines)

    def action_back(self) -> None:
        self.app.pop_screen()
