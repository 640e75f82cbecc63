"""Bars, sparklines and axes as segments, exact to an eighth of a cell. Pure functions."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple

from overlaptop.text import Unit, nice_step
from overlaptop.tui.draw.segments import DIM, FAINT, Segment, StyledLine, TextStyle, dim

EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = " ▁▂▃▄▅▆▇█"
TEXTURES = {
    "compute": "█", "phases": "-", "hidden": "▓", "hidden_waiting": "▒", "exposed": "░", "waiting": "~",
    "copy": "▞", "fused": "%", "idle": "·", "stall": "x",
}  # fmt: skip
"""Glyph of each part for screens where colours cannot tell parts apart; keys are those of the colours."""


class Cell(NamedTuple):
    """One cell of a bar: a glyph and its style."""

    glyph: str
    style: TextStyle


class Piece(NamedTuple):
    """A part of a line, in any unit: a part's key, or empty for nothing."""

    start: float
    end: float
    key: str


def to_segments(cells: Iterable[Cell]) -> StyledLine:
    """Return the cells as segments; neighbours of one style are merged."""
    groups = groupby(cells, key=attrgetter("style"))
    return tuple(Segment("".join(cell.glyph for cell in group), style) for style, group in groups)


def stacked_bar(
    parts: Sequence[tuple[str, int]], scale_ns: int, width: int, *, textured: bool
) -> StyledLine:
    """Return parts end to end, ``scale_ns`` being the whole width; cells beyond their sum stay blank."""
    pieces, at_ns = [], 0
    for key, length_ns in parts:
        if length_ns > 0:
            pieces.append(Piece(at_ns, at_ns + length_ns, key))
            at_ns += length_ns
    return lane(pieces, 0, max(scale_ns, 1), width, textured=textured)


def gauge(share: float | None, width: int, style: TextStyle, *, textured: bool) -> StyledLine:
    """Return a gauge of ``width`` cells, filled for ``share`` (in [0, 1]), exact to half a cell; at least
    half a cell if it is not 0. None, not known: blank.

    A line and not a block, so that gauges below each other stay separate.
    """
    filled = min(1.0, max(0.0, share or 0.0)) * max(width, 0)
    whole, half = divmod(max(round(2 * filled), 1 if filled else 0), 2)
    track = Cell("·", FAINT) if textured else Cell("━", TextStyle("track"))
    edge = [Cell("╸", style)] * half
    return to_segments([*[Cell("━", style)] * whole, *edge, *[track] * (width - whole - half)])


def lane(pieces: Sequence[Piece], start: float, end: float, width: int, *, textured: bool) -> StyledLine:
    """Return ``pieces`` (sorted, disjoint) in the window ``[start, end)``, as ``width`` cells.

    A cell with one edge shows it to an eighth. One with several edges shows the share of its foremost part
    as a shade. Textured, each cell shows its foremost part's glyph.
    """
    drawn: list[Segment] = []
    size = (end - start) / max(width, 1)
    at = column = 0
    while column < width:
        left = start + column * size
        while at < len(pieces) and pieces[at].end <= left:
            at += 1
        piece = pieces[at] if at < len(pieces) else Piece(math.inf, math.inf, "")
        # Most cells of a lane are whole: equal neighbours become one segment.
        edge, key = (piece.start, "") if piece.start > left else (piece.end, piece.key)
        whole = int(min(width - column, (edge - left) / size + 1e-6))
        if whole:
            glyph, style = _solid(key, textured=textured)
        else:
            shares = _shares(pieces, at, left, size)
            glyph, style = _textured(shares) if textured else _precise(shares)
        text = glyph * max(whole, 1)
        if drawn and drawn[-1].style == style:
            text = drawn.pop().text + text
        drawn.append(Segment(text, style))
        column += max(whole, 1)
    return tuple(drawn)


def _shares(pieces: Sequence[Piece], at: int, left: float, size: float) -> list[tuple[str, float]]:
    """Return the parts of one cell from left to right, as shares of it."""
    shares: list[tuple[str, float]] = []
    reached, right = left, left + size
    while at < len(pieces) and pieces[at].start < right:
        piece = pieces[at]
        if piece.start > reached:
            shares.append(("", (piece.start - reached) / size))
        reached = min(piece.end, right)
        shares.append((piece.key, (reached - max(piece.start, left)) / size))
        at += 1
    if reached < right:
        shares.append(("", (right - reached) / size))
    return shares


def _totals(shares: Sequence[tuple[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for key, share in shares:
        totals[key] = totals.get(key, 0.0) + share
    return totals


def _solid(key: str, *, textured: bool) -> Cell:
    if not key:
        return Cell(" ", TextStyle())
    return Cell(TEXTURES[key], TextStyle(key)) if textured else Cell("█", TextStyle(key, key))


def _precise(shares: Sequence[tuple[str, float]]) -> Cell:
    seen = [(key, share) for key, share in shares if share >= 1 / 16]
    if sum(share for _, share in seen) < 7 / 8:
        seen = list(shares)  # slivers add up: many small gaps matter
    seen = [(key, sum(share for _, share in same)) for key, same in groupby(seen, lambda part: part[0])]
    totals = _totals(seen)
    if len(totals) == 1:
        return _solid(seen[0][0], textured=False)
    if len(seen) == 2:
        (left, share), (right, rest) = seen
        return Cell(EIGHTHS[round(8 * share / (share + rest))], TextStyle(left or "screen", right))
    most = sorted(totals, key=lambda key: -totals[key])[:2]
    if len(totals) == 2 and "" in most:
        front = next(key for key in most if key)
        # One colour: a lane of dot patterns would look dirty.
        return Cell("█", TextStyle(front, eighths=2 * min(3, max(1, round(totals[front] * 4)))))
    left, right = sorted(most, key=[key for key, _ in seen].index)
    return Cell("▌", TextStyle(left or "screen", right))


def _textured(shares: Sequence[tuple[str, float]]) -> Cell:
    totals = _totals(shares)
    front = max((key for key in totals if key), key=lambda key: totals[key], default="")
    return _solid(front if front and totals[front] >= 0.25 else "", textured=True)


def crossed(line: StyledLine, column: int) -> StyledLine:
    """Return the line with a cursor drawn through one cell."""
    drawn: list[Segment] = []
    left = 0
    for text, style in line:
        at = column - left
        if 0 <= at < len(text):
            cursor = Segment("│", TextStyle("bright", style.bg, bold=True))
            drawn += [Segment(text[:at], style), cursor, Segment(text[at + 1 :], style)]
        else:
            drawn.append(Segment(text, style))
        left += len(text)
    return tuple(segment for segment in drawn if segment.text)


MARKED = TextStyle("accent", bold=True)
OVER = Cell("▲", TextStyle("bright", bold=True))
"""The end of a column beyond the scale."""


def sparkline(
    values: Sequence[float | None], top: float, *, style: TextStyle, marked: int | None = None
) -> StyledLine:
    """Return one column per value on a scale from 0 to ``top``; None leaves a gap, more than ``top`` is
    `OVER`. ``marked``: a highlighted column.
    """
    return chart(values, top, 1, style=style, marked=marked)[0]


def chart(
    values: Sequence[float | None],
    top: float,
    rows: int,
    *,
    style: TextStyle,
    marked: int | None = None,
    gaps: Sequence[bool] = (),
) -> list[StyledLine]:
    """Return a sparkline ``rows`` cells tall, uppermost row first. ``gaps``: columns to mark as unknown."""

    def cell(column: int, value: float | None, row: int) -> Cell:
        if column == marked and row == rows - 1:
            return Cell("▼", MARKED)
        if value is None or top <= 0:
            return Cell("·" if row == 0 and any(gaps[column : column + 1]) else " ", DIM)
        if value > top and row == rows - 1:
            return OVER
        level = round(8 * rows * min(value, top) / top) - 8 * row
        return Cell(LEVELS[min(8, max(row == 0, level))], MARKED if column == marked else style)

    return [
        to_segments(cell(column, value, row) for column, value in enumerate(values))
        for row in range(rows - 1, -1, -1)
    ]


def binned(
    values: Iterable[tuple[int, float | None]], width: int, gather: Callable[[Sequence[float]], float]
) -> list[float | None]:
    """Return ``width`` columns, oldest first; None if nothing is known.

    ``values``: newest first, each with its column number. A finished column never changes again.
    """
    gathered: dict[int, list[float]] = {}
    newest = None
    for column, group in groupby(values, key=itemgetter(0)):
        newest = column if newest is None else newest
        if column <= newest - width:
            break
        if known := [value for _, value in group if value is not None]:
            gathered[column] = known
    first = (newest or 0) - width + 1
    return [gather(gathered[at]) if at in gathered else None for at in range(first, first + width)]


def ruler(start_ns: float, end_ns: float, width: int, unit: Unit, *, line: bool = False) -> StyledLine:
    """Return tick marks with figures from ``start_ns`` to ``end_ns``; the first has the unit."""
    span = end_ns - start_ns
    if width < 8 or span <= 0:
        return (dim(" " * width),)
    parts = max(1, width // (len(str(int(end_ns / unit.size_ns))) + 5))
    labels = _labels(start_ns, end_ns, width, unit, nice_step(span, parts))
    if len(labels) < 2:
        labels = _labels(start_ns, end_ns, width, unit, nice_step(span, 2 * parts))
    glyphs = ["─" if line else " "] * width
    for column, label in labels:
        glyphs[column : column + len(label) + 1] = f"{label} "[: width - column]
    return to_segments(Cell(glyph, FAINT if glyph in "─╷" else DIM) for glyph in glyphs)


def _labels(
    start_ns: float, end_ns: float, width: int, unit: Unit, step_ns: float
) -> list[tuple[int, str]]:
    """Return columns and figures of the ticks that neither overlap nor cross the end."""
    labels: list[tuple[int, str]] = []
    free = 0
    tick_ns = math.ceil(start_ns / step_ns) * step_ns
    while tick_ns < end_ns:
        column = int((tick_ns - start_ns) / (end_ns - start_ns) * width)
        label = f"╷{unit.brief(tick_ns)}" + ("" if labels else f" {unit.name}")
        if free <= column <= width - len(label):
            labels.append((column, label))
            free = column + len(label) + 1
        tick_ns += step_ns
    return labels
