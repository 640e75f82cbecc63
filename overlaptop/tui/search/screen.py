"""The search for a knob's best value: asks for a range; where it is, the curve, and what it found."""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from overlaptop.report.knobs import value_words
from overlaptop.text import Unit, count, duration, plural, with_unit
from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.draw.prompt import Confirm
from overlaptop.tui.draw.segments import (
    BOLD,
    DIM,
    TEXT,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    code_to_keep,
    crop,
    dim,
    elided,
    fit,
    pad,
    paragraph,
)
from overlaptop.tui.draw.table import GAP, Column, Table
from overlaptop.tui.help.glossary import SEARCH
from overlaptop.tui.keys import SEARCH_KEYS, bindings
from overlaptop.tui.page import PageScreen
from overlaptop.tui.search import curve
from overlaptop.tui.search.curve import PlotPoint, PointMark, ValueAxis
from overlaptop.tui.view import ScrollView
from overlaptop.tui.widgets.key_bar import BACK_HINT, HELP_HINT, QUIT_HINT

if TYPE_CHECKING:
    from overlaptop.tuning.search import MeasuredValue
    from overlaptop.tuning.state import SearchState

_BESIDE = 120
"""From this width on the table stands beside the curve."""
_CURVE_LEAST, _EXPOSED_LEAST = 5, 3
_WHAT_IT_IS = (
    "The search measures values of one knob on the running job, in short windows that take turns, gives up "
    "values early that cannot be the best, and ends when the best is known within its confidence. It then "
    "leaves the job with the best value, where that is better beyond noise, and shows what it saves and "
    "which line of code makes it permanent. The job goes on training meanwhile. Stopped, or left by "
    "quitting, it goes back to the value before."
)
_COLUMNS = (
    Column("", 1),
    Column("value", 9),
    Column("step", 9),
    Column("±", 7),
    Column("exposed", 9, shown_from=47),
    Column("steps", 5, shown_from=54),
)
_TABLE_CELLS = GAP + sum(column.cells + GAP for column in _COLUMNS)


class SearchView(ScrollView):
    """One search of this dashboard, or what a search is where there is none."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:
        searched, search = self.dashboard.control.searched, self.state.snapshot.search
        if searched is not None:
            lines, self.first = search_lines(searched.state, width, height, self.first, of=searched.of)
            return lines
        if search is not None:
            who = f" {search.by} searches for the best {search.knob}"
            text = "Its changes are in the log under Tune (u). A change made here would end it."
            return [(), (bold(who),), (), *paragraph(text, width, TEXT)]
        return [(), (bold(" No search yet"),), (), *paragraph(_WHAT_IT_IS, width, TEXT, rows=12)]


def search_lines(
    state: SearchState, width: int, height: int, first: int, *, of: str = ""
) -> tuple[list[StyledLine], int]:
    """The search in so many cells, and the table's first row, kept within what there is.

    ``of``: which job was searched, where it is not the one that is shown.
    """
    head = [*_status(state, width, of), *_outcome(state, width)]
    marks = {mark_of(state, point) for point in state.points}
    if state.now is not None and not state.over:
        marks.add(curve.NOW)
    legend = curve.legend(marks, width)
    room = height - len(head) - 1
    if width >= _BESIDE:
        left = width - _TABLE_CELLS - 2
        table, first = _table(state, _TABLE_CELLS, room - 1, first)
        chart = _chart(state, left, room - 1)
        body = [
            (*pad(chart[at] if at < len(chart) else (), left + 2), *(table[at] if at < len(table) else ()))
            for at in range(max(len(chart), len(table)))
        ]
        return [*head, (), *body, legend], first
    rows = min(len(state.points) + 1, max(0, room - _CURVE_LEAST - 3), max(4, room // 2))
    table, first = _table(state, width, rows, first)
    chart = _chart(state, width, room - len(table) - 1)
    return [*head, *([()] if height >= 24 else []), *chart, legend, *table], first


def _status(state: SearchState, width: int, of: str) -> list[StyledLine]:
    """What it does, what it has cost, and how long it may take; what the best is so far."""
    style = TextStyle("error" if state.failed else "good" if state.over else "warning", bold=True)
    glyph = "✗" if state.failed else "■" if state.over else "◆"
    title = Item((Segment(f" {glyph} ", style), bold(f"search for the best {state.knob.name}")))
    items = [
        title,
        Item((dim(with_unit(f"{state.least} to {state.most}", state.knob.unit)),), 2),
        Item((Segment(plural(state.steps_spent, "step"), TEXT), dim(" spent")), 1),
    ]
    if state.steps_to_go is not None and not state.over:
        to_go = f"at most {count(state.steps_to_go)} to go"
        if state.seconds_to_go is not None:
            to_go += f", {duration(state.seconds_to_go * 1e9)}"
        items.append(Item((dim(to_go),), 1))
    lines = [fit(items, [], width)]
    if of:
        lines += paragraph(of, width, TextStyle("warning", bold=True), rows=2)
    if state.doing and not state.over:
        lines += paragraph(state.doing, width, style, rows=2)
    if state.best is not None and len(state.points) > 1 and state.result is None:
        lines.append(_best_so_far(state, width))
    return lines


def _best_so_far(state: SearchState, width: int) -> StyledLine:
    best = value_words(state.knob, state.best)
    rest = f": shortest step so far, {state.caveat}".removesuffix(", ")
    return elided((Segment(f" {curve.BEST.glyph} ", curve.BEST.style), bold(best), dim(rest)), width)


def _outcome(state: SearchState, width: int) -> list[StyledLine]:
    """Why it ended, what the job is left with, the result in a line, and the line of code to paste."""
    lines: list[StyledLine] = []
    if state.why:
        lines += paragraph(
            state.why, width, TextStyle("error" if state.failed else "warning", bold=True), rows=3
        )
    if state.result is not None:
        style = TextStyle("good", bold=True) if state.result.found.known else BOLD
        lines += paragraph(state.result.line, width, style, rows=4)
    if state.left:
        lines += paragraph(state.left, width, BOLD, rows=2)
    if state.result is not None and state.result.code:
        best = value_words(state.knob, state.result.found.value)
        lines += code_to_keep(state.result.code, width, best)
    return lines


def mark_of(state: SearchState, point: MeasuredValue) -> PointMark:
    """What a point is: the one being measured before all else."""
    if point.value == state.now and not state.over:
        return curve.NOW
    if point.value == state.best:
        return curve.BEST
    return {"candidate": curve.CANDIDATE, "equivalent": curve.EQUIVALENT}.get(
        point.state.value, curve.ELIMINATED
    )


def _chart(state: SearchState, width: int, height: int) -> list[StyledLine]:
    axis = ValueAxis(*_ends(state), max(8, width - curve.LABEL_CELLS - 2))
    lanes = height - 1  # the values
    exposed = [
        PlotPoint(p.value, p.exposed_ns, p.exposed_ns, p.exposed_ns, mark_of(state, p))
        for p in state.points
        if p.exposed_ns is not None
    ]
    exposed_rows = 0
    if exposed and lanes >= _CURVE_LEAST + _EXPOSED_LEAST + 2:
        exposed_rows = max(_EXPOSED_LEAST, (lanes - 2) // 3)
    rows = lanes - exposed_rows - (2 if exposed_rows else 0)
    if rows < 2 or (state.over and not state.points):
        return []
    points = [PlotPoint(p.value, p.step_ns, p.low_ns, p.high_ns, mark_of(state, p)) for p in state.points]
    first_time = points and all(point.value != state.now for point in points)
    if state.now is not None and not state.over and first_time:
        mean_ns = fmean(point.ns for point in points)  # among the others, until it is known
        points.append(PlotPoint(state.now, mean_ns, mean_ns, mean_ns, curve.NOW))
    lines = curve.plot(points, axis, rows)
    if not points:
        words = crop((dim(" the first point comes with the first window"),), axis.cells)
        lines[rows // 2] = (*crop(lines[rows // 2], curve.LABEL_CELLS + 1), *words)
    if exposed_rows:
        below = curve.plot(exposed, axis, exposed_rows)
        lines = [(bold(" step time"),), *lines, (bold(" exposed"),), *below]
    return [*lines, curve.value_axis(axis, state.knob.unit, alike=axis.most == state.alike_from)]


def _ends(state: SearchState) -> tuple[int, int]:
    """Of the axis: all that was asked for and is not alike, and what is measured besides."""
    known = [state.least, state.most if state.alike_from is None else state.alike_from]
    known += [point.value for point in state.points]
    if state.now is not None:
        known.append(state.now)
    return min(known), max(known)


def _table(state: SearchState, width: int, rows: int, first: int) -> tuple[list[StyledLine], int]:
    if rows < 2 or not state.points:
        return [], 0
    points = sorted(state.points, key=lambda point: point.value)
    first = max(0, min(first, len(points) - (rows - 1)))
    unit = Unit.for_scale(round(max(point.step_ns for point in points)))
    table = Table(_COLUMNS, width)
    lines = [table.header({name: f"{name} {unit.name}" for name in ("step", "±")})]
    lines += [table.row(_cells(state, point, unit)) for point in points[first : first + rows - 1]]
    return lines, first


def _cells(state: SearchState, point: MeasuredValue, unit: Unit) -> tuple[StyledLine, ...]:
    mark = mark_of(state, point)
    best = point.value == state.best
    pale = mark is curve.ELIMINATED
    reach_ns = (point.high_ns - point.low_ns) / 2
    figure = DIM if pale else BOLD if best else TEXT
    return (
        (Segment(mark.glyph, mark.style),),
        (Segment(value_words(state.knob, point.value), DIM if pale else BOLD),),
        (Segment(unit.text(round(point.step_ns)), figure),),
        (dim(unit.text(round(reach_ns) if math.isfinite(reach_ns) else None)),),
        (Segment(duration(point.exposed_ns), figure),),
        (dim(count(point.steps)),),
    )


class SearchScreen(PageScreen):
    """The search of this dashboard; where another searches, who that is."""

    title_in_help = SEARCH
    BINDINGS: ClassVar = bindings(SEARCH_KEYS)
    hints = (
        BACK_HINT,
        HELP_HINT,
        ("x", "stop and go back", "screen.stop", "stop"),
        ("a", "search", "app.search", "search"),
        ("u", "tune", "app.tune", "tune"),
        ("↑ ↓", "scroll", "screen.move(4)"),
        QUIT_HINT,
    )
    airy_from = 24

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard, SearchView(dashboard))

    async def on_mount(self) -> None:
        """Ask at once, where nothing was searched yet."""
        if self.dashboard.control.tuner is None:
            await self._ask_for_range()

    def offered(self, action: str) -> bool:
        """A search can be stopped while it goes on, and begun while none does, whoever searches."""
        searching = self.dashboard.control.searching
        if action == "screen.stop":
            return searching
        return action != "app.search" or not (searching or self.state.snapshot.search is not None)

    async def again(self) -> None:
        """The key that opened this screen: stop, or begin another one."""
        if self.dashboard.control.searching:
            await self.action_stop()
        else:
            await self._ask_for_range()

    async def action_stop(self) -> None:
        if self.dashboard.control.searching:
            asked = "stop the search and go back to the value before it?"
            await self.ask(Confirm(asked, self._stop))

    async def _stop(self) -> None:
        self.dashboard.control.stop_search()
        self.dashboard.on_change()

    async def _ask_for_range(self) -> None:
        """From where to where the selected knob is to be searched, unless it cannot be."""
        dashboard, control = self.dashboard, self.dashboard.control
        selected = control.editor.editable(dashboard.latest)
        if selected is None or dashboard.latest.search is not None:
            dashboard.on_change()
            return
        # Textual's Input takes 20 ms to import, the search's own modules numpy: not before they are needed.
        from overlaptop.tui.draw.line_prompt import LinePrompt
        from overlaptop.tuning.space import default_range

        asked, usual = f"search {selected.knob.name} from:to", "{}:{}".format(*default_range(selected.knob))
        take = partial(dashboard.answer, control.search)
        await self.ask(LinePrompt(asked, usual, "enter: start   esc: not now", take))
