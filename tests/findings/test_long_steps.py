"""A few steps take much longer than the others: who does something there, how often, and what it costs."""

import random

import pytest

from overlaptop.findings.finding import Certainty
from tests.fleet.builders import MS, stacks

from .jobs import LATE, host, job, names, the

STEPS, STALL_MS = 80, 300
FIRST = 23  # The first step that counts and stalls in tests
HOSTS = [host(0), host(1)]


def tenth(number):
    return number % 10 == 3


STALLED = sum(map(tenth, range(FIRST, STEPS))) / (STEPS - FIRST)  # Share of the stalled steps


def stalls(*facts, when=tenth, rank=LATE, steps=STEPS, **changes):
    """Two ranks; this one (None: both) stalls in the steps for which ``when`` holds."""
    return job(
        lambda each, number: [
            ("compute", 60), *[("idle", STALL_MS)] * (each in (rank, rank or each) and when(number))
        ],
        *facts, ranks=2, steps=steps, **changes,
    )  # fmt: skip


def in_tenth(amount):
    return lambda rank, number: amount if rank == LATE and tenth(number) else 0


def asleep(**samples):
    return [
        *(stacks(LATE, second, 10, **samples) for second in range(5)),
        *(stacks(0, second, 10, step=10) for second in range(5)),
    ]


CAUSES = {
    "takes": lambda: stalls(),
    "loads data": lambda: stalls(watched=False, loading_ns=in_tenth(STALL_MS * MS)),
    "waits for a CPU": lambda: stalls(watched=False, delayed_ns=in_tenth(STALL_MS * MS)),
    "computes": lambda: stalls(*HOSTS, watched=False, cpu_ns=in_tenth(STALL_MS * MS)),
    "sleeps": lambda: stalls(
        *asleep(asleep=5, save=5, step=5), watched=False, loading_ns=in_tenth(STALL_MS * MS // 3)
    ),
}


@pytest.mark.parametrize("does", CAUSES)
def test_rank_that_stalls_in_every_tenth_step_is_named(does):
    found = the(CAUSES[does](), "long_steps")
    assert found.title == f"rank 1 {does} 300 ms longer in every 10th step"
    assert (found.ranks, found.why_late, found.certainty) == ((LATE,), True, Certainty.LIKELY)
    assert found.line == ("train.py:1 in save" if does == "sleeps" else "")
    assert found.gain_ns == pytest.approx(STALLED * STALL_MS * MS, rel=0.01)
    assert found.gain_share == pytest.approx(STALLED * 300 / (70 + STALLED * 300), rel=0.01)


def test_line_of_long_steps_is_told_of_no_other_rule():
    assert names(CAUSES["sleeps"]()) == {"long_steps"}


@pytest.mark.parametrize("moved", [-1, 0, 1])
def test_ranks_that_meet_in_every_tenth_step_have_no_long_steps(moved):
    def found(own_ms, waits_ms):
        def step_ns(rank, number):
            return MS * (own_ms[rank] + waits_ms[rank] * tenth(number + moved * rank))

        return names(stalls(*asleep(asleep=8, load=8, train=2), watched=False, step_ns=step_ns))

    assert "long_steps" not in found((10, 42), (320, 0))
    assert "long_steps" in found((10, 10), (320, 320))


def test_rank_that_does_more_of_what_all_do_is_told_the_difference():
    cpu_ns = {"cpu_ns": lambda rank, number: (200 + 100 * rank) * MS * tenth(number)}
    found = the(stalls(*HOSTS, rank=None, **cpu_ns), "long_steps")
    assert found.title == "rank 1 computes 100 ms longer in every 10th step"
    assert found.gain_ns == pytest.approx(STALLED * 100 * MS, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "title", "certainty"),
    [
        ({}, "every 10th step takes 300 ms longer", Certainty.POSSIBLE),
        (
            {"loading_ns": lambda _, number: STALL_MS * MS * tenth(number)},
            "ranks load data 300 ms longer in every 10th step",
            Certainty.LIKELY,
        ),
    ],
)
def test_what_all_ranks_do_is_told_without_blame(changes, title, certainty):
    found = the(stalls(rank=None, watched=not changes, **changes), "long_steps")
    assert (found.title, found.ranks, found.certainty) == (title, (), certainty)


def test_rank_that_stalls_now_and_then_is_named():
    draw = random.Random(3)
    stalled = {number for number in range(FIRST, STEPS) if draw.random() < 0.2}
    found = the(stalls(when=stalled.__contains__), "long_steps")
    assert found.title == f"rank 1 takes 300 ms longer in {len(stalled)} of {STEPS - min(stalled)} steps"


NOTHING = {
    "warming up": lambda _: stalls(when=lambda number: number < 20 and number % 4 == 0),
    "every second step": lambda _: stalls(when=lambda number: number % 2 == 0),
    "any rank at any time": lambda draw: job(
        lambda *_: [("compute", 60), *[("idle", STALL_MS)] * (draw.random() < 0.1)], ranks=2, steps=STEPS
    ),
    "collections": lambda _: stalls(full_collections=in_tenth(1)),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOTHING)
def test_other_jobs_have_no_long_steps(kind):
    assert "long_steps" not in names(NOTHING[kind](random.Random(7)))
