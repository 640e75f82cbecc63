"""A measured curve in cells: where points, intervals and the prediction lie. Pure."""

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


def test_a_wide_range_lies_on_a_log_scale_and_a_narrow_one_does_not():
    wide = ValueAxis(1, 400, 61)
    assert [wide.column(value) for value in (1, 20, 400)] == [0, 30, 60]
    narrow = ValueAxis(2, 6, 41)
    assert [narrow.column(value) for value in (2, 4, 6)] == [0, 20, 40]
    from_zero = ValueAxis(0, 100, 51)
    assert [from_zero.column(value) for value in (0, 50, 100)] == [0, 25, 50]


def test_shorter_steps_lie_lower_and_larger_values_further_right():
    lines = curve.plot([point(1, 50), point(20, 48), point(400, 46)], [], ValueAxis(1, 400, 61), 9)
    assert [column for _, column in places(lines, "●")] == [0, 30, 60]
    rows = [row for row, _ in places(lines, "●")]
    assert rows[1] == 4
    assert rows[0] + rows[2] == 8
    assert rows == sorted(rows)


def test_the_scale_stands_at_the_left_with_its_unit():
    lines = curve.plot([point(1, 50), point(400, 46)], [], ValueAxis(1, 400, 40), 8)
    top, *_, bottom = [text(line)[: curve.LABEL_CELLS].strip() for line in lines]
    assert top.endswith(" ms")
    assert float(bottom) < 46 < 50 < float(top.removesuffix(" ms"))


def test_an_interval_is_a_bar_around_its_point():
    lines = curve.plot([point(1, 50, 4), point(400, 50, 0.1)], [], ValueAxis(1, 400, 40), 11)
    column = [row[0] for row in cells(lines)]
    assert "┬" in column
    assert "┴" in column
    assert column.index("┬") < column.index("●") < column.index("┴")


def test_a_wide_interval_does_not_press_the_others_flat():
    lines = curve.plot([point(1, 50, 900), point(20, 49), point(400, 46)], [], ValueAxis(1, 400, 61), 12)
    rows = [row for row, _ in places(lines, "●")]
    assert max(rows) - min(rows) >= 3
    assert "┬" not in "".join(cells(lines))  # it goes on beyond the upper edge


def test_where_points_share_a_cell_the_one_that_counts_is_seen():
    lines = curve.plot(
        [point(100, 50, mark=curve.BEST), point(101, 50, mark=curve.ELIMINATED)],
        [],
        ValueAxis(1, 400, 20),
        5,
    )
    assert len(places(lines, "★")) == 1
    assert places(lines, "×") == []


def test_the_prediction_goes_through_the_values_that_it_is_known_of():
    predicted = [(400, 44 * MS), (1, 52 * MS), (20, 48 * MS)]
    axis = ValueAxis(1, 400, 61)
    lines = cells(curve.plot([point(1, 52), point(400, 44)], predicted, axis, 9))
    quarters = [[x for x, cell in enumerate(row) if cell in "▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"] for row in lines]
    covered = sorted(x for row in quarters for x in row)
    assert set(covered) >= set(range(1, 60))  # without a gap, but for the points themselves
    assert 30 in quarters[4]
    first_half = [min(row) for row in quarters if row]
    assert first_half == sorted(first_half)  # falling from left to right


def test_a_prediction_of_part_of_the_range_ends_where_it_is_known():
    axis = ValueAxis(1, 400, 61)
    lines = cells(curve.plot([], [(20, 50 * MS), (400, 45 * MS)], axis, 6))
    columns = {x for row in lines for x, cell in enumerate(row) if cell != " " and cell != "│"}
    assert min(columns) in (29, 30, 31)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("points", [[], [point(7, 50)], [point(7, 0), point(9, 0)]])
def test_few_points_or_none_are_drawn_too(points, rows):
    lines = curve.plot(points, [], ValueAxis(1, 400, 30), rows)
    assert len(lines) == rows
    assert {line_width(line) for line in lines} == {curve.LABEL_CELLS + 1 + 30}


def test_a_single_value_lies_in_the_middle():
    assert ValueAxis(5, 5, 21).column(5) == 10


def test_the_axis_has_both_ends_the_unit_and_round_values_that_do_not_touch():
    words = text(curve.value_axis(ValueAxis(1, 400, 61), "MiB"))
    assert words.split() == ["1", "2", "5", "10", "20", "50", "100", "400", "MiB"]
    assert len(words) == curve.LABEL_CELLS + 1 + 61
    assert text(curve.value_axis(ValueAxis(0, 8, 40), "")).split() == ["0", "2", "4", "6", "8"]


def test_the_legend_names_the_marks_that_are_there_and_what_there_is_room_for():
    every = text(curve.legend(curve.MARKS, 120, predicted=True))
    assert "▄▄ model" in every
    assert "95 % sure" in every
    assert "model" not in text(curve.legend(curve.MARKS, 120, predicted=False))
    few = text(curve.legend([curve.BEST, curve.CANDIDATE], 60, predicted=True))
    assert " ".join(few.split()) == "★ shortest step ● may be best ┬ ± 95 % sure ▄▄ model"
    assert text(curve.legend([], 60, predicted=False)).strip() == ""
    narrow = curve.legend(curve.MARKS, 40, predicted=True)
    assert line_width(narrow) <= 40
    assert "★ shortest step" in text(narrow)


def test_where_there_is_nothing_to_draw_there_is_no_scale():
    lines = curve.plot([], [], ValueAxis(1, 400, 30), 5)
    assert {text(line).strip() for line in lines} == {"│"}


def test_an_interval_that_is_not_known_is_not_drawn_and_leaves_the_scale_alone():
    endless = PlotPoint(20, 49 * MS, 0.0, math.inf, curve.CANDIDATE)
    known = [point(1, 50), point(400, 46)]
    lines = curve.plot([*known, endless], [], ValueAxis(1, 400, 61), 9)
    assert len(places(lines, "●")) == 3
    assert not set("┬┴") & set("".join(cells(lines)))
    bare = curve.plot([*known, point(20, 49)], [], ValueAxis(1, 400, 61), 9)
    assert lines == bare
