"""The steps of a run that count, also after the job was started again."""

import pytest
from msgspec.structs import replace

from overlaptop.runs.samples import Samples
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
    samples = Samples()
    samples.add_steps(made(first, 50, began_s=0, ms=80))
    samples.add_steps(made(0, 20, began_s=60, ms=40))
    assert samples.lengths_ns() == [40 * MS] * 18


def test_steps_from_before_a_restart_are_not_added_later():
    samples, before = Samples(), made(5000, 50, began_s=0, ms=80)
    samples.add_steps(before)
    samples.add_steps(made(0, 20, began_s=60, ms=40, ranks=(0,)))
    samples.add_steps(before)  # rank 1 keeps them until it steps again
    samples.add_steps(made(0, 20, began_s=60, ms=40, ranks=(1,)))
    assert [len(of_ranks) for of_ranks in samples.going.values()] == [2] * 18
    assert samples.lengths_ns() == [40 * MS] * 18
