"""A measured curve in cells: where points and intervals lie. Pure."""

from __future__ import annotations

import math

import pytest

from overlaptop.tui.draw.segments import line_width
from overlaptop.tui.search import curve
from overlaptop.tui.search.curve import PlotPoint, ValueAxis

MS = 1_000_000


def text(line):
    return "".join(run.text for run in line)


def point(value, ms, reach_ms=0.0, mark=curve.CANDIDATE):
    return PlotPoint(value, ms * MS, (ms - reach_ms) * MS, (ms + reach_ms) * MS, mark)


def cells(lines):
    """The plot without its scale, a string a row."""
    return [text(line)[curve.LABEL_CELLS + 1 :] for line in lines]


def places(lines, glyph):
    """(row, column) of each cell with this glyph."""
    return [(y, x) for y, row in enumerate(cells(lines)) for x, cell in enumerate(row) if cell == glyph]


@pytest.mark.parametrize(
    ("axis", "columns"),
    [
        (ValueAxis(1, 400, 61), {1: 0, 20: 30, 400: 60}),  # wide: a log scale
        (ValueAxis(2, 6, 41), {2: 0, 4: 20, 6: 40}),
        (ValueAxis(0, 100, 51), {0: 0, 50: 25, 100: 50}),
        (ValueAxis(5, 5, 21), {5: 10}),
    ],
)
def test_values_lie_on_a_log_scale_where_their_range_is_wide(axis, columns):
    assert {value: axis.column(value) for value in columns} == columns


def test_shorter_steps_lie_lower_on_a_scale_that_stands_at_the_left_with_its_unit():
    lines = curve.plot([point(1, 50), point(20, 48), point(400, 46)], ValueAxis(1, 400, 61), 9)
    assert [column for _, column in places(lines, "●")] == [0, 30, 60]
    rows = [row for row, _ in places(lines, "●")]
    assert rows[1] == 4
    assert rows[0] + rows[2] == 8
    assert rows == sorted(rows)
    top, *_, bottom = [text(line)[: curve.LABEL_CELLS].strip() for line in lines]
    assert float(bottom) < 46 < 50 < float(top.removesuffix(" ms"))


def test_an_interval_is_a_bar_around_its_point_and_a_wide_one_does_not_press_the_others_flat():
    lines = curve.plot([point(1, 50, 4), point(400, 50, 0.1)], ValueAxis(1, 400, 40), 11)
    column = [row[0] for row in cells(lines)]
    assert column.index("┬") < column.index("●") < column.index("┴")
    lines = curve.plot([point(1, 50, 900), point(20, 49), point(400, 46)], ValueAxis(1, 400, 61), 12)
    rows = [row for row, _ in places(lines, "●")]
    assert max(rows) - min(rows) >= 3
    assert "┬" not in "".join(cells(lines))  # it goes on beyond the upper edge


def test_an_interval_that_is_not_known_is_not_drawn_and_leaves_the_scale_alone():
    known = [point(1, 50), point(400, 46)]
    endless = PlotPoint(20, 49 * MS, 0.0, math.inf, curve.CANDIDATE)
    lines = curve.plot([*known, endless], ValueAxis(1, 400, 61), 9)
    assert lines == curve.plot([*known, point(20, 49)], ValueAxis(1, 400, 61), 9)


def test_where_points_share_a_cell_the_one_that_counts_is_seen():
    both = [point(100, 50, mark=curve.BEST), point(101, 50, mark=curve.ELIMINATED)]
    lines = curve.plot(both, ValueAxis(1, 400, 20), 5)
    assert (len(places(lines, "★")), places(lines, "×")) == (1, [])


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("points", [[], [point(7, 50)], [point(7, 0), point(9, 0)]])
def test_few_points_or_none_are_drawn_too(points, rows):
    lines = curve.plot(points, ValueAxis(1, 400, 30), rows)
    assert [line_width(line) for line in lines] == [curve.LABEL_CELLS + 1 + 30] * rows
    assert points or {text(line).strip() for line in lines} == {"│"}


def test_the_axis_has_both_ends_the_unit_and_round_values_that_do_not_touch():
    words = text(curve.value_axis(ValueAxis(1, 400, 61), "MiB"))
    assert words.split() == ["1", "2", "5", "10", "20", "50", "100", "400", "MiB"]
    assert len(words) == curve.LABEL_CELLS + 1 + 61
    assert text(curve.value_axis(ValueAxis(0, 8, 40), "")).split() == ["0", "2", "4", "6", "8"]


def test_the_legend_names_the_marks_that_are_there_and_what_there_is_room_for():
    few = text(curve.legend([curve.BEST, curve.CANDIDATE], 60))
    assert " ".join(few.split()) == "★ shortest step ● may be best ┬ ± 95 % sure"
    assert text(curve.legend([], 60)).strip() == ""
    narrow = curve.legend(curve.MARKS, 40)
    assert line_width(narrow) <= 40
    assert "★ shortest step" in text(narrow)
