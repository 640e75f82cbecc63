import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlaptop.models.prefetch import prefetch

LAYERS = 600


def waits_ns(depth, layer_ns, all_gathers_ns):
    """What each layer waits: all-gathers in order on one stream, each issued `depth` layers ahead."""
    began, gathered, computed, waits = [], 0, 0, []
    for i, all_gather_ns in enumerate(all_gathers_ns):
        issued = began[i - depth] if i >= depth else 0
        gathered = max(gathered, issued) + all_gather_ns
        waits.append(max(0, gathered - computed))
        began.append(max(gathered, computed))
        computed = began[-1] + layer_ns
    return waits


times_ns = st.integers(1, 20)


@settings(deadline=None)
@given(times_ns, times_ns, st.integers(0, 60))
def test_the_depth_is_the_smallest_with_which_layers_wait_least(all_gather_ns, layer_ns, more_ns):
    slowest_ns = all_gather_ns + more_ns
    found = prefetch(all_gather_ns, layer_ns, slowest_ns)
    # The slow one comes late: what is gathered ahead has piled up by then.
    run = [all_gather_ns] * LAYERS
    run[-1] = slowest_ns
    by_depth = [waits_ns(depth, layer_ns, run) for depth in range(1, found.depth + 3)]
    slow = [waits[-1] for waits in by_depth]
    assert slow[found.depth - 1] == found.slowest_exposed_ns == min(slow)
    assert by_depth[found.depth - 1][-2] == found.exposed_ns == min(waits[-2] for waits in by_depth)
    assert slow.index(min(slow)) == found.depth - 1


def test_where_nothing_is_said_of_a_slowest_one_all_take_as_long_as_usual():
    assert prefetch(2, 5) == prefetch(2, 5, 2) == (1, 0, 0)


@pytest.mark.parametrize(
    ("times", "reason"),
    [((0, 5), "more than 0"), ((2, -1), "more than 0"), ((3, 5, 2), "slowest")],
)
def test_times_that_make_no_sense_are_refused(times, reason):
    with pytest.raises(ValueError, match=reason):
        prefetch(*times)
