"""The selected rank's newest detailed step: phases, compute over communication, stalls, to scale."""

from overlaptop.fleet.snapshot import HubState
from overlaptop.fleet.trouble import trouble_of
from overlaptop.report.who_is_late import why_unmeasured
from overlaptop.text import Unit, byte_count, clock, count, duration, plural
from overlaptop.timeline.collectives import sum_where_known
from overlaptop.tui.draw.bars import Piece, lane, merged, ruler
from overlaptop.tui.draw.layout import Item, fit
from overlaptop.tui.draw.segments import DIM, FAINT, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.lanes import CollectiveKey, Lanes
from overlaptop.tui.model.parts import PHASES
from overlaptop.tui.model.state import step_name
from overlaptop.tui.model.viewport import WHOLE_STEP, Viewport
from overlaptop.tui.widgets.screen import DashboardScreen
from overlaptop.tui.widgets.view import JobView
from overlaptop.wire.messages import PHASES as PHASE_NAMES
from overlaptop.wire.messages import CollectiveSpan

PAN_SHARE = 0.2
LABEL = 10  # Cells left of the lanes for their names
ZOOM_FACTOR = 1.5
_SHORT = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}


class Timeline(JobView):
    """Title, phases, lanes, the collectives' names, and an axis, as the height allows."""

    def __init__(self, dashboard: Dashboard, *, on_axis: bool = False) -> None:
        """``on_axis``: show the same part of the step as rows of all ranks above it."""
        super().__init__(dashboard)
        self._on_axis = on_axis

    def full_height(self, width: int) -> int:  # noqa: ARG002
        return 10 if self.state.copies_seen else 8

    def made_of(self) -> tuple[object, ...] | None:
        """The step and the viewport; without a step always draw, since the reason changes."""
        state = self.state
        return (state.lanes, state.viewport, state.collective) if state.lanes else None

    def draw(self, width: int, height: int) -> list[StyledLine]:
        step, lanes, viewport = self.state.timeline, self.state.lanes, self.state.viewport
        if step is None or lanes is None:
            return [self._title(width, None), (), (dim("  " + self._why_not()),)]
        bounds_ns = viewport.bounds_ns(lanes.detail.step_ns)
        if self._on_axis:
            bounds_ns = step.bounds_ns(viewport, step.rank)
        view = LaneRows(lanes, bounds_ns, lane_cells(width))
        title = self._title(width, lanes)
        if height <= 2:
            return [title, view.row("comm", lanes.comm)]
        rows = [view.row(lanes.label, lanes.compute), view.row("comm", lanes.comm)]
        if self.state.copies_seen:
            rows.append(view.row("copy", lanes.copy))
        spare = height - len(rows) - 1
        below = [view.axis()] if spare > 0 else []
        lines = [title, view.phases()] if spare > 1 else [title]
        spare -= 2
        thick = 2 if spare >= len(rows) + 1 else 1
        drawn = [line for row in rows for line in (row, (lane_label(""), *row[1:]))[:thick]]
        if spare >= len(rows) * (thick - 1) + 1:
            drawn.insert(2 * thick, view.names(self.state.collective))
        return [*lines, *drawn, *below]

    def _title(self, width: int, lanes: Lanes | None) -> StyledLine:
        selected = self.state.selected
        if selected is None or lanes is None:
            return (bold(" timeline"), dim(f"  rank {selected.rank}" if selected else ""))
        detail = lanes.detail
        step, number = step_name(detail.step)
        left = [
            Item((bold(f" rank {detail.rank}"), dim(f"  {step}"), bold(number))),
            Item((bold(duration(detail.step_ns)), dim(f" at {clock(detail.start_ns)}")), 3),
        ]
        for name in PHASE_NAMES:
            spent_ns = sum(p.end_ns - p.start_ns for p in detail.phases if p.name == name)
            if spent_ns:
                left.append(Item((dim(f"{name} "), Segment(duration(spent_ns))), 4))
        moved = sum_where_known(each.bytes for each in detail.collectives)
        if detail.collectives:
            text = plural(len(detail.collectives), "collective")
            left.append(Item((Segment(text), dim(f" · {byte_count(moved)}")), 5))
        viewport, right = self.state.viewport, []
        if viewport.zoom > 1:
            start, end = map(duration, viewport.bounds_ns(detail.step_ns))
            zoom = Segment(f"zoom {viewport.zoom:.3g}× ", TextStyle("accent"))
            right = [Item((zoom,), 1), Item((dim(f"{start} – {end} "),), 2)]
        return fit(left, right, width)

    def _why_not(self) -> str:
        state, selected = self.state, self.state.selected
        if selected is None:
            return "no rank to show"
        if state.snapshot.hub_state is HubState.TRACE:
            return f"the trace of rank {selected.rank} holds no step"
        if state.starting:
            return f"the job is starting: waiting for {state.starting}"
        if why := why_unmeasured([selected]):
            return f"no timeline: {why}"
        if state.past_step is not None:
            step = f"step {count(state.past_step)} of rank {selected.rank}"
            return f"the timeline of {step} was not sent, or is kept no more"
        over = selected.ended or selected.node_lost or trouble_of(state.snapshot) is not None
        if over or state.paused_at_ns is not None:
            return f"no step of rank {selected.rank} was seen in detail before"
        return f"waiting for the next step of rank {selected.rank} that is measured in detail"

    async def wheel(self, direction: int, x: int) -> None:
        anchor = min(1.0, max(0.0, (x - LABEL) / lane_cells(self.size.width)))
        self.state.viewport = self.state.viewport.zoomed(ZOOM_FACTOR**-direction, anchor)


class TimelineScreen(DashboardScreen):
    """Zoom, pan, and the selected collective."""

    def action_zoom(self, direction: int) -> None:
        self.state.viewport = self.state.viewport.zoomed(ZOOM_FACTOR**direction)

    def action_pan(self, direction: int) -> None:
        self.state.viewport = self.state.viewport.panned(PAN_SHARE * direction)

    def action_whole_step(self) -> None:
        self.state.viewport = WHOLE_STEP

    def action_collective(self, lines: int) -> None:
        self.state.move_collective(lines)

    def action_fit_collective(self) -> None:
        """Zoom to the selected collective."""
        lanes, index = self.state.lanes, self.state.collective
        if lanes is not None and index is not None:
            self.state.viewport = Viewport.around(*lanes.place(index))


class LaneRows:
    """The lanes of a step in a window, ``width`` cells of it, with names at the left."""

    def __init__(self, lanes: Lanes, bounds_ns: tuple[float, float], width: int) -> None:
        self.lanes, self.width = lanes, width
        self.start_ns, self.end_ns = bounds_ns

    def column(self, at_ns: float) -> int:
        share = (at_ns - self.start_ns) / (self.end_ns - self.start_ns)
        return int(min(1.0, max(0.0, share)) * self.width + 1e-9)  # its cell

    def row(self, label: str, pieces: tuple[Piece, ...]) -> StyledLine:
        return (lane_label(label), *lane(pieces, self.start_ns, self.end_ns, self.width))

    def phases(self) -> StyledLine:
        cells = [Segment(" ", FAINT)] * self.width
        for phase in self.lanes.detail.phases:
            left, right = self.column(phase.start_ns), self.column(phase.end_ns)
            if (size := right - left) < 1:
                continue
            names = (f" {phase.name} ", phase.name, _SHORT.get(phase.name, ""), "")
            name = next(name for name in names if len(name) <= max(0, size - 2))
            words = f"├{name:─^{size - 2}}┤" if size > 1 else "│"
            cells[left:right] = [Segment(glyph, TextStyle("text", phase.name)) for glyph in words]
        label = "" if self.lanes.label == PHASES.key else "phase"
        return (lane_label(label), *merged(cells))

    def names(self, selected: int | None) -> StyledLine:
        """Return names at the starts of collectives, if they fit; the selected one is marked."""
        cells = [Segment(" ", DIM)] * self.width
        collectives = self.lanes.detail.collectives
        lefts = [*(self.column(each.start_ns) for each in collectives), self.width]
        marked, free = lefts[-1 if selected is None else selected], 0
        for index, collective in enumerate(collectives):
            if collective.end_ns <= self.start_ns or collective.start_ns >= self.end_ns:
                continue
            left, right, style = lefts[index], self.column(collective.end_ns), DIM
            if index == selected:
                size = max(1, right - left)
                words, style = f"╰{'─' * (size - 2)}╯" if size > 1 else "▲", TextStyle("accent", bold=True)
                left, gap = min(left, self.width - size), 1
            else:
                space, gap = max(right, lefts[index + 1]) - left - 1, 0
                if left < marked:
                    space = min(space, marked - left)
                # Whole words only: a cut figure is a wrong figure.
                name = f"│{op_name(collective)}"
                labels = (f"{name} {byte_count(collective.bytes)}", name)
                words = next((words for words in labels if len(words) <= space), "│")
                if left < free or left + len(words) > self.width:
                    continue
            cells[left : left + len(words)] = [Segment(glyph, style) for glyph in words]
            free = max(free, left + len(words) + gap)
        return (lane_label(""), *merged(cells))

    def axis(self) -> StyledLine:
        unit = Unit.for_scale(max(1, round(self.end_ns - self.start_ns)))
        return (lane_label(""), *ruler(self.start_ns, self.end_ns, self.width, unit))


def op_name(collective: CollectiveSpan | CollectiveKey) -> str:
    """Return c10d's name without its underscores."""
    return collective.op.strip("_")


def lane_cells(width: int) -> int:
    return max(1, width - LABEL - 1)


def lane_label(words: str) -> Segment:
    return dim(f" {words:<{LABEL - 1}}")
