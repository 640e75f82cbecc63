import pytest

from overlaptop.fleet.job_state import JobState
from overlaptop.report.order import Filter, FilterError, ordered
from tests.fleet.builders import Clock, S, info, status, step, unmeasured, welcome

from .machines import h200_node, misplaced, unbound


@pytest.fixture
def ranks():
    clock = Clock()
    fleet = JobState(clock)
    fleet.apply(welcome(world_size=5))
    fleet.apply(status())
    for rank, hidden in enumerate((27, 15, 21)):
        fleet.apply(info(rank, host=f"gpu-{rank // 2}"))
        fleet.apply(step(rank, 0, comm=30, hidden=hidden))
        fleet.apply(unmeasured(rank, 1, ms=500 - 100 * rank))  # its figures are of the one before
    clock.at_ns += 60 * S
    fleet.apply(info(3, exact=False))
    fleet.apply(unmeasured(3, 0, ms=500))
    return fleet.snapshot().ranks


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("", [0, 1, 2, 3, 4]), ("0,2-3", [0, 2, 3]), ("9", []), ("overlap<80%", [1, 2]),
        ("overlap>=70", [0, 2]), ("exposed>10", [1]), ("exposed<=3000us", [0]), ("h200", [0, 1, 2, 3]),
        ("stale", [0, 1, 2]), ("ended", []), ("0-2 overlap<80 gpu-0", [1]), ("idle>0", [0, 1, 2]),
        ("step>0.2 s", [3]), ("exposed>2 ms gpu-0", [0, 1]), ("3 s", []), ("10-0-0-1", []),
    ],
)  # fmt: skip
def test_a_filter_keeps_ranks_for_which_every_word_holds(ranks, words, kept):
    assert [view.rank for view in ranks if Filter.parse(words).keeps(view)] == kept


@pytest.mark.parametrize(
    "words",
    [
        *("overlap", "overlap<", "overlaps<80", "exposed>10%", "overlap<80ms", "step<<3", "<5"),
        *("nvlink>10ms", "pcie<3%", "numa>1", "step>1gb/s", "nvlink", "step>5 gb/s"),
        *("0-", "-3", "0-3,", "9-3", "0,9-3"),
    ],
)
def test_meaningless_comparison_is_refused_in_one_line(words):
    with pytest.raises(FilterError, match=r"^[^\n]+$"):
        Filter.parse(words)


@pytest.mark.parametrize(
    ("key", "reverse", "order"),
    [("rank", True, [4, 3, 2, 1, 0]), ("overlap", False, [1, 2, 0, 3, 4]), ("step", True, [3, 1, 2, 0, 4])],
)
def test_ranks_whose_figure_is_unknown_come_last_either_way(ranks, key, reverse, order):
    assert [view.rank for view in ordered(ranks, Filter(), key, reverse=reverse)] == order


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("nvlink<=277gb/s", [1, 2]), ("nvlink>276900mb/s", [0, 1]), ("pcie>=1.4", [2]),
        ("misplaced", [1]), ("unbound", [2]), ("misplaced nvlink>280", []),
    ],
)  # fmt: skip
def test_ranks_can_be_filtered_by_links_and_placement(words, kept):
    ranks = h200_node(3, numas={1: misplaced(1), 2: unbound(2)}).tick().ranks
    assert [view.rank for view in ranks if Filter.parse(words).keeps(view)] == kept
