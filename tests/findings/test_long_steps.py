"""A few steps take much longer than the others: who does something there, how often, and what it costs."""

import random

import pytest

from overlaptop.findings.finding import Certainty
from tests.fleet.builders import MS, stacks

from .jobs import job, rules, the
from .test_late_ranks import host

LATE, STEPS, STALL_MS = 1, 80, 300
FIRST = 23
"""The first step that counts and stalls in tests."""


def stalls(when, *facts, rank=LATE, steps=STEPS, **changes):
    """Two ranks; this one (None: both) stalls in the steps for which ``when`` holds."""
    return job(
        lambda each, number: [
            ("compute", 60), *[("idle", STALL_MS)] * (each in (rank, rank or each) and when(number))
        ],
        *facts, ranks=2, steps=steps, **changes,
    )  # fmt: skip


def tenth(number):
    return number % 10 == 3


def test_steps_are_regular_since_they_began_to_be():
    found = the(
        stalls(lambda number: number in (25, 39, 44) or (number >= 60 and tenth(number)), steps=130),
        "long_steps",
    )
    assert "every 10th step" in found.title


def in_tenth(amount, rank=LATE):
    return lambda each, number: amount if each == rank and tenth(number) else 0


def test_rank_that_stalls_in_every_tenth_step_is_named_and_costs_the_mean():
    found = the(stalls(tenth), "long_steps")
    assert found.title == "rank 1 takes 300 ms longer in every 10th step"
    assert (found.ranks, found.why_late, found.certainty) == ((LATE,), True, Certainty.LIKELY)
    stalled = sum(map(tenth, range(FIRST, STEPS))) / (STEPS - FIRST)
    assert found.gain_ns == pytest.approx(stalled * STALL_MS * MS, rel=0.01)
    assert found.gain_share == pytest.approx(stalled * 300 / (70 + stalled * 300), rel=0.01)


@pytest.mark.parametrize(
    ("facts", "changes", "does"),
    [
        ((), {"loading_ns": in_tenth(STALL_MS * MS)}, "loads data"),
        ((), {"delayed_ns": in_tenth(STALL_MS * MS)}, "waits for a CPU"),
        (map(host, (0, 1)), {"cpu_ns": in_tenth(STALL_MS * MS)}, "computes"),
    ],
)
def test_counter_that_grows_in_long_steps_is_the_cause_before_any_is_measured(facts, changes, does):
    evidence = stalls(tenth, *facts, watched=False, **changes)
    assert the(evidence, "long_steps").title == f"rank 1 {does} 300 ms longer in every 10th step"


@pytest.mark.parametrize("moved", [-1, 0, 1])
def test_ranks_that_meet_in_every_tenth_step_have_no_long_steps(moved):
    sleeps = [stacks(LATE, second, 10, asleep=8, load=8, train=2) for second in range(5)]

    def found(own_ms, waits_ms):
        def step_ns(rank, number):
            long = tenth(number + moved * rank)
            return MS * (own_ms[rank] + waits_ms[rank] * long)

        return {rule for rule, _ in rules(stalls(tenth, *sleeps, watched=False, step_ns=step_ns))}

    assert "long_steps" not in found((10, 42), (320, 0))
    assert "long_steps" in found((10, 10), (320, 320))


def test_line_at_which_one_rank_sleeps_is_the_cause_before_any_is_measured():
    facts = [
        *(stacks(LATE, second, 10, asleep=5, save=5, step=5) for second in range(5)),
        *(stacks(0, second, 10, step=10) for second in range(5)),
    ]
    loads_too = {"loading_ns": in_tenth(STALL_MS * MS // 3)}
    evidence = stalls(tenth, *facts, watched=False, **loads_too)
    found = the(evidence, "long_steps")
    assert found.title == "rank 1 sleeps 300 ms longer in every 10th step"
    assert found.line == "train.py:1 in save"
    assert [rule for rule, _ in rules(evidence)] == ["long_steps"]


def test_rank_that_does_more_of_what_all_do_is_named_with_the_difference():
    cpu_ns = {"cpu_ns": lambda rank, number: (200 + 100 * rank) * MS * tenth(number)}
    found = the(stalls(tenth, *map(host, (0, 1)), rank=None, **cpu_ns), "long_steps")
    assert found.title == "rank 1 computes 100 ms longer in every 10th step"
    stalled = sum(map(tenth, range(FIRST, STEPS))) / (STEPS - FIRST)
    assert found.gain_ns == pytest.approx(stalled * 100 * MS, rel=0.01)


def test_what_all_ranks_do_is_told_without_blame():
    found = the(stalls(tenth, rank=None), "long_steps")
    assert found.title == "every 10th step takes 300 ms longer"
    assert (found.ranks, found.certainty) == ((), Certainty.POSSIBLE)


def test_loaders_that_are_slow_in_every_nth_step_are_named():
    loading = {"loading_ns": lambda _, number: STALL_MS * MS * tenth(number)}
    found = the(stalls(tenth, rank=None, watched=False, **loading), "long_steps")
    assert found.title == "ranks load data 300 ms longer in every 10th step"
    assert (found.certainty, "num_workers" in found.advice) == (Certainty.LIKELY, True)


def test_rank_that_stalls_now_and_then_is_named():
    draw = random.Random(3)
    stalled = {number for number in range(FIRST, STEPS) if draw.random() < 0.2}
    found = the(stalls(stalled.__contains__), "long_steps")
    assert found.title == f"rank 1 takes 300 ms longer in {len(stalled)} of {STEPS - min(stalled)} steps"


NOTHING = {
    "warming up": lambda _: stalls(lambda number: number < 20 and number % 4 == 0),
    "regular for a moment": lambda _: stalls(lambda number: number in (40, 43, 46, 49)),
    "one pause": lambda _: stalls(lambda number: number == 20),
    "every second step": lambda _: stalls(lambda number: number % 2 == 0),
    "stalls that cost little": lambda _: stalls(lambda number: number in (5, 205, 309, 377), steps=400),
    "any rank at any time": lambda draw: job(
        lambda *_: [("compute", 60), *[("idle", STALL_MS)] * (draw.random() < 0.1)], ranks=2, steps=STEPS
    ),
    "noise": lambda draw: job(lambda *_: [("compute", 60 * draw.gauss(1, 0.15))], ranks=2, steps=STEPS),
    "collections": lambda _: stalls(tenth, full_collections=in_tenth(1)),
    "late in each step": lambda _: job(
        lambda rank, number: [("compute", 60), *[("idle", 60 + 90 * tenth(number))] * (rank == LATE)],
        ranks=2, steps=STEPS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOTHING)
def test_other_jobs_have_no_long_steps(kind):
    evidence = NOTHING[kind](random.Random(7))
    assert "long_steps" not in {rule for rule, _ in rules(evidence)}
