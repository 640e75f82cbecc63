"""One step of all ranks on one axis, with a cursor and the spans below it."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from textual import events

from overlaptop.fleet.records import BOUNDS
from overlaptop.report.order import sees_gaps
from overlaptop.report.who_is_late import why_not_attributed
from overlaptop.text import Unit, bounded, byte_count, clock, duration, percent, rate
from overlaptop.tui.draw.bars import crossed, lane, ruler
from overlaptop.tui.draw.layout import Item, fit, paragraph, titled
from overlaptop.tui.draw.segments import TEXT, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.draw.table import scrolled
from overlaptop.tui.help.glossary import TIMELINES
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import TIMELINES_KEYS, bindings
from overlaptop.tui.model.lanes import Lanes, TimelineStep, Under
from overlaptop.tui.model.state import step_name
from overlaptop.tui.model.viewport import WHOLE_STEP, Viewport
from overlaptop.tui.overview.lines import Legend
from overlaptop.tui.timeline.timeline import (
    LABEL,
    ZOOM_FACTOR,
    LaneRows,
    lane_cells,
    lane_label,
    op_name,
    zoom_items,
    zoomed_at,
)
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.screen import DashboardScreen
from overlaptop.tui.widgets.view import JobView

_WIDE = 120  # Narrower screens show a collective's cost on its own line
_READ_OUT, _TALL_READ_OUT, _TALL = 6, 10, 36
"""Lines of the read-out, on a usual and on a tall screen: fixed, so that nothing moves."""
_LANES = 6


class Timelines(JobView):
    """A row for each rank: the parts of its step at their times."""

    viewport = WHOLE_STEP
    _cursor_ns = _first = 0
    _follows = False  # True if the cursor follows the selected collective to other ranks and steps
    _step: TimelineStep | None = None
    _ranks_at: Mapping[int, int] = {}  # Ranks by line

    @property
    def step(self) -> TimelineStep | None:
        step, index = self.state.timeline, self.state.collective
        if step is not None and step is not self._step:
            self._step = step
            if self._follows and index is not None:
                self._put(step, step.span(step.rank, index)[0], follows=True)
            else:
                self._cursor_ns = min(self._cursor_ns, step.length_ns - 1)
        return step

    def move_cursor(self, cells: int) -> None:
        self.dashboard.hold_step()
        if (step := self.step) is not None:
            self._put(step, self._cursor_ns + cells * self._cell_ns(step))

    def to_collective(self, direction: int) -> None:
        self.dashboard.hold_step()
        step = self.step
        if step is not None and (index := step.neighbour(self._cursor_ns, direction)) is not None:
            self.show_collective(index)

    def show_collective(self, index: int, *, fits: bool = False) -> None:
        """Put the cursor on a collective of the selected rank and follow it; ``fits``: also zoom to it."""
        if (step := self.step) is None:
            return
        self.state.select_collective(index)
        start_ns, end_ns = step.span(step.rank, index)
        self._put(step, start_ns, follows=True)
        if fits:
            self.viewport = Viewport.around(start_ns / step.length_ns, end_ns / step.length_ns)

    def fit_collective(self) -> None:
        self.dashboard.hold_step()
        if (step := self.step) is not None:
            calls = (each.call for each in self._under(step) if each.call is not None)
            if (call := next(calls, None)) is not None:
                self.show_collective(call, fits=True)

    def zoom(self, direction: int) -> None:
        if (step := self.step) is not None:
            anchor = (self._cursor_ns / step.length_ns - self.viewport.left) / self.viewport.width
            self.viewport = self.viewport.zoomed(ZOOM_FACTOR**direction, min(1.0, max(0.0, anchor)))

    def whole_step(self) -> None:
        self.viewport = WHOLE_STEP

    def draw(self, width: int, height: int) -> list[StyledLine]:
        step, state = self.step, self.state
        if step is None:
            why = state.starting or why_not_attributed(state.snapshot)
            return [titled("Timelines"), (), *paragraph(f"no timeline to show: {why}", width, TEXT)]
        ranks = [view.rank for view in state.rows]
        below = min(_TALL_READ_OUT if height >= _TALL else _READ_OUT, max(0, height - 3))
        rest = height - 2 - below
        has_lanes = rest >= len(ranks) + _LANES + 1
        rest -= (_LANES + 1) * has_lanes
        gap = 1 if rest >= 2 * len(ranks) else 0
        thick = 2 if rest >= 3 * len(ranks) else 1
        shown = max(1, (rest - 1) // (1 + gap)) if len(ranks) * (1 + gap) > rest else len(ranks)
        self._first = scrolled(self._first, ranks.index(step.rank), len(ranks), shown)
        column, bounds_ns, cells = self._column(step, width), self._bounds_ns(step), lane_cells(width)
        axis = ruler(*bounds_ns, cells, Unit.for_scale(step.length_ns), line=True)
        if "".join(part.text for part in axis)[column : column + 1] in "─╷ ":  # else a figure would change
            axis = crossed(axis, column)
        lines = [self._title(step, width), (lane_label(" rank"), *axis)]
        self._ranks_at = {}
        for each in ranks[self._first : self._first + shown]:
            row = self._row(step, each, cells, column)
            below_it = (lane_label(""), *row[2:]) if each in step.details else ()
            for line in (row, below_it)[:thick]:
                self._ranks_at[len(lines)] = each
                lines.append(line)
            lines += [()] * gap
        if (more := len(ranks) - self._first - shown) > 0:
            lines.append((dim(f"  … {more:,} more below"),))
        if has_lanes:
            lines += [()] * (1 - gap)
            offset_ns = step.offset_ns(step.rank)
            bounds = bounds_ns[0] - offset_ns, bounds_ns[1] - offset_ns
            lines += self._lanes(LaneRows(step.lanes(step.rank), bounds, cells), column)
        lines += [()] * min(1, height - below - len(lines))
        return [*lines, *self._read_out(step, width, height - len(lines))]

    async def on_click(self, event: events.Click) -> None:
        self.dashboard.hold_step()
        step = self.step
        if event.y in self._ranks_at:
            self.state.rank = self._ranks_at[event.y]
        if step is not None and event.x >= LABEL:
            start_ns, _ = self._bounds_ns(step)
            self._put(step, start_ns + (event.x - LABEL + 0.5) * self._cell_ns(step))
        self.dashboard.on_change()

    async def wheel(self, direction: int, x: int) -> None:
        self.viewport = zoomed_at(self.viewport, x, self.size.width, direction)

    def _bounds_ns(self, step: TimelineStep) -> tuple[float, float]:
        return self.viewport.bounds_ns(step.length_ns)

    def _cell_ns(self, step: TimelineStep) -> float:
        return step.length_ns * self.viewport.width / lane_cells(self.size.width)

    def _column(self, step: TimelineStep, width: int) -> int:
        """Return the cursor's column; -1: it is not visible."""
        start_ns, end_ns = self._bounds_ns(step)
        column = int((self._cursor_ns - start_ns) / (end_ns - start_ns) * lane_cells(width) + 1e-9)
        return column if start_ns <= self._cursor_ns < end_ns else -1

    def _put(self, step: TimelineStep, at_ns: float, *, follows: bool = False) -> None:
        self._follows = follows
        self._cursor_ns = min(max(0, round(at_ns)), step.length_ns - 1)
        self.viewport = self.viewport.showing(self._cursor_ns / step.length_ns)

    def _cell(self, step: TimelineStep) -> tuple[float, float]:
        """Return the bounds of the cursor's cell, in ns."""
        start_ns, cell_ns = self._bounds_ns(step)[0], self._cell_ns(step)
        left_ns = start_ns + (self._cursor_ns - start_ns) // cell_ns * cell_ns
        return left_ns, left_ns + cell_ns

    def _under(self, step: TimelineStep) -> list[Under]:
        return step.under(*self._cell(step), self.state.collective)

    def _title(self, step: TimelineStep, width: int) -> StyledLine:
        name, number = step_name(step.details[step.rank].step)
        left = [
            Item((*titled("Timelines"), dim(f"  {name}"), bold(number))),
            Item((bold(duration(step.length_ns)), dim(f" at {clock(step.begins_ns)}")), 2),
        ]
        return fit(left, zoom_items(self.viewport, step.length_ns), width)

    def _row(self, step: TimelineStep, rank: int, cells: int, column: int) -> StyledLine:
        selected = rank == step.rank
        mark = Segment("▸ " if selected else "  ", TextStyle("accent", bold=True))
        label = (mark, (bold if selected else dim)(f"{rank:<{LABEL - 2}}"))
        if rank not in step.details:
            return (*label, dim("its timeline of this step is not here"))
        start_ns, end_ns = (at_ns - step.offset_ns(rank) for at_ns in self._bounds_ns(step))
        drawn = lane(step.parts(rank), start_ns, end_ns, cells)
        return (*label, *crossed(drawn, column))

    def _lanes(self, rows: LaneRows, column: int) -> list[StyledLine]:
        lanes = rows.lanes
        drawn = [rows.phases(), rows.row(lanes.label, lanes.compute), rows.row("comm", lanes.comm)]
        below = [rows.row("copy", lanes.copy)] if self.state.copies_seen else []
        drawn, below = ([(row[0], *crossed(row[1:], column)) for row in each] for each in (drawn, below))
        return [*drawn, rows.names(self.state.collective), *below]

    def _read_out(self, step: TimelineStep, width: int, rows: int) -> list[StyledLine]:
        """Return ``rows`` lines about the spans below the cursor."""
        left_ns, right_ns = self._cell(step)
        unit = _unit(step.length_ns, right_ns - left_ns)
        at = bold(f"{unit.text(self._cursor_ns)} {unit.name}")
        lines: list[StyledLine] = [(bold(f" rank {step.rank}"), dim("  at "), at)]
        found = step.under(left_ns, right_ns, self.state.collective)
        if not found:
            begins_ns = step.offset_ns(step.rank)
            ends_ns = begins_ns + step.details[step.rank].step_ns
            bound, at_ns = ("begins", begins_ns) if right_ns <= begins_ns else ("ended", ends_ns)
            lines.append((dim(f" its step {bound} at {unit.text(at_ns)} {unit.name}"),))
        for each in found:
            bounds = f"{unit.text(each.start_ns)} – {unit.text(each.end_ns)} {unit.name}"
            items = [Item((lane_label(each.lane), Segment(bounds)))]
            items.append(Item((dim(duration(each.end_ns - each.start_ns)),), 5))
            cost: list[Item] = []
            if each.call is not None:
                call = step.details[step.rank].collectives[each.call]
                items.append(Item((bold(op_name(call)), dim(f" {byte_count(call.bytes)}"))))
                exact = self.state.selected is None or sees_gaps(self.state.selected)
                cost = _cost(step.lanes(step.rank), each.call, exact=exact)
            if cost and width < _WIDE:
                cost[0] = cost[0]._replace(line=(lane_label(""), *cost[0].line))
                lines += [fit(items, [], width, "  "), fit(cost, [], width, "  ")]
            else:
                lines.append(fit([*items, *cost], [], width, "  "))
        if len(lines) > rows:
            lines[rows - 1 :] = [(dim("  … and more under the cursor"),)]
        return [*lines, *[()] * (rows - len(lines))]


class TimelinesScreen(DashboardScreen):
    """The ranks' rows, the legend, and keys."""

    title_in_help = TIMELINES
    BINDINGS: ClassVar = bindings(TIMELINES_KEYS)

    def __init__(self, dashboard: Dashboard) -> None:
        view = self._timelines = Timelines(dashboard)
        super().__init__(dashboard, JobHeader(dashboard), view, Legend(dashboard))
        self.action_cursor, self.action_collective = view.move_cursor, view.to_collective
        self.action_zoom, self.action_whole_step = view.zoom, view.whole_step
        self.action_fit_collective = view.fit_collective

    def fit_selected(self) -> None:
        if (index := self.state.collective) is not None:
            self._timelines.show_collective(index, fits=True)

    def action_move(self, rows: int) -> None:
        self.state.move(rows)


def _unit(longest_ns: int, cell_ns: float) -> Unit:
    """Return a unit with enough digits to distinguish neighbouring cells."""
    unit = Unit.for_scale(longest_ns)
    digits = math.ceil(math.log10(unit.size_ns / max(1.0, cell_ns)))
    return replace(unit, decimals=max(unit.decimals, digits))


def _cost(lanes: Lanes, index: int, *, exact: bool) -> list[Item]:
    matched, rank = lanes.matched[index], lanes.detail.rank
    items = []
    wait_ns = matched.wait_ns(rank) if matched is not None else None
    if matched is not None and wait_ns is not None:
        words = f"waiting {duration(wait_ns)}, transfer {duration(matched.transfer_ns(rank))}"
        items.append(Item((Segment(words),)))
        if matched.late_rank is not None:
            items.append(Item((dim("late rank "), bold(str(matched.late_rank))), 2))
        if matched.bus_bandwidth is not None:
            items.append(Item((Segment(rate(matched.bus_bandwidth)),), 4))
    else:
        why = matched.not_attributed if matched is not None else ""
        items.append(Item((dim(f"not attributed{': ' * bool(why)}{why}"),)))
    hidden = bounded(percent(lanes.hidden_share(index)), BOUNDS["hidden_ns"], exact=exact)
    items.append(Item((dim("hidden "), Segment(hidden)), 3))
    return items
