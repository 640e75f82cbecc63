"""Bars, sparklines and axes as segments, exact to an eighth of a cell. Pure functions."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple

from overlaptop.text import Unit, nice_step
from overlaptop.tui.draw.segments import DIM, FAINT, WHOLE, Segment, StyledLine, TextStyle, dim

EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = " ▁▂▃▄▅▆▇█"
TEXTURES = {
    "compute": "█", "phases": "-", "hidden": "▓", "hidden_waiting": "▒", "exposed": "░", "waiting": "~",
    "copy": "▞", "fused": "%", "idle": "·", "stall": "x",
}  # fmt: skip
"""Glyph of each part for screens where colours cannot tell parts apart; keys are those of the colours."""
MARKS = {
    "bright": "◆", "far_worse": "#", "far_better": "=", "worse": "+", "better": "-", "screen": "?",
    "member": "○", "usual": "·",
}  # fmt: skip
"""The same for marks of ranks, the most important first: a cell of two ranks has one glyph."""


class Piece(NamedTuple):
    """A part of a line, in any unit: a part's key, or empty for nothing."""

    start: float
    end: float
    key: str


def merged(cells: Iterable[Segment]) -> StyledLine:
    """Return the line with neighbours of one style as one segment."""
    groups = groupby(cells, key=attrgetter("style"))
    return tuple(Segment("".join(cell.text for cell in group), style) for style, group in groups)


def split(line: StyledLine) -> list[Segment]:
    """Return the line with a segment for each cell."""
    return [Segment(glyph, style) for text, style in line for glyph in text]


def textured(line: StyledLine) -> StyledLine:
    """Return the line with glyphs that tell parts, and marks of ranks, apart without colours."""
    return merged(_textured(*cell) for cell in split(line))


def _textured(glyph: str, style: TextStyle) -> Segment:
    fg, bg, kept = style.fg, style.bg, style._replace(bg="cursor" if style.bg == "cursor" else "")
    if fg == "track":
        return Segment("·", kept._replace(fg="faint"))
    if glyph == "▀" or (glyph == "█" and fg == bg and fg in MARKS):
        mark = next(mark for mark in MARKS if mark in (fg, bg))
        fg = {"screen": "warning", "usual": "dim"}.get(mark, mark)
        return Segment(MARKS[mark], kept._replace(fg=fg, bold=mark not in ("screen", "usual", "member")))
    if glyph not in EIGHTHS or not (bg in TEXTURES or style.eighths < WHOLE or glyph in "▏▎▍▌▋▊▉"):
        return Segment(glyph, kept if bg in TEXTURES else style)
    eighths = {bg: WHOLE - EIGHTHS.index(glyph), fg: EIGHTHS.index(glyph)}
    seen = [key for key in (fg, bg) if key in TEXTURES and eighths[key] >= 2]
    if not seen:
        return Segment(" ", kept)
    key = max(seen, key=eighths.__getitem__)
    return Segment(TEXTURES[key], kept._replace(fg=key, eighths=WHOLE))


def stacked_bar(parts: Sequence[tuple[str, int]], scale_ns: int, width: int) -> StyledLine:
    """Return parts end to end, ``scale_ns`` being the whole width; cells beyond their sum stay blank."""
    pieces, at_ns = [], 0
    for key, length_ns in parts:
        if length_ns > 0:
            pieces.append(Piece(at_ns, at_ns + length_ns, key))
            at_ns += length_ns
    return lane(pieces, 0, max(scale_ns, 1), width)


def gauge(share: float | None, width: int, style: TextStyle) -> StyledLine:
    """Return a gauge of ``width`` cells, filled for ``share`` (in [0, 1]), exact to half a cell; at least
    half a cell if it is not 0. None, not known: blank.

    A line and not a block, so that gauges below each other stay separate.
    """
    filled = min(1.0, max(0.0, share or 0.0)) * max(width, 0)
    whole, half = divmod(max(round(2 * filled), 1 if filled else 0), 2)
    track = [Segment("━", TextStyle("track"))] * (width - whole - half)
    return merged([*[Segment("━", style)] * whole, *[Segment("╸", style)] * half, *track])


def lane(pieces: Sequence[Piece], start: float, end: float, width: int) -> StyledLine:
    """Return ``pieces`` (sorted, disjoint) in the window ``[start, end)``, as ``width`` cells.

    A cell with one edge shows it to an eighth. One with several edges shows the share of its foremost part
    as a shade.
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
        cell = _solid(key) if whole else _precise(_shares(pieces, at, left, size))
        drawn.append(Segment(cell.text * max(whole, 1), cell.style))
        column += max(whole, 1)
    return merged(drawn)


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


def _solid(key: str) -> Segment:
    return Segment("█", TextStyle(key, key)) if key else Segment(" ", TextStyle())


def _precise(shares: Sequence[tuple[str, float]]) -> Segment:
    seen = [(key, share) for key, share in shares if share >= 1 / 16]
    if sum(share for _, share in seen) < 7 / 8:
        seen = list(shares)  # slivers add up: many small gaps matter
    seen = [(key, sum(share for _, share in same)) for key, same in groupby(seen, lambda part: part[0])]
    if len(seen) == 1:
        return _solid(seen[0][0])
    if len(seen) == 2:
        (left, share), (right, rest) = seen
        eighths = round(WHOLE * share / (share + rest))
        return Segment(EIGHTHS[eighths], TextStyle(left or "screen", left if eighths == WHOLE else right))
    totals = {key: sum(share for other, share in seen if other == key) for key, _ in seen}
    most = sorted(totals, key=totals.__getitem__, reverse=True)[:2]
    if len(totals) == 2 and "" in most:
        front = next(key for key in most if key)
        # One colour: a lane of dot patterns would look dirty.
        return Segment("█", TextStyle(front, eighths=2 * min(3, max(1, round(totals[front] * 4)))))
    left, right = sorted(most, key=[key for key, _ in seen].index)
    return Segment("▌", TextStyle(left or "screen", right))


MARKED = TextStyle("accent", bold=True)
OVER = Segment("▲", TextStyle("bright", bold=True))  # The end of a column beyond the scale


def chart(
    values: Sequence[float | None],
    top: float,
    rows: int,
    *,
    style: TextStyle,
    marked: int | None = None,
    gaps: Sequence[bool] = (),
) -> list[StyledLine]:
    """Return one column per value on a scale from 0 to ``top``, ``rows`` cells tall, uppermost row first.
    None leaves a gap, more than ``top`` is `OVER`. ``marked``: a highlighted column; ``gaps``: columns to
    mark as unknown.
    """
    filled = [
        [Segment(LEVELS[min(8, max(row == 0, level - 8 * row))], style) for row in range(rows - 1, -1, -1)]
        for level in range(8 * rows + 1)
    ]

    def column(at: int, value: float | None) -> list[Segment]:
        cells = [Segment(" ", DIM)] * rows
        if value is not None and top > 0:
            cells = filled[max(0, round(8 * rows * min(value, top) / top))]
            cells = [OVER, *cells[1:]] if value > top else cells
        elif any(gaps[at : at + 1]):
            cells = [*cells[1:], Segment("·", DIM)]
        if at == marked:
            cells = [Segment("▼", MARKED), *(Segment(glyph, MARKED) for glyph, _ in cells[1:])]
        return cells

    columns = [column(at, value) for at, value in enumerate(values)]
    return [merged(cells[row] for cells in columns) for row in range(rows)]


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
    return merged(Segment(glyph, FAINT if glyph in "─╷" else DIM) for glyph in glyphs)


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
