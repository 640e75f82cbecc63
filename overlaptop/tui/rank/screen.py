"""Everything that is known of one rank."""

from __future__ import annotations

from typing import ClassVar

from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.help.glossary import RANK
from overlaptop.tui.keys import RANK_KEYS, TIMELINE_KEYS, bindings
from overlaptop.tui.rank.facts import RankFacts
from overlaptop.tui.screen import Heights
from overlaptop.tui.timeline.collectives import Collectives
from overlaptop.tui.timeline.history_chart import HistoryChart
from overlaptop.tui.timeline.screen import TimelineScreen
from overlaptop.tui.timeline.timeline import Timeline
from overlaptop.tui.timeline.viewport import Viewport
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.key_bar import (
    BACK_HINT,
    HELP_HINT,
    KNOB_HINT,
    PAST_HINT,
    PAUSE_HINT,
    QUIT_HINT,
    STEP_HINT,
    KeyBar,
)

HINTS = (
    BACK_HINT,
    HELP_HINT,
    KNOB_HINT,
    STEP_HINT,
    ("tab", "next rank", "screen.next_rank(1)", "next"),
    ("↑ ↓", "collective", "screen.collective(1)", "call"),
    ("+ -", "zoom", "screen.zoom(1)"),
    ("← →", "pan", "screen.pan(1)"),
    ("enter", "zoom to it", "screen.fit_collective"),
    ("0", "whole step", "screen.whole_step"),
    PAUSE_HINT,
    PAST_HINT,
    ("m", "machine", "app.machine"),
    QUIT_HINT,
)


class RankScreen(TimelineScreen):
    """The chosen rank: facts, timeline, collectives, history."""

    title_in_help = RANK
    BINDINGS: ClassVar = bindings((*RANK_KEYS, *TIMELINE_KEYS))

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._header = JobHeader(dashboard)
        self._facts = RankFacts(dashboard)
        self._timeline = Timeline(dashboard)
        self._collectives = Collectives(dashboard)
        self._history = HistoryChart(dashboard)
        self._keys = KeyBar(dashboard, HINTS)

    def heights(self, width: int, height: int) -> Heights:
        airy = 1 if height >= 28 else 0
        foot = 1 if height >= 8 else 0
        facts = 1 if height < 12 else min(self._facts.full_height(width), 4 if height < 24 else 8)
        rest = height - 1 - foot - facts - airy
        timeline = max(0, min(self._timeline.full_height, rest if rest < 12 else rest // 2))
        rest -= timeline
        history = min(12, rest // 2) if rest >= 12 else 0
        collectives = rest - history - (airy if history else 0) - airy
        if history:
            spare = max(0, collectives - max(4, self.state.most_collectives + 1))
            collectives -= spare
            history += min(spare, 24 - history)
        return (
            (self._header, 1, 0),
            (self._facts, facts, 0),
            (self._timeline, timeline, airy),
            (self._collectives, max(0, collectives), airy),
            (self._history, history, airy),
            (self._keys, foot, 0),
        )

    def action_next_rank(self, rows: int) -> None:
        """The next one that passes the filter, in the table's order."""
        self.state.move(rows)
        self.show_chosen()

    def action_fit_collective(self) -> None:
        """Zoom to the chosen collective, and go with it from step to step."""
        lanes, index = self.state.lanes, self.state.collective
        if lanes is None or index is None or index >= len(lanes.detail.collectives):
            return
        chosen, step_ns = lanes.detail.collectives[index], max(1, lanes.detail.step_ns)
        self.state.viewport = Viewport.around(chosen.start_ns / step_ns, chosen.end_ns / step_ns)
        self.state.follows = True
        self.redraw()
