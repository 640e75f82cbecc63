"""A measured curve over a knob's values: points with their confidence. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median

from overlaptop.text import Unit, nice_step
from overlaptop.tui.draw.bars import Cell, to_segments
from overlaptop.tui.draw.segments import DIM, FAINT, Item, Segment, StyledLine, TextStyle, dim, fit

LABEL_CELLS = 10
_LOG_FROM = 4.0
"""Ranges whose ends differ by this factor are drawn on a log scale."""
_HEADROOM = 0.08


@dataclass(frozen=True, slots=True)
class PointMark:
    """What a point is: its glyph says so without colours too."""

    glyph: str
    style: TextStyle
    word: str


BEST = PointMark("★", TextStyle("good", bold=True), "shortest step")
NOW = PointMark("◆", TextStyle("warning", bold=True), "being measured")
CANDIDATE = PointMark("●", TextStyle("accent", bold=True), "may be best")
EQUIVALENT = PointMark("○", TextStyle("text"), "no better")
ELIMINATED = PointMark("×", FAINT, "eliminated")
MARKS = (BEST, NOW, CANDIDATE, EQUIVALENT, ELIMINATED)
"""Where points share a cell, the first of these is seen."""


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """One value and what was measured there, in ns; ``low`` to ``high`` is its confidence interval."""

    value: int
    ns: float
    low_ns: float
    high_ns: float
    """Infinite where too few steps tell the interval: then none is drawn."""
    mark: PointMark


@dataclass(frozen=True, slots=True)
class ValueAxis:
    """Values on ``cells`` columns."""

    least: int
    most: int
    cells: int

    @property
    def is_log(self) -> bool:
        """Equal ratios are equally far apart."""
        return self.least > 0 and self.most / self.least >= _LOG_FROM

    def share(self, value: float) -> float:
        """Where a value lies, from 0 at the left end to 1 at the right one."""
        if self.most <= self.least:
            return 0.5
        if self.is_log:
            return math.log(value / self.least) / math.log(self.most / self.least)
        return (value - self.least) / (self.most - self.least)

    def column(self, value: float) -> int:
        return round(self.share(value) * (self.cells - 1))


def plot(points: Sequence[PlotPoint], axis: ValueAxis, rows: int) -> list[StyledLine]:
    """A lane ``rows`` tall, its scale at the left: not from zero, for what differs is little. Without
    anything to draw it is empty, and has no scale.
    """
    points = [
        each if math.isfinite(each.high_ns) else replace(each, low_ns=each.ns, high_ns=each.ns)
        for each in points
    ]
    bounds = _bounds(points, rows)
    top_ns, bottom_ns = bounds or (1.0, 0.0)
    grid: list[list[Cell]] = [[Cell(" ", DIM)] * axis.cells for _ in range(rows)]

    def level(ns: float) -> float:
        """Rows from the top."""
        return (top_ns - ns) / (top_ns - bottom_ns) * rows

    ranked = sorted(points, key=lambda point: MARKS.index(point.mark), reverse=True)
    for point in ranked:
        _bar(grid, axis.column(point.value), level(point.high_ns), level(point.low_ns), point.mark.style)
    for point in ranked:
        row, column = min(rows - 1, max(0, int(level(point.ns)))), axis.column(point.value)
        grid[row][column] = Cell(point.mark.glyph, point.mark.style)
    labels: dict[int, str] = {}
    if bounds is not None:
        unit = Unit.for_scale(int(top_ns))
        labels = {rows - 1: unit.text(round(bottom_ns)), 0: f"{unit.text(round(top_ns))} {unit.name}"}
    return [
        (dim(f"{labels.get(at, ''):>{LABEL_CELLS - 1}} "), Segment("│", FAINT), *to_segments(row))
        for at, row in enumerate(grid)
    ]


def value_axis(axis: ValueAxis, unit: str, *, alike: bool = False) -> StyledLine:
    """Values below the lanes: both ends, and round ones in between as far as they fit.

    ``alike``: all values beyond the upper end are the same to the job as that one.
    """
    glyphs, free = [" "] * axis.cells, 0
    ends = f"{axis.most} {unit}".rstrip()
    if alike:
        ends = f"{ends} on: all alike"
    last = axis.cells - len(ends)
    for value in _ticks(axis):
        label = str(value)
        at = min(axis.column(value), axis.cells - len(label))
        if at >= free and at + len(label) + 1 < last:
            glyphs[at : at + len(label)] = label
            free = at + len(label) + 2
    glyphs[max(0, last) :] = ends[-axis.cells :]
    return (Segment(" " * (LABEL_CELLS + 1)), dim("".join(glyphs)))


def legend(marks: Collection[PointMark], width: int) -> StyledLine:
    """The marks that are drawn, and what a bar is; the last marks go first where it is narrow."""
    shown = [mark for mark in MARKS if mark in marks]
    items = [
        Item((Segment(mark.glyph, mark.style), dim(f" {mark.word}")), at + 1 if at < 2 else at + 3)
        for at, mark in enumerate(shown)
    ]
    if shown:
        items.append(Item((dim("┬ "), dim("± 95 % sure")), 4))
    return (Segment(" "), *fit(items, [], width - 1, "  "))


def _bounds(points: Sequence[PlotPoint], rows: int) -> tuple[float, float] | None:
    """Top and bottom of the scale; None: there is nothing to draw. Intervals that are far wider than most
    do not press the rest flat.
    """
    if not points:
        return None
    low, high = min(point.ns for point in points), max(point.ns for point in points)
    usual = median(point.high_ns - point.low_ns for point in points)
    room = max(high - low, usual, 0.02 * high, 1.0)
    low = min([low, *(max(point.low_ns, low - room) for point in points)])
    high = max([high, *(min(point.high_ns, high + room) for point in points)])
    margin = max(_HEADROOM * (high - low), (high - low) / (2 * rows), 0.005 * high, 1.0)
    return high + margin, max(0.0, low - margin)


def _bar(grid: list[list[Cell]], column: int, top: float, bottom: float, style: TextStyle) -> None:
    rows = len(grid)
    first, last = max(0, int(top)), min(rows - 1, int(bottom))
    for row in range(first, last + 1):
        capped = "┬" if row == first and top >= 0 else "┴" if row == last and bottom < rows else "│"
        grid[row][column] = Cell("│" if first == last else capped, style)


def _ticks(axis: ValueAxis) -> list[int]:
    if not axis.is_log:
        step = max(1, round(nice_step(axis.most - axis.least, max(1, axis.cells // 8))))
        return list(range(axis.least, axis.most + 1, step))
    ticks, power = [axis.least], 1
    while power <= axis.most:
        ticks += [value for m in (1, 2, 5) if axis.least < (value := m * power) < axis.most]
        power *= 10
    return ticks
