"""The search for a knob's best value: where it is, the curve with its prediction, and what it found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from overlaptop.text import UNKNOWN, Unit, count, duration
from overlaptop.tui.draw import curve
from overlaptop.tui.draw.curve import Axis, Mark, Point
from overlaptop.tui.draw.segments import (
    BOLD,
    DIM,
    TEXT,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    code_to_keep,
    crop,
    elided,
    fit,
    line_width,
    pad,
    paragraph,
)
from overlaptop.tui.tune.knob_values import with_unit
from overlaptop.tui.view import ScrollView

if TYPE_CHECKING:
    from overlaptop.tuning.state import CurvePoint, SearchState

_BESIDE = 126
"""From this width on the table stands beside the curve."""
_CURVE_CELLS = 62
_CURVE_LEAST, _EXPOSED_LEAST = 5, 3
_WHAT_IT_IS = (
    "The search measures values of one knob on the running job, in short windows that take turns, gives up "
    "what is hopeless early, and ends when the best is known within its confidence. It then leaves the job "
    "with the best value, where that is better beyond noise, and says what it saves and which line of code "
    "makes it permanent. The job goes on training meanwhile. Stopped, or left by quitting, it goes back to "
    "the value before."
)
# Header, cells, and the width of the table from which it is shown.
_COLUMNS = (
    ("", 1, 0), ("value", 9, 0), ("step", 9, 0), ("±", 7, 0), ("model", 9, 54), ("off by", 7, 43),
    ("foretold", 8, 75), ("exposed", 9, 65), ("steps", 5, 82),
)  # fmt: skip


class SearchView(ScrollView):
    """One search of this dashboard, or what there is to be said where there is none."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """As much as there is room for."""
        searched, search = self.dashboard.control.searched, self.state.snapshot.search
        if searched is not None:
            lines, self.first = search_lines(searched.picture, width, height, self.first, of=searched.of)
            return lines
        if search is not None:
            who = f" {search.by} searches for the best {search.knob}"
            text = "Its changes are in the log under Tune (u). A change made here would end it."
            return [(), (Segment(who, BOLD),), (), *paragraph(text, width, TEXT)]
        return [(), (Segment(" No search yet", BOLD),), (), *paragraph(_WHAT_IT_IS, width, TEXT, rows=12)]


def search_lines(
    picture: SearchState, width: int, height: int, first: int, *, of: str = ""
) -> tuple[list[StyledLine], int]:
    """The picture in so many cells, and the table's first row, kept within what there is.

    ``of``: which job was searched, where it is not the one that is shown.
    """
    head = [*_status(picture, width, of), *_outcome(picture, width)]
    marks = {mark_of(picture, point) for point in picture.points}
    if picture.now is not None and not picture.over:
        marks.add(curve.NOW)
    legend = curve.legend(marks, width, predicted=bool(picture.predicted))
    room = height - len(head) - 1
    if width >= _BESIDE:
        right = min(1 + sum(cells + 2 for _, cells, _ in _COLUMNS), width - _CURVE_CELLS)
        left = width - right - 2
        table, first = _table(picture, right, room - 1, first)
        chart = _chart(picture, left, room - 1)
        body = [
            (*pad(chart[at] if at < len(chart) else (), left + 2), *(table[at] if at < len(table) else ()))
            for at in range(max(len(chart), len(table)))
        ]
        return [*head, (), *body, legend], first
    rows = min(len(picture.points) + 1, max(0, room - _CURVE_LEAST - 3), max(4, room // 2))
    table, first = _table(picture, width, rows, first)
    chart = _chart(picture, width, room - len(table) - 1)
    return [*head, *([()] if height >= 24 else []), *chart, legend, *table], first


def _status(picture: SearchState, width: int, of: str) -> list[StyledLine]:
    """What it does, what it has cost, and how long it may take; what the best is so far."""
    style = TextStyle("error" if picture.failed else "good" if picture.over else "warning", bold=True)
    glyph = "✗" if picture.failed else "■" if picture.over else "◆"
    title = Item((Segment(f" {glyph} ", style), Segment(f"search for the best {picture.knob.name}", BOLD)))
    steps = picture.steps_spent
    items = [
        title,
        Item((Segment(_range_words(picture), DIM),), 2),
        Item((Segment(f"{count(steps)} step{'s' * (steps != 1)}", TEXT), Segment(" spent", DIM)), 1),
    ]
    if picture.steps_to_go is not None and not picture.over:
        to_go = f"at most {count(picture.steps_to_go)} to go"
        if picture.seconds_to_go is not None:
            to_go += f", {duration(picture.seconds_to_go * 1e9)}"
        items.append(Item((Segment(to_go, DIM),), 1))
    lines = [fit(items, [], width)]
    if of:
        lines += paragraph(of, width, TextStyle("warning", bold=True), rows=2)
    if picture.doing and not picture.over:
        lines += paragraph(picture.doing, width, style, rows=2)
    if picture.best is not None and len(picture.points) > 1 and picture.result is None:
        lines.append(_best_so_far(picture, width))
    return lines


def _best_so_far(picture: SearchState, width: int) -> StyledLine:
    """What the star stands for while nothing is decided."""
    best = with_unit(str(picture.best), picture.knob.unit)
    rest = f": shortest step so far, {picture.best_words}".removesuffix(", ")
    return elided(
        (Segment(f" {curve.BEST.glyph} ", curve.BEST.style), Segment(best, BOLD), Segment(rest, DIM)), width
    )


def _range_words(picture: SearchState) -> str:
    return with_unit(f"{picture.least} to {picture.most}", picture.knob.unit)


def _outcome(picture: SearchState, width: int) -> list[StyledLine]:
    """Why it ended, what the job is left with, the result in a line, and the line of code to paste."""
    lines: list[StyledLine] = []
    if picture.why:
        lines += paragraph(
            picture.why, width, TextStyle("error" if picture.failed else "warning", bold=True), rows=3
        )
    if picture.result is not None:
        style = TextStyle("good", bold=True) if picture.result.known else BOLD
        lines += paragraph(picture.result.line, width, style, rows=4)
    if picture.left:
        lines += paragraph(picture.left, width, BOLD, rows=2)
    if picture.result is not None and picture.result.code:
        best = with_unit(str(picture.result.value), picture.knob.unit)
        lines += code_to_keep(picture.result.code, width, best)
    if picture.model_reason and not picture.predicted:
        lines += paragraph(f"no model: {picture.model_reason}", width, DIM, rows=2)
    return lines


def mark_of(picture: SearchState, point: CurvePoint) -> Mark:
    """What a point is: the one being measured before all else."""
    if point.value == picture.now and not picture.over:
        return curve.NOW
    if point.value == picture.best:
        return curve.BEST
    return {"racing": curve.RACING, "settled": curve.SETTLED}.get(point.state.value, curve.HOPELESS)


def _chart(picture: SearchState, width: int, height: int) -> list[StyledLine]:
    """Step time, below it exposed where there is room, and the values."""
    axis = Axis(*_ends(picture), max(8, width - curve.LABEL_CELLS - 2))
    lanes = height - 1  # the values
    exposed_known = [point for point in picture.points if point.exposed_ns is not None]
    exposed = 0
    if exposed_known and lanes >= _CURVE_LEAST + _EXPOSED_LEAST + 2:
        exposed = max(_EXPOSED_LEAST, (lanes - 2) // 3)
    titled = bool(exposed)
    rows = lanes - exposed - (2 if titled else 0)
    if rows < 2:
        return []
    points = [Point(p.value, p.step_ns, p.low_ns, p.high_ns, mark_of(picture, p)) for p in picture.points]
    predicted = [(p.value, p.step_ns) for p in picture.predicted]
    points += _not_yet(picture, predicted)
    lines: list[StyledLine] = [(Segment(" step time", BOLD),)] if titled else []
    if points or predicted:
        lines += curve.plot(points, predicted, axis, rows)
    elif not picture.over:
        lines += _nothing_yet(axis, rows)
    else:
        return []
    if exposed:
        bare = [
            Point(p.value, p.exposed_ns, p.exposed_ns, p.exposed_ns, mark_of(picture, p))
            for p in exposed_known
            if p.exposed_ns is not None
        ]
        guessed = [(p.value, p.exposed_ns) for p in picture.predicted if p.exposed_ns is not None]
        lines += [(Segment(" exposed", BOLD),), *curve.plot(bare, guessed, axis, exposed)]
    return [*lines, curve.value_axis(axis, picture.knob.unit, alike=axis.most == picture.alike_from)]


def _nothing_yet(axis: Axis, rows: int) -> list[StyledLine]:
    """An empty lane that says what is to come."""
    lines = curve.plot([], [], axis, rows)
    words = crop((Segment(" the first point comes with the first window", DIM),), axis.cells)
    lines[rows // 2] = (*crop(lines[rows // 2], curve.LABEL_CELLS + 1), *words)
    return lines


def _ends(picture: SearchState) -> tuple[int, int]:
    """Of the axis: all that was asked for and is not alike, and what is measured besides."""
    known = [picture.least, picture.most if picture.alike_from is None else picture.alike_from]
    known += [point.value for point in picture.points]
    if picture.now is not None:
        known.append(picture.now)
    return min(known), max(known)


def _not_yet(picture: SearchState, predicted: list[tuple[int, float]]) -> list[Point]:
    """The value that is being measured for the first time, where it is expected."""
    if picture.now is None or picture.over or any(p.value == picture.now for p in picture.points):
        return []
    now = picture.now
    near = sorted((abs(value - now), ns) for value, ns in predicted)
    levels = [p.step_ns for p in picture.points]
    ns = near[0][1] if near else sum(levels) / len(levels) if levels else None
    return [] if ns is None else [Point(now, ns, ns, ns, curve.NOW)]


def _table(picture: SearchState, width: int, rows: int, first: int) -> tuple[list[StyledLine], int]:
    """Header and as many rows as there is room for, by value."""
    if rows < 2 or not picture.points:
        return [], 0
    points = sorted(picture.points, key=lambda point: point.value)
    first = max(0, min(first, len(points) - (rows - 1)))
    unit = Unit.for_scale(round(max(point.step_ns for point in points)))
    named = {"step": f"step {unit.name}", "±": f"± {unit.name}", "model": f"model {unit.name}"}
    header = tuple((Segment(named.get(name, name), DIM),) for name, _, _ in _COLUMNS)
    lines = [_row(header, width)]
    lines += [_row(_cells(picture, point, unit), width) for point in points[first : first + rows - 1]]
    return lines, first


def _cells(picture: SearchState, point: CurvePoint, unit: Unit) -> tuple[StyledLine, ...]:
    mark = mark_of(picture, point)
    best = point.value == picture.best
    pale = mark is curve.HOPELESS
    figure = DIM if pale else BOLD if best else TEXT
    return (
        (Segment(mark.glyph, mark.style),),
        (Segment(with_unit(str(point.value), picture.knob.unit), DIM if pale else BOLD),),
        (Segment(unit.text(round(point.step_ns)), figure),),
        (Segment(_reach(point, unit), DIM),),
        (Segment(UNKNOWN if point.predicted_ns is None else unit.text(round(point.predicted_ns)), DIM),),
        (Segment(_error(point.model_error), DIM),),
        (Segment(_error(point.foretold_error), DIM),),
        (Segment(duration(point.exposed_ns), figure),),
        (Segment(count(point.steps), DIM),),
    )


def _reach(point: CurvePoint, unit: Unit) -> str:
    """How far the interval goes to either side."""
    reach_ns = (point.high_ns - point.low_ns) / 2
    return unit.text(round(reach_ns)) if math.isfinite(reach_ns) else UNKNOWN


def _error(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share * 100:+.1f} %"


def _row(cells: tuple[StyledLine, ...], width: int) -> StyledLine:
    line: list[Segment] = [Segment(" ")]
    for at, ((_, size, from_width), cell) in enumerate(zip(_COLUMNS, cells, strict=True)):
        if width >= from_width:
            cell = elided(cell, size)
            blank = Segment(" " * (size - line_width(cell)))
            line += [*cell, Segment(" ")] if at == 0 else [blank, *cell, Segment("  ")]
    return crop(line, width)
