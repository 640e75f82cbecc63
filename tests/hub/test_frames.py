"""What the hub remembers of a job, and what a reader is sent: in order, within bounds and grants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop.hub.history import JobHistory
from overlaptop.hub.reader_queue import ReaderQueue, make_frame
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import Notice, RankEnd, StepDetail, StepTotals
from tests.fleet import builders
from tests.fleet.builders import device, info, machine, numa
from tests.wire.examples import DETAIL, SAMPLE, STEP

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


def totals(step, rank=0, *, measured=False):
    made = replace(STEP, rank=rank, step=step)
    return made if measured else replace(made, comm_ns=None)


def steps(received, rank=0):
    return [each.step for each in received if isinstance(each, StepTotals) and each.rank == rank]


def test_three_minutes_of_steps_are_kept_also_of_a_hanging_rank(history):
    keep(history, totals(5, 1), now_s=0.0)
    for step in range(599):
        history.keep(totals(step), encode(totals(step)), float(step))
    received = keep(history, totals(599), now_s=599.0)
    assert steps(received) == list(range(419, 600))
    assert steps(received, rank=1) == [5]


def test_steps_stay_within_their_bytes(history):
    for step in range(10_000):
        history.keep(totals(step), bytes(1000), 0.0)
    assert 1_000_000 < sum(len(frame.payload) for frame in history.replay()) < 1 << 20


def test_replay_has_ranks_then_newest_facts_then_the_rest(history):
    other = replace(INFO, rank=1)
    end = RankEnd(0, 9, clean=True)
    older = replace(NUMA, state="unbound"), replace(DEVICE, pcie_generation=4)
    happened = sample(5), Notice(0, 5, "info", ""), totals(1), sample(4, rank=1), sample(6)
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


FAR = 1 << 30  # A window that nothing fills
SIZE_BYTES = len(encode(STEP)) + 8  # Of a step, and a little more


class Reader:
    """A queue, a clock, and what has come out of it."""

    def __init__(self, window_bytes, past=(), most_bytes=float("inf")):
        self.now_s = 0.0
        self.queue = ReaderQueue(lambda: self.now_s)
        self.messages = []
        self.received_bytes, self.window_bytes = 0, window_bytes
        self.queue.begin([make_frame(each, encode(each)) for each in past], most_bytes)
        self.queue.grant(0, window_bytes)

    def put(self, *messages):
        for message in messages:
            self.queue.put(make_frame(message, encode(message)))

    def read(self):
        came = []
        while batch := self.queue.take():
            assert sum(map(len, batch[:-1])) < self.window_bytes
            self.received_bytes += sum(map(len, batch))
            self.queue.grant(self.received_bytes, self.window_bytes)
            came += map(decode, batch)
        self.messages += came
        return came

    def seconds(self, count):
        for _ in range(count):
            self.now_s += 1.0
            self.queue.tick()

    def steps(self, rank=0):
        return [each.step for each in self.messages if isinstance(each, StepTotals) and each.rank == rank]


def notice(number):
    return Notice(0, number, "info", "a word")


@given(st.lists(st.sampled_from((totals(1), notice(1), DETAIL, SAMPLE)), max_size=60))
def test_a_reader_that_grants_enough_gets_all_in_order(messages):
    reader = Reader(FAR)
    reader.put(*messages)
    came = reader.read()
    for kind in (StepDetail, (StepTotals, Notice, DeviceSample)):
        assert [each for each in came if isinstance(each, kind)] == [
            each for each in messages if isinstance(each, kind)
        ]
    assert reader.queue.dropped == 0


def test_no_more_is_sent_than_is_granted_but_for_the_last_frame():
    reader = Reader(10 * len(encode(notice(1))) + 1)
    reader.put(*map(notice, range(100)))
    assert [len(reader.queue.take()) for _ in range(2)] == [11, 0]
    # More than was sent cannot have been received: it is of an earlier connection.
    reader.queue.grant(1 << 40, reader.window_bytes)
    assert len(reader.queue.take()) == 11


def test_thinned_steps_are_the_same_on_all_ranks():
    reader = Reader(40 * SIZE_BYTES)
    for step in range(1000):
        reader.put(*(totals(step, rank, measured=step % 4 == 0) for rank in range(4)))
    every = reader.queue.every
    assert every > 8
    reader.read()
    kept = [reader.steps(rank) for rank in range(4)]
    assert kept[0] == sorted(set(kept[0]))
    assert all(each == kept[0] for each in kept)
    assert all(step % (every // 4) == 0 for step in kept[0])
    reader.seconds(1)
    reader.read()
    assert [reader.steps(rank)[-1] for rank in range(4)] == [999] * 4
    assert sum(len(reader.steps(rank)) for rank in range(4)) + reader.queue.dropped == 4000
    reader.seconds(100)  # twice as many steps after each five quiet ones
    assert reader.queue.every == 1


def test_thinned_timelines_are_of_the_same_steps_on_all_ranks():
    reader = Reader(4 * len(encode(DETAIL)))
    for step in range(50):
        reader.put(*(replace(DETAIL, rank=rank, step=step) for rank in range(4)))
    came = [(each.step, each.rank) for each in reader.read()]
    assert came == [(step, rank) for step in (0, 49) for rank in range(4)]
    assert reader.queue.dropped == 4 * 48


def test_long_history_is_thinned_and_comes_first():
    reader = Reader(50 * SIZE_BYTES, map(totals, range(5000)))
    reader.put(notice(1))
    reader.seconds(2)
    assert len(reader.queue.history) == 5000
    reader.seconds(1)
    assert reader.read()[-1] == notice(1)
    steps = reader.steps()
    assert steps == sorted(steps)
    assert (30 < len(steps) <= 100, steps[0] < 500, steps[-1]) == (True, True, 4999)
    assert reader.queue.dropped == 0, "it was before the reader came"


def test_history_is_thinned_to_a_limit_and_ends_with_the_newest():
    reader = Reader(FAR, map(totals, range(50_000)), 256 << 10)
    reader.read()
    assert 64 << 10 < reader.received_bytes <= 256 << 10
    assert reader.steps()[-1] == 49_999


def test_finish_sends_all_that_is_left_whatever_is_granted():
    reader = Reader(10 * SIZE_BYTES)
    reader.put(*map(totals, range(100)), notice(1))
    assert reader.queue.every > 1
    reader.queue.grant(0, 1)
    reader.queue.finish()
    came = [decode(each) for each in reader.queue.take()]
    assert came[-2:] == [notice(1), totals(99)]
    assert len(came) + reader.queue.dropped == 101
