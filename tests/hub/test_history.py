"""What the hub remembers of a job, and its bounds."""

import pytest
from msgspec.structs import replace

from overlaptop.hub.history import JobHistory
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import Notice, RankEnd, StepTotals
from tests.fleet import builders
from tests.fleet.builders import device, info, machine, numa

INFO, MACHINE, DEVICE, NUMA = info(0, pid=1), machine(), device(), numa()


def sample(number, rank=0):
    return replace(builders.sample(rank), at_ns=number)


@pytest.fixture
def history():
    return JobHistory()


def keep(history, *messages, now_s=0.0):
    for message in messages:
        history.keep(message, encode(message), now_s)
    return [decode(frame.payload) for frame in history.replay()]


def samples(received, rank=0):
    return [each.at_ns for each in received if isinstance(each, DeviceSample) and each.rank == rank]


def totals(rank, step):
    return StepTotals(rank, step, 0, 1, *[0] * 14)


def steps(received, rank=0):
    return [each.step for each in received if isinstance(each, StepTotals) and each.rank == rank]


def test_three_minutes_of_steps_are_kept_also_of_a_hanging_rank(history):
    keep(history, totals(1, 5), now_s=0.0)
    for step in range(599):
        history.keep(totals(0, step), encode(totals(0, step)), float(step))
    received = keep(history, totals(0, 599), now_s=599.0)
    assert steps(received) == list(range(419, 600))
    assert steps(received, rank=1) == [5]


def test_steps_stay_within_their_bytes(history):
    for step in range(10_000):
        history.keep(totals(0, step), bytes(1000), 0.0)
    assert 1_000_000 < sum(len(frame.payload) for frame in history.replay()) < 1 << 20


def test_replay_has_ranks_then_newest_facts_then_the_rest(history):
    other = replace(INFO, rank=1)
    end = RankEnd(0, 9, clean=True)
    older = replace(NUMA, state="unbound"), replace(DEVICE, pcie_generation=4)
    happened = sample(5), Notice(0, 5, "info", ""), totals(0, 1), sample(4, rank=1), sample(6)
    received = keep(history, INFO, *happened, MACHINE, *older, DEVICE, other, NUMA, end)
    assert received[:2] == [INFO, other]
    assert set(received[2:5]) == {MACHINE, DEVICE, NUMA}
    assert received[5:] == [*happened, end]


def test_a_minute_of_samples_is_kept_or_less_of_many_ranks(history):
    received = keep(history, *(sample(number) for number in range(500)))
    kept = len(samples(received))
    assert 120 < kept < 250
    for rank in range(1, 2048):
        history.keep(sample(0, rank=rank), encode(sample(0, rank=rank)), 0.0)
    few = samples(keep(history, sample(500)))
    assert 16 <= len(few) < kept // 2
    assert few[-1] == 500


def test_new_process_of_a_rank_inherits_no_facts(history):
    keep(history, INFO, NUMA, DEVICE, sample(1), builders.stacks())
    assert len(keep(history, replace(INFO, backend="nccl"))) == 5
    again = replace(INFO, pid=2)
    assert keep(history, again) == [again]
