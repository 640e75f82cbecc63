from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from overlaptop.tui.draw.table import GAP
from overlaptop.tui.overview.columns import COLUMNS, columns_for, layout, numa_cell

from .fakes import running_job
from .machines import cpu_only, h200_node, misplaced, numa, unbound, workstation


@given(st.integers(16, 400))
def test_columns_never_take_more_than_their_room(width):
    shown = layout(COLUMNS, width)
    assert sum(size for _, size in shown) + GAP * (len(shown) - 1) <= width


@pytest.mark.parametrize(
    ("width", "keys"),
    [
        (156, "rank bar overlap exposed stall idle step nvlink pcie numa history"),
        (116, "rank bar overlap exposed stall idle step nvlink numa"),
        (96, "rank bar overlap exposed stall step nvlink numa"),
        (56, "rank bar overlap exposed step"),
        (30, "rank bar overlap"),
        (16, "rank bar"),
    ],
)
def test_narrow_terminals_lose_the_least_important_first(width, keys):
    assert [column.key for column, _ in layout(COLUMNS, width)] == keys.split()


def test_a_further_column_is_one_more_entry():
    another = COLUMNS[2].__class__("another", COLUMNS[2].header, COLUMNS[2].cell, 10, 5)
    assert "another" in [column.key for column, _ in layout((*COLUMNS, another), 180)]


def test_the_room_that_is_left_goes_to_the_bar_and_the_history():
    wide, narrow = dict_of(260), dict_of(100)
    assert wide["bar"] > narrow["bar"]
    assert wide["history"] == 40
    assert wide["overlap"] == narrow["overlap"]


def test_a_column_with_nothing_to_say_of_any_rank_is_left_out():
    base = "rank bar overlap exposed stall idle step"

    def shown(session):
        return " ".join(column.key for column in columns_for(session.tick().ranks))

    assert shown(running_job(2)) == f"{base} history"
    # On a CPU stalls are what is exposed, and gaps are not seen.
    assert shown(cpu_only()) == "rank bar overlap exposed step history"
    assert shown(running_job(2, exact=False)) == "rank bar overlap exposed stall step history"
    assert shown(workstation()) == f"{base} pcie history"
    assert shown(h200_node(2)) == f"{base} nvlink pcie numa history"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (numa(0), "0 ✓"), (unbound(0, 1), "1 ~"), (misplaced(0, 1), "1 ✗"),
        (structs.replace(numa(0), state="unknown"), "0 ?"),
        (structs.replace(numa(0), state="unknown", gpu_node=None), "?"),
        (structs.replace(numa(0), state="one node", gpu_node=None), "0 ✓"),
        (structs.replace(numa(0), state="no gpu", gpu_node=None), "no GPU"),
        (None, "–"),
    ],
)  # fmt: skip
def test_the_numa_mark_says_the_node_and_how_the_rank_lies_to_it(facts, words):
    view = replace(h200_node(1).tick().ranks[0], numa=facts)
    assert "".join(run.text for run in numa_cell(view)) == words


def dict_of(width):
    return {column.key: size for column, size in layout(COLUMNS, width)}
