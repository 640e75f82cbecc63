"""One step of all ranks on one axis, and the collectives of the selected rank."""

from collections.abc import Mapping
from typing import ClassVar

from textual import events

from overlaptop.report.who_is_late import why_not_attributed
from overlaptop.text import Unit, clock, duration
from overlaptop.tui.draw.bars import lane, ruler
from overlaptop.tui.draw.layout import Item, fit, paragraph, titled
from overlaptop.tui.draw.segments import TEXT, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.draw.table import scrolled
from overlaptop.tui.help.glossary import TIMELINES
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import TIMELINE_KEYS, TIMELINES_KEYS, bindings
from overlaptop.tui.model.lanes import TimelineStep
from overlaptop.tui.model.state import step_name
from overlaptop.tui.model.viewport import WHOLE_STEP
from overlaptop.tui.overview.lines import Legend
from overlaptop.tui.timeline.collectives import Collectives
from overlaptop.tui.timeline.timeline import (
    LABEL,
    LaneRows,
    TimelineScreen,
    lane_cells,
    lane_label,
    zoom_items,
    zoomed_at,
)
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.view import JobView

_LANES = 5  # Lines of the selected rank's lanes, without copies


class Timelines(JobView):
    """A row for each rank: the parts of its step at their times."""

    _first = 0
    _ranks_at: Mapping[int, int] = {}  # Ranks by line

    def full_height(self, width: int) -> int:  # noqa: ARG002
        return 2 + 3 * len(self.state.rows) + _LANES + self.state.copies_seen

    def draw(self, width: int, height: int) -> list[StyledLine]:
        step, state = self.state.timeline, self.state
        if step is None:
            why = state.starting or why_not_attributed(state.snapshot)
            return [titled("Timelines"), (), *paragraph(f"no timeline to show: {why}", width, TEXT)]
        ranks = [view.rank for view in state.rows]
        rest, lanes = height - 2, _LANES + state.copies_seen
        has_lanes = rest >= len(ranks) + lanes
        rest -= lanes * has_lanes
        gap = 1 if rest >= 2 * len(ranks) else 0
        thick = 2 if rest >= 3 * len(ranks) else 1
        shown = max(1, (rest - 1) // (1 + gap)) if len(ranks) * (1 + gap) > rest else len(ranks)
        self._first = scrolled(self._first, ranks.index(step.rank), len(ranks), shown)
        bounds_ns, cells = self._bounds_ns(step), lane_cells(width)
        axis = ruler(*bounds_ns, cells, Unit.for_scale(round(bounds_ns[1] - bounds_ns[0])), line=True)
        lines = [self._title(step, width), (lane_label(" rank"), *axis)]
        self._ranks_at = {}
        for each in ranks[self._first : self._first + shown]:
            row = _row(step, each, bounds_ns, cells)
            below_it = (lane_label(""), *row[2:]) if each in step.details else ()
            for line in (row, below_it)[:thick]:
                self._ranks_at[len(lines)] = each
                lines.append(line)
            lines += [()] * gap
        if (more := len(ranks) - self._first - shown) > 0:
            lines.append((dim(f"  … {more:,} more below"),))
        if has_lanes:
            lines += [()] * (1 - gap)
            lines += self._lanes(step, bounds_ns, cells)
        return lines

    async def on_click(self, event: events.Click) -> None:
        """Select the rank, and its collective at this position."""
        step, rank = self.state.timeline, self._ranks_at.get(event.y)
        if step is None or rank is None:
            return
        self.dashboard.hold_step()
        self.state.rank = rank
        start_ns, end_ns = self._bounds_ns(step)
        at_ns = start_ns + (event.x - LABEL + 0.5) / lane_cells(self.size.width) * (end_ns - start_ns)
        if (call := step.call_at(rank, at_ns)) is not None:
            self.state.select_collective(call)
        self.dashboard.on_change()

    async def wheel(self, direction: int, x: int) -> None:
        self.state.viewport = zoomed_at(self.state.viewport, x, self.size.width, direction)

    def _bounds_ns(self, step: TimelineStep) -> tuple[float, float]:
        """Return the part of the axis on the screen: all of it, or the selected rank's viewport."""
        if self.state.viewport == WHOLE_STEP:
            return 0, step.length_ns
        start_ns, end_ns = self.state.viewport.bounds_ns(step.details[step.rank].step_ns)
        return start_ns + step.offset_ns(step.rank), end_ns + step.offset_ns(step.rank)

    def _title(self, step: TimelineStep, width: int) -> StyledLine:
        name, number = step_name(step.details[step.rank].step)
        left = [
            Item((*titled("Timelines"), dim(f"  {name}"), bold(number))),
            Item((bold(duration(step.length_ns)), dim(f" at {clock(step.begins_ns)}")), 2),
        ]
        return fit(left, zoom_items(self.state.viewport, step.details[step.rank].step_ns), width)

    def _lanes(self, step: TimelineStep, bounds_ns: tuple[float, float], cells: int) -> list[StyledLine]:
        lanes, offset_ns = step.lanes(step.rank), step.offset_ns(step.rank)
        rows = LaneRows(lanes, (bounds_ns[0] - offset_ns, bounds_ns[1] - offset_ns), cells)
        drawn = [rows.phases(), rows.row(lanes.label, lanes.compute), rows.row("comm", lanes.comm)]
        below = [rows.row("copy", lanes.copy)] if self.state.copies_seen else []
        return [*drawn, rows.names(self.state.collective), *below]


class TimelinesScreen(TimelineScreen):
    """The ranks' rows, the legend, the selected rank's collectives, and keys."""

    title_in_help = TIMELINES
    BINDINGS: ClassVar = bindings((*TIMELINES_KEYS, *TIMELINE_KEYS))

    def __init__(self, dashboard: Dashboard) -> None:
        views = Timelines(dashboard), Legend(dashboard), Collectives(dashboard)
        super().__init__(dashboard, JobHeader(dashboard), *views)

    def action_move(self, rows: int) -> None:
        self.state.move(rows)

    def action_collective(self, lines: int) -> None:
        self.dashboard.hold_step()
        super().action_collective(lines)


def _row(step: TimelineStep, rank: int, bounds_ns: tuple[float, float], cells: int) -> StyledLine:
    selected = rank == step.rank
    mark = Segment("▸ " if selected else "  ", TextStyle("accent", bold=True))
    label = (mark, (bold if selected else dim)(f"{rank:<{LABEL - 2}}"))
    if rank not in step.details:
        return (*label, dim("its timeline of this step is not here"))
    start_ns, end_ns = (at_ns - step.offset_ns(rank) for at_ns in bounds_ns)
    return (*label, *lane(step.parts(rank), start_ns, end_ns, cells))
