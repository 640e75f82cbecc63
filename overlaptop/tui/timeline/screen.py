"""The timeline's actions, shared by the overview and the rank's screen."""

from overlaptop.tui.model.viewport import WHOLE_STEP
from overlaptop.tui.timeline.timeline import ZOOM_FACTOR
from overlaptop.tui.widgets.screen import DashboardScreen

PAN_SHARE = 0.2


class TimelineScreen(DashboardScreen):
    """Zoom, pan, and the selected collective."""

    def action_zoom(self, direction: int) -> None:
        self.state.viewport = self.state.viewport.zoomed(ZOOM_FACTOR**direction)
        self.redraw()

    def action_pan(self, direction: int) -> None:
        self.state.viewport = self.state.viewport.panned(PAN_SHARE * direction)
        self.state.follows = False
        self.redraw()

    def action_whole_step(self) -> None:
        self.state.viewport = WHOLE_STEP
        self.state.follows = False
        self.redraw()

    def action_collective(self, lines: int) -> None:
        lanes, at = self.state.lanes, self.state.collective
        if lanes is not None and lanes.detail.collectives:
            last = len(lanes.detail.collectives) - 1
            self.action_select_collective(0 if at is None else min(max(at + lines, 0), last))

    def action_select_collective(self, index: int) -> None:
        """Select that collective; a zoomed viewport follows it."""
        state = self.state
        state.select_collective(index)
        if state.lanes is not None and state.viewport.zoom > 1:
            state.viewport = state.viewport.showing(sum(state.lanes.place(index)) / 2)
        self.redraw()
