"""The timeline's actions, shared by the overview and the rank's screen."""

from __future__ import annotations

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
        lanes = self.state.lanes
        if lanes is None or not lanes.detail.collectives:
            return
        last = len(lanes.detail.collectives) - 1
        at = self.state.collective
        self.action_select_collective(0 if at is None else min(max(at + lines, 0), last))

    def action_select_collective(self, index: int) -> None:
        """Select that collective; a zoomed viewport follows it."""
        state = self.state
        state.select_collective(index)
        lanes = state.lanes
        if lanes is not None and state.viewport.zoom > 1 and lanes.detail.step_ns:
            selected = lanes.detail.collectives[index]
            middle = (selected.start_ns + selected.end_ns) / 2 / lanes.detail.step_ns
            state.viewport = state.viewport.showing(middle)
        self.redraw()
