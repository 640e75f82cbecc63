from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.text import Unit
from overlaptop.tui.draw.bars import (
    EIGHTHS,
    TEXTURES,
    Piece,
    chart,
    gauge,
    lane,
    ruler,
    stacked_bar,
    textured,
)
from overlaptop.tui.draw.layout import line_width
from overlaptop.tui.draw.segments import TextStyle
from overlaptop.tui.model.history import Columns, bar_top_ns, scale_top_ns
from overlaptop.tui.model.parts import STEP_PARTS
from overlaptop.tui.widgets.view import plain
from tests.fleet.builders import MS, step

from .fakes import text_of

KEYS = [part.key for part in STEP_PARTS]
PLAIN = TextStyle("history")


def painted(line):
    """How many cells each colour covers: the glyph's eighths in its ink, the rest in its background."""
    cells = {}
    for run in line:
        for glyph in run.text:
            share = EIGHTHS.index(glyph) / 8
            cells[run.style.fg] = cells.get(run.style.fg, 0) + share
            cells[run.style.bg] = cells.get(run.style.bg, 0) + 1 - share
    return cells


@given(st.lists(st.integers(8, 1000), min_size=6, max_size=6), st.integers(80, 200))
def test_parts_take_their_share_of_the_bar_to_an_eighth(lengths, width):
    total = sum(lengths)
    bar = stacked_bar(list(zip(KEYS, lengths, strict=True)), total, width)
    cells = painted(bar)
    for key, length in zip(KEYS, lengths, strict=True):
        if length / total * width >= 2:
            assert cells[key] == pytest.approx(length / total * width, abs=0.51)


def pieces_of(*spans):
    return [Piece(start, end, "compute") for start, end in spans]


@pytest.mark.parametrize(
    ("pieces", "window", "width", "drawn"),
    [
        (pieces_of((0, 10), (20, 30)), (5, 25), 4, [("█", 8), ("  ", 8), ("█", 8)]),
        (pieces_of(*((at, at + 1) for at in range(0, 16, 2))), (0, 16), 2, [("██", 4)]),
        (pieces_of(*((at, at + 0.7) for at in range(20))), (0, 20), 1, [("█", 6)]),
        (pieces_of((0, 50), (52, 75)), (0, 100), 1, [("▊", 8)]),
    ],
    ids=["a window", "many edges are a shade", "slivers add up", "one thin gap leaves an edge"],
)
def test_a_lane_shows_how_much_is_covered_and_edges_to_an_eighth(pieces, window, width, drawn):
    line = lane(pieces, *window, width)
    assert [(run.text, run.style.eighths) for run in line] == drawn


@given(
    st.lists(st.integers(0, 500), max_size=40).map(sorted),
    st.integers(0, 400),
    st.integers(1, 300),
    st.integers(1, 99),
)
def test_a_lane_is_exactly_as_wide_as_its_room_at_any_zoom(edges, start, length, width):
    pieces = [Piece(a, b, "compute") for a, b in zip(edges[::2], edges[1::2], strict=False) if a < b]
    line = lane(pieces, start, start + length, width)
    assert line_width(line) == line_width(textured(line)) == width


@given(st.integers(0, 10**9), st.integers(1_000, 10**9), st.integers(1, 200))
def test_ruler_fills_its_width_with_whole_figures(start_ns, length_ns, width):
    unit = Unit.for_scale(length_ns)
    text = text_of(ruler(start_ns, start_ns + length_ns, width, unit))
    assert len(text) == width
    figures = [label.strip().removesuffix(unit.name) for label in text.split("╷")[1:]]
    assert text.count(unit.name) <= 1
    spacing = {round(b - a, 4) for a, b in pairwise([float(figure) for figure in figures])}
    assert len(spacing) <= 2  # a tick may be left out after the first one, which says the unit


def test_scale_of_bars_is_round_and_stays_while_mostly_filled():
    assert list(map(bar_top_ns, (0, 7, 47_600_000, 101_000_000))) == [0, 7, 48_000_000, 110_000_000]
    tops = [110]
    for length_ns in (95, 84, 111, 80):
        tops.append(bar_top_ns(length_ns, tops[-1]))
    assert tops[1:] == [110, 110, 120, 80]


def test_chart_starts_at_zero_and_marks_longer_and_unmeasured_columns():
    values = [8.0, 4.0, 9.0, None, None, 0.0, -1.0]
    for height, drawn in ((1, ["█▄▲· ▁▁"]), (2, ["█ ▲    ", "███· ▁▁"])):
        rows = chart(values, 8.0, height, style=PLAIN, gaps=[False, False, False, True])
        assert [text_of(row) for row in rows] == drawn
    assert rows[0][0].style == PLAIN


def test_completed_columns_stay_and_missing_steps_are_gaps():
    def columns(steps, width, each):
        return Columns(steps, width, each).values(lambda known: known.step)

    steps = [step(0, number) for number in range(100)]
    tens = [9, 19, 29, 39, 49, 59, 69, 79, 89]
    assert columns(steps[:95], 10, 10)[:-1] == columns(steps, 10, 10)[:-1] == tens
    assert columns([step(0, 0), step(0, 3)], 4, 1) == [0, None, None, 3]


@pytest.mark.parametrize(
    ("drawn_ms", "top_ms"),
    [
        ([250] * 20 + [437] * 20 + [None] * 5, 800),
        ([100 + 5 * step for step in range(40)], 500),
        ([437] * 39 + [22_000], 800),
        ([], 0),
    ],
    ids=["two kinds of steps", "steps that grow", "one checkpoint", "none"],
)
def test_step_time_scale_follows_what_is_drawn(drawn_ms, top_ms):
    assert scale_top_ns(each and each * MS for each in drawn_ms) == top_ms * MS


@given(st.none() | st.floats(-1, 3), st.integers(0, 60))
def test_gauge_is_exact_to_half_a_cell(share, width):
    line = gauge(share, width, PLAIN)
    assert line_width(line) == width
    filled = sum(line_width([run]) - run.text.count("╸") / 2 for run in line if run.style == PLAIN)
    wanted = min(1, max(0, share or 0)) * width
    assert (filled > 0) == (wanted > 0)
    assert filled == pytest.approx(wanted, abs=0.26 if wanted > 0.5 else 0.5)


@pytest.mark.parametrize("only_ascii", [False, True])
def test_parts_differ_by_glyph(only_ascii):
    assert len({plain(glyph, only_ascii) for glyph in TEXTURES.values()}) == len(TEXTURES)
