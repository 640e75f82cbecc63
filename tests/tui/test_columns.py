import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.tui.columns import COLUMNS, GAP, layout


@given(st.integers(16, 400))
def test_columns_never_take_more_than_their_room(width):
    shown = layout(COLUMNS, width)
    assert sum(size for _, size in shown) + GAP * (len(shown) - 1) <= width


@pytest.mark.parametrize(
    ("width", "keys"),
    [
        (156, "rank bar overlap exposed stall idle step history"),
        (96, "rank bar overlap exposed stall idle step history"),
        (56, "rank bar overlap exposed step"),
        (30, "rank bar overlap"),
        (16, "rank bar"),
    ],
)
def test_narrow_terminals_lose_the_least_important_first(width, keys):
    assert [column.key for column, _ in layout(COLUMNS, width)] == keys.split()


def test_a_further_column_is_one_more_entry():
    nvlink = COLUMNS[2].__class__("nvlink", COLUMNS[2].header, COLUMNS[2].cell, 10, 5)
    assert "nvlink" in [column.key for column, _ in layout((*COLUMNS, nvlink), 156)]


def test_the_room_that_is_left_goes_to_the_bar_and_the_history():
    wide, narrow = dict_of(260), dict_of(100)
    assert wide["bar"] > narrow["bar"]
    assert wide["history"] == 40
    assert wide["overlap"] == narrow["overlap"]


def dict_of(width):
    return {column.key: size for column, size in layout(COLUMNS, width)}
