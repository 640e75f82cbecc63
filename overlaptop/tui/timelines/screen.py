"""The timelines of all ranks in the step that is shown."""

from __future__ import annotations

from typing import ClassVar

from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.help.glossary import TIMELINES
from overlaptop.tui.keys import TIMELINES_KEYS, bindings
from overlaptop.tui.overview.legend import Legend
from overlaptop.tui.screen import DashboardScreen, Heights
from overlaptop.tui.timeline.viewport import WHOLE_STEP
from overlaptop.tui.timelines.view import Timelines
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.key_bar import (
    BACK_HINT,
    COLLECTIVES_HINT,
    HELP_HINT,
    PAST_HINT,
    PAUSE_HINT,
    QUIT_HINT,
    STEP_HINT,
    KeyBar,
)

HINTS = (
    BACK_HINT,
    HELP_HINT,
    STEP_HINT,
    ("← →", "cursor", "screen.cursor(1)", "cursor"),
    ("↑ ↓", "rank", "screen.move(1)", "rank"),
    (", .", "collective", "screen.collective(1)", "call"),
    ("+ -", "zoom", "screen.zoom(1)"),
    ("enter", "zoom to it", "screen.fit_collective"),
    ("0", "whole step", "screen.whole_step"),
    PAUSE_HINT,
    PAST_HINT,
    COLLECTIVES_HINT,
    QUIT_HINT,
)


class TimelinesScreen(DashboardScreen):
    """The ranks' rows, what their colours mean, and keys."""

    title_in_help = TIMELINES
    BINDINGS: ClassVar = bindings(TIMELINES_KEYS)

    def __init__(self, dashboard: Dashboard, *, fits: bool = False) -> None:
        """``fits``: zoom to the chosen collective."""
        super().__init__(dashboard)
        self._header, self._timelines = JobHeader(dashboard), Timelines(dashboard)
        self._legend, self._keys = Legend(dashboard), KeyBar(dashboard, HINTS)
        self._fits = fits

    def on_mount(self) -> None:
        if self._fits and (index := self.state.collective) is not None:
            self._timelines.show_collective(index, fits=True)

    def heights(self, width: int, height: int) -> Heights:  # noqa: ARG002
        airy, foot, legend = (
            (1 if height >= 28 else 0),
            (1 if height >= 8 else 0),
            (1 if height >= 16 else 0),
        )
        rest = max(1, height - 1 - foot - airy - legend)
        return (
            (self._header, 1, 0),
            (self._timelines, rest, airy),
            (self._legend, legend, 0),
            (self._keys, foot, 0),
        )

    def action_move(self, rows: int) -> None:
        self.state.move(rows)
        self.show_chosen()

    def action_cursor(self, cells: int) -> None:
        self._timelines.move_cursor(cells)
        self.redraw()

    def action_collective(self, direction: int) -> None:
        self._timelines.to_collective(direction)
        self.redraw()

    def action_zoom(self, direction: int) -> None:
        self._timelines.zoom(direction)
        self.redraw()

    def action_whole_step(self) -> None:
        self._timelines.viewport = WHOLE_STEP
        self.redraw()

    def action_fit_collective(self) -> None:
        self._timelines.fit_collective()
        self.redraw()
