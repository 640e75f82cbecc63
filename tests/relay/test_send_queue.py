"""What is left out where more comes than the connection carries, and what never is."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from overlaptop.relay.send_queue import MAX_EVERY, MAX_QUEUED_BYTES, SendQueue
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.commands import CommandOutcome
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import HubStatus, Notice, RankEnd, RankInfo, StepDetail, StepTotals, Welcome
from overlaptop.wire.relaying import RelayJobs
from tests.fleet.builders import info

WELCOME = Welcome(4, "job-1", "gpu-a", "train.py", 2, 1)
STATUS = HubStatus(1, 2, 0, job_ended=False)
RANK = info(0)
OUTCOME = CommandOutcome("20260101-000000-abcdef", "obeyed", "", 7, True, ())


def step(number: int, rank: int = 0, *, measured: bool = True) -> StepTotals:
    return StepTotals(rank, number, 0, 50_000_000, 1, 1 if measured else None, *[1] * 12)


def detail(number: int, rank: int = 0, spans: int = 10) -> StepDetail:
    return StepDetail(rank, number, 0, 100, (), tuple(range(2 * spans)), (), (), (), ())


def sample(at_ns: int, rank: int = 0) -> DeviceSample:
    return DeviceSample(rank, at_ns, *[None] * 11, (), ())


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock) -> SendQueue:
    """One that has sent its history."""
    queue = SendQueue(clock)
    put(queue, WELCOME, STATUS)
    take(queue)
    return queue


def put(queue, *messages) -> None:
    for message in messages:
        queue.put(encode(message))


def take(queue, most_bytes: int = 1 << 30) -> list[object]:
    return [decode(payload) for payload in queue.take(most_bytes)]


def size_bytes(messages) -> int:
    return sum(len(encode(message)) for message in messages)


def of(kind, messages):
    return [message for message in messages if isinstance(message, kind)]


def test_what_fits_goes_out_as_it_came_in_as_much_as_there_is_room_for(queue):
    sent = [RANK, step(1), sample(1), step(2), OUTCOME, RankEnd(0, 1, clean=True)]
    put(queue, *sent)
    first = take(queue, size_bytes(sent[:2]))
    assert first == sent[:2]
    assert first + take(queue) == sent
    assert (queue.dropped, queue.every, bool(queue)) == (0, 1, False)


def test_of_a_newest_only_the_newest_goes_and_before_all_others(queue):
    put(queue, step(1))
    for note in ("first", "second"):
        queue.put_newest(RelayJobs, encode(RelayJobs((), note)))
    assert take(queue) == [RelayJobs((), "second"), step(1)]


def test_facts_and_reports_are_never_left_out_and_their_order_stays(queue):
    lasting = []
    generator = random.Random(7)
    for number in range(10_000):
        put(queue, step(number, number % 4), sample(number, number % 4), detail(number, number % 4))
        if generator.random() < 0.01:
            lasting.append(generator.choice((RANK, OUTCOME, Notice(0, number, "info", "x"), STATUS)))
            put(queue, lasting[-1])
    left = take(queue)
    # Some more, since what cannot be left out is no part of the bound.
    assert size_bytes(left) <= 2 * MAX_QUEUED_BYTES + size_bytes(lasting)
    assert of((RankInfo, CommandOutcome, Notice, HubStatus), left) == lasting
    assert queue.dropped == 30_000 - (len(left) - len(lasting))


def test_steps_are_thinned_by_number_so_that_all_ranks_keep_the_same(queue):
    for number in range(6000):
        put(queue, *(step(number, rank) for rank in range(4)))
    assert queue.every > 1
    left = of(StepTotals, take(queue))
    kept = [{each.step for each in left if each.rank == rank} for rank in range(4)]
    assert kept[0] == kept[1] == kept[2] == kept[3]
    newest = [number for number in sorted(kept[0]) if number > 5000]
    assert len({later - before for before, later in pairwise(newest)}) == 1


def test_few_measured_steps_among_many_are_kept_longer(queue):
    for number in range(20_000):
        put(queue, step(number, measured=number % 16 < 4))
    every = queue.every
    assert every >= 8
    put(queue, *(step(number, measured=number % 16 < 4) for number in range(20_000, 20_064)))
    left = [each for each in of(StepTotals, take(queue)) if each.step >= 20_000]
    measured = [each for each in left if each.measured]
    assert len(measured) == len([n for n in range(64) if n % 16 < 4 and n % (every // 4) == 0])
    assert len(measured) > len(left) - len(measured)


def test_timelines_go_first_and_the_newest_of_each_rank_stays(queue):
    for number in range(1000):
        put(queue, *(detail(number, rank, spans=40) for rank in range(4)), step(number))
    left = take(queue)
    assert {each.step for each in of(StepTotals, left)} == set(range(1000))
    assert {(each.rank, each.step) for each in of(StepDetail, left)} >= {(rank, 999) for rank in range(4)}
    assert len(of(StepDetail, left)) < 4000


def test_where_timelines_are_too_long_for_all_ranks_each_has_its_turn(queue):
    queue.set_bandwidth(1.0)
    seen = []
    for number in range(40):
        put(queue, *(detail(number, rank, spans=4000) for rank in range(4)))
        seen += [each.rank for each in take(queue, 1)]
    assert set(seen) == {0, 1, 2, 3}
    assert min(map(seen.count, range(4))) >= 8


def test_timelines_get_their_share_of_a_connection_that_steps_fill(queue):
    queue.set_bandwidth(10_000.0)
    sent = []
    for number in range(2000):
        put(queue, *(step(8 * number + more) for more in range(8)), detail(number, spans=40))
        sent += take(queue, 100)
    assert len(of(StepDetail, sent)) > 10
    assert len(of(StepTotals, sent)) > 100


def test_a_narrow_connection_gets_a_short_queue(queue):
    queue.set_bandwidth(20_000.0)
    put(queue, *map(step, range(5000)))
    assert size_bytes(take(queue)) <= 40_000


def test_a_quiet_time_brings_all_steps_back_one_halving_at_a_time(queue, clock):
    put(queue, *map(step, range(15_000)))
    before = queue.every
    assert before > 2
    take(queue)
    for _ in range(5):
        clock.now_s += 1.0
        queue.tick()
    assert queue.every == before
    clock.now_s += 0.5
    queue.tick()
    assert queue.every == before // 2
    for _ in range(100):
        clock.now_s += 1.0
        queue.tick()
    assert queue.every == 1


def test_a_long_history_is_thinned_where_it_is_old_and_not_counted_as_lost(clock):
    queue = SendQueue(clock)
    put(queue, WELCOME, RANK)
    for number in range(30_000):
        put(queue, step(number))
    put(queue, STATUS, step(30_000))
    left = take(queue)
    assert size_bytes(left) <= MAX_QUEUED_BYTES + 4096
    assert left[:2] == [WELCOME, RANK]
    steps = [each.step for each in of(StepTotals, left)]
    assert steps[-500:] == list(range(29_501, 30_001))
    assert steps[0] == 0
    assert max(later - before for before, later in pairwise(steps)) <= 512
    assert (queue.dropped, queue.every) == (0, 1)


def test_another_hub_begins_with_an_empty_queue(queue):
    put(queue, *map(step, range(15_000)))
    assert queue.every > 1
    queue.clear()
    assert (take(queue), queue.every, bool(queue)) == ([], 1, False)


def test_what_cannot_be_left_out_fills_it_and_thinning_has_an_end(queue):
    put(queue, *(Notice(0, 1, "info", "x" * 4000) for _ in range(300)))
    assert queue.is_full
    put(queue, *(step(number) for number in range(0, MAX_EVERY * 12_000, MAX_EVERY)))
    assert queue.every == MAX_EVERY
    first = take(queue, 1 << 19)
    assert not queue.is_full
    assert len(of(Notice, first + take(queue))) == 300


@pytest.mark.parametrize(
    "payload", [b"", b"\x92", b"\x92\x02", b"\xdc\x00", b"\x93\x02\xa1x\xa1y", b"\x93\x0f\x91\x01\x02"]
)
def test_what_is_no_message_is_passed_on_for_the_client_to_refuse(queue, payload):
    queue.put(payload)
    assert queue.take(1 << 20) == [payload]
