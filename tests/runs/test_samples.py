"""The steps of a run that count, also after the job was started again."""

import pytest
from msgspec.structs import replace

from overlaptop.fleet.waits import StepWaits
from overlaptop.runs.samples import Samples
from overlaptop.timeline.arrivals import WaitTimes
from tests.fleet.builders import MS, T0, S, unmeasured


def made(first, count, *, began_s, ms, ranks=(0, 1)):
    """Steps of all ranks, one after another."""
    return [
        replace(unmeasured(rank, first + at, ms), start_ns=T0 + began_s * S + at * ms * MS)
        for at in range(count)
        for rank in ranks
    ]


@pytest.mark.parametrize("first", [0, 5000])
def test_job_that_was_started_again_is_reported_since_then(first):
    samples, before = Samples(), made(first, 50, began_s=0, ms=80)
    samples.add_steps(before)
    samples.add_steps(made(0, 20, began_s=60, ms=40, ranks=(0,)))
    samples.add_steps(before)  # rank 1 keeps them until it steps again
    samples.add_steps(made(0, 20, began_s=60, ms=40, ranks=(1,)))
    assert [len(of_ranks) for of_ranks in samples.going.values()] == [2] * 18
    assert samples.lengths_ns() == [40 * MS] * 18


def waited(number, *, began_s, wait_ns):
    times = WaitTimes(wait_ns, 0, 0, wait_ns, 0, 0)
    return StepWaits(number, T0 + began_s * S, 80 * MS, (), {0: times, 1: times}, None, None)


def waiting_of(samples):
    return {each.name: each.median for each in samples.figures()}.get("waiting")


@pytest.mark.parametrize(("from_s", "step"), [(30, 5), (0, 6)], ids=["before a window", "before a restart"])
def test_waits_of_other_steps_with_this_number_are_left_out(from_s, step):
    samples = Samples(from_ns=T0 + from_s * S)
    samples.add_steps(made(0, 50, began_s=0, ms=80))
    samples.add_steps(made(0, 20, began_s=60, ms=40))
    samples.add_waits(waited(step, began_s=0, wait_ns=9 * MS))
    assert waiting_of(samples) is None
    samples.add_waits(waited(step, began_s=60, wait_ns=MS))
    assert waiting_of(samples) == MS
