"""The history of a job's transfers: which steps are kept, for how long, and what of them."""

import pytest

from overlaptop.fleet.transfers import EACH_NS, KEPT_STEPS, TransferHistory
from overlaptop.fleet.waits import StepTransfer, StepWaits
from overlaptop.fleet.window import FIRST_STEPS
from overlaptop.timeline.arrivals import Collective, Part, WaitTimes

from .builders import MS, T0, S


def a_step(
    number, start_ns=None, *, sizes=(1000, 24), transfers_ns=(30 * MS, 50 * MS), not_attributed_ns=0
):
    """Two ranks' step, which begins a quarter of a second after the one before it unless told otherwise."""
    parts = (Part(0, 0, 10), Part(1, 0, 10))
    found = tuple(Collective("allreduce_", "0 default_pg", size, parts) for size in sizes)
    times = {
        rank: WaitTimes(0, transfer_ns, not_attributed_ns, 0, 0, 0)
        for rank, transfer_ns in enumerate(transfers_ns)
    }
    begun_ns = T0 + number * EACH_NS if start_ns is None else start_ns
    return StepWaits.of(number, begun_ns, 100 * MS, found, times)


def kept_of(*steps):
    history = TransferHistory()
    for each in steps:
        history.add(each)
    return history.kept


def numbers(*steps):
    return [each.step for each in kept_of(*steps)]


def test_step_is_kept_with_its_bytes_and_mean_transfer():
    assert kept_of(a_step(5)) == (StepTransfer(5, T0 + 5 * EACH_NS, 2, 1024, 40 * MS),)


def test_at_most_one_step_is_kept_each_quarter_of_a_second():
    short = [a_step(number, T0 + number * 100 * MS) for number in range(10, 20)]
    assert numbers(*short) == [10, 13, 16, 19]
    long = [a_step(number, T0 + number * 3 * S) for number in range(10, 14)]
    assert numbers(*long) == [10, 11, 12, 13]


def test_a_clock_that_is_set_back_stops_nothing():
    assert numbers(a_step(10), a_step(11, T0 - 60 * S), a_step(12, T0 - 59 * S)) == [10, 11, 12]


def test_the_oldest_of_many_steps_are_given_up():
    kept = numbers(*map(a_step, range(10, KEPT_STEPS + 15)))
    assert (kept[0], len(kept)) == (15, KEPT_STEPS)


def test_ranks_that_count_from_0_again_begin_anew():
    assert numbers(a_step(10), a_step(11), a_step(3, T0 + 20 * S), a_step(4, T0 + 21 * S)) == [3, 4]


@pytest.mark.parametrize(
    ("step", "is_kept"),
    [
        (a_step(FIRST_STEPS - 1), False),
        (a_step(FIRST_STEPS), True),
        (a_step(5, not_attributed_ns=3 * MS), True),
        (a_step(5, not_attributed_ns=3 * MS + 1), False),
        (a_step(5, sizes=(1000, 0)), True),
        (a_step(5, sizes=(1000, None)), False),  # as of an all-to-all of uneven parts
    ],
)
def test_a_step_of_which_not_all_is_known_is_left_out(step, is_kept):
    assert bool(kept_of(step)) is is_kept


def test_what_was_up_to_a_change_of_a_setting_is_forgotten():
    history = TransferHistory()
    for number in range(10, 15):
        history.add(a_step(number))
    history.forget(12)
    assert [each.step for each in history.kept] == [13, 14]
