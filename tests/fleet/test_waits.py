"""Who is called late in a window of steps: rarely anybody where ranks are alike, and whoever is late."""

import random
from dataclasses import replace
from statistics import mean

import pytest

from overlaptop.fleet.wait_breakdown import window_of
from overlaptop.fleet.waits import (
    WORTH_SHARE,
    StepWaits,
)
from overlaptop.timeline.arrivals import Collective, WaitTimes

STEP, STEP_NS = 100_000, 100_000_000
JITTER = 0.1  # Of a step: the standard deviation of when each rank comes to its first collective
COLLECTIVES = 3
WINDOWS = 100


def simulated(ranks, steps, draw, late=0.0):
    """Steps in which rank 1 comes this share of a step later than ranks that are all alike.

    Who comes late to the first collective of a step comes a little late to the others, too.
    """
    split = []
    for number in range(steps):
        came = [draw.gauss(late * STEP if rank == 1 else 0, JITTER * STEP) for rank in range(ranks)]
        collectives, waited = [], [0] * ranks
        for nth in range(COLLECTIVES):
            starts = [round((1 + nth) * STEP_NS + 1000 * each / 10**nth) for each in came]
            end = max(starts) + 1_000_000
            collectives.append(
                Collective("allreduce_", "0", 1, {rank: (at, end) for rank, at in enumerate(starts)})
            )
            waited = [was + max(starts) - at for was, at in zip(waited, starts, strict=True)]
        times = {rank: WaitTimes(ns, 0, 0, ns, 0, 0) for rank, ns in enumerate(waited)}
        split.append(StepWaits.of(number, number, STEP_NS, tuple(collectives), times))
    return split


@pytest.mark.parametrize("steps", [1, 7, 40])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_of_ranks_alike_one_window_in_twenty_names_any(ranks, steps):
    draw = random.Random(f"{ranks} {steps}")
    windows = [window_of(simulated(ranks, steps, draw)) for _ in range(WINDOWS)]
    assert mean(window.share for window in windows) > WORTH_SHARE
    assert sum(bool(window.late) for window in windows) <= WINDOWS / 20


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_rank_late_by_a_fifth_of_a_step_is_nearly_always_named(ranks):
    draw = random.Random(ranks)
    windows = [window_of(simulated(ranks, 40, draw, late=0.2)) for _ in range(WINDOWS)]
    assert sum([each.rank for each in window.late] == [1] for window in windows) > 0.95 * WINDOWS


def test_late_rank_that_waits_too_is_late_except_in_receives():
    window = window_of(simulated(4, 40, random.Random(3), late=0.4))
    alike = replace(window, waits_ns=dict.fromkeys(range(4), 1.0))
    assert [each.rank for each in alike.late] == [1]
    receives = replace(alike.lateness, receive_wait_ns=alike.lateness.wait_ns)
    assert replace(alike, lateness=receives).late == ()


def test_of_two_late_ranks_the_one_that_costs_most_is_named():
    late_ms = {1: 20, 3: 25}
    groups = [
        Collective("allreduce_", str(a), 1, {a: (0, 10**8), b: (late_ms.get(b, 0) * 10**6, 10**8)})
        for a, b in ((0, 1), (2, 3), (4, 5), (6, 7))
    ]
    times = {rank: WaitTimes(10**7, 0, 0, 10**7, 0, 0) for rank in range(8)}
    steps = [StepWaits.of(at, at, STEP_NS, tuple(groups), times) for at in range(40)]
    assert [each.rank for each in window_of(steps).late] == [3]
