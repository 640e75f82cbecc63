"""Bursts: which steps are marked, and how much of the time is traced."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.sources import bursts
from overlaptop.agent.sources.base import Edge
from overlaptop.agent.sources.bursts import (
    IDLE_COST,
    IDLE_PERIOD_S,
    IDLE_SHARE,
    MAX_KERNELS,
    MAX_STEPS,
    WATCHED_COST,
    WATCHED_PERIOD_S,
    WATCHED_SHARE,
    Burst,
    Schedule,
)
from overlaptop.agent.sources.kernel_steps import StreamMark


@dataclass
class FakeMarker:
    """Sets marks that no GPU ever passes."""

    fails_after: int = 10**9
    marks: list[StreamMark] = field(default_factory=list)

    def mark(self, step, edge):
        if len(self.marks) >= self.fails_after:
            return None
        self.marks.append(StreamMark(len(self.marks), step, edge, 0, 0))
        return self.marks[-1]


def drive(burst, steps):
    """Some iterations of a training loop, each with a backward."""
    for step in steps:
        burst.boundary(step)
        burst.edge(Edge.BACKWARD_BEGIN)
        burst.edge(Edge.BACKWARD_END)


def marked(burst):
    return [(mark.step, mark.edge) for mark in burst.marks]


def test_a_burst_lets_one_step_pass_and_marks_the_bounds_and_edges_of_the_next():
    burst = Burst(FakeMarker(), 2)
    burst.edge(Edge.OPTIMIZER_END)  # tracing began in the middle of a step
    drive(burst, range(5, 7))
    assert not burst.finished.is_set()
    drive(burst, range(7, 12))
    assert marked(burst) == [
        (6, None),
        (6, Edge.BACKWARD_BEGIN),
        (6, Edge.BACKWARD_END),
        (7, None),
        (7, Edge.BACKWARD_BEGIN),
        (7, Edge.BACKWARD_END),
        (8, None),
    ]
    assert burst.finished.is_set()
    assert not burst.broken


@pytest.mark.parametrize("steps", [1, 3, MAX_STEPS])
def test_a_burst_of_n_steps_has_n_plus_one_bounds(steps):
    burst = Burst(FakeMarker(), steps)
    for step in range(steps + 1):
        assert not burst.finished.is_set()
        burst.boundary(step)
    assert not burst.finished.is_set()
    burst.boundary(steps + 1)
    assert burst.finished.is_set()
    assert [step for step, edge in marked(burst) if edge is None] == list(range(1, steps + 2))


@pytest.mark.parametrize("armed_at", [8, 9, 10, 14])
def test_ranks_that_are_a_little_apart_begin_with_the_same_step(armed_at):
    burst = Burst(FakeMarker(), 8, begins_at=8)
    for step in range(armed_at + 1, 40):
        burst.boundary(step)
    assert [step for step, _ in marked(burst)] == list(range(16, 25))


@pytest.mark.parametrize("fails_after", [0, 1, 2, 3])
def test_a_mark_that_cannot_be_set_breaks_the_burst(fails_after):
    burst = Burst(FakeMarker(fails_after), 1)
    drive(burst, range(5))
    assert burst.broken
    assert burst.finished.is_set()
    assert len(burst.marks) == fails_after


def test_a_burst_that_is_given_up_marks_no_more():
    marker = FakeMarker()
    burst = Burst(marker, 3)
    drive(burst, range(3))
    burst.end()
    set_so_far = len(marker.marks)
    drive(burst, range(3, 9))
    assert burst.broken
    assert len(marker.marks) == set_so_far


# When the next one is due.


class Clock:
    now_s = 1_000.0


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(bursts, "now_ns", lambda: round(clock.now_s * 1e9))
    return clock


def simulate(clock, schedule, *, seconds, step_s, watched, kernels=800.0, drain_s=0.0):
    """A job under this schedule: when each burst began, and the time that was traced in all."""
    began, traced_s, until_s = [], 0.0, clock.now_s + seconds
    while clock.now_s < until_s:
        if schedule.due(watched=watched):
            schedule.begin()
            began.append(clock.now_s)
            steps = schedule.steps
            clock.now_s += (steps + 1) * step_s
            schedule.traced()
            traced_s += clock.now_s - began[-1]
            clock.now_s += drain_s
            schedule.learn(step_s * 1e9, kernels)
        else:
            clock.now_s += max(0.01, step_s / 20)
    return began, traced_s


def test_the_first_burst_is_due_at_once_and_is_of_one_step(clock):
    schedule = Schedule(None)
    assert schedule.due(watched=False)
    assert schedule.steps == 1


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("step_s", [0.001, 0.05, 0.5, 5.0, 60.0])
def test_no_more_than_its_share_of_the_time_is_traced(clock, watched, step_s):
    period_s, share = (WATCHED_PERIOD_S, WATCHED_SHARE) if watched else (IDLE_PERIOD_S, IDLE_SHARE)
    seconds = 200 * max(period_s, 2 * step_s / share)
    began, traced_s = simulate(clock, Schedule(None), seconds=seconds, step_s=step_s, watched=watched)
    assert traced_s <= share * seconds + 2 * step_s / share
    gaps_s = [after - before for before, after in itertools.pairwise(began)]
    assert min(gaps_s[1:]) >= period_s / 2
    assert len(began) > 40  # and it is no less than it may be, but for powers of two


def shares_traced(clock, slowdown: float, watched: bool) -> float:
    """Of a long time of steps of 50 ms, each traced one longer by ``slowdown``."""
    schedule, traced_s, began_s = Schedule(None), 0.0, clock.now_s
    while clock.now_s < began_s + 4_000:
        if not schedule.due(watched=watched):
            clock.now_s += 0.05
            schedule.note(50_000_000, traced=False)
            continue
        schedule.begin()
        before_s = clock.now_s
        for _ in range(schedule.steps):
            clock.now_s += 0.05 * (1 + slowdown)
            schedule.note(round(50_000_000 * (1 + slowdown)), traced=True)
        schedule.traced()
        traced_s += clock.now_s - before_s
        schedule.learn(5e7, 800.0)
    return traced_s / (clock.now_s - began_s)


@pytest.mark.parametrize("step_s", [0.05, 0.4, 3.0])
def test_ranks_that_began_apart_trace_at_the_same_times(clock, step_s) -> None:
    ranks = [Schedule(None) for _ in range(4)]
    began: list[list[float]] = [[] for _ in ranks]
    for tick in range(20_000):
        clock.now_s += 0.1
        for at, schedule in enumerate(ranks):
            if tick >= 37 * at and schedule.due(watched=False):
                schedule.begin()
                began[at].append(clock.now_s)
                schedule.traced()
                schedule._took_s = 2 * step_s * (1 + 0.05 * at)
    for rank in began[1:]:
        assert len(rank) > 6
        assert set(rank[3:]) <= set(began[0])


def test_the_wait_for_a_burst_that_is_due_soon_ends_when_it_is_due(clock, monkeypatch):
    slept_s = []
    monkeypatch.setattr(bursts, "sleep", slept_s.append)
    schedule = Schedule(None)
    schedule.wait(0.1, watched=True)  # the first one is due at once
    schedule.begin()
    schedule.traced()
    schedule.wait(0.1, watched=True)
    clock.now_s += 0.95
    schedule.wait(0.01, watched=True)
    assert slept_s == []
    schedule.wait(0.1, watched=True)
    assert slept_s == [pytest.approx(0.05)]
    clock.now_s += 0.06
    assert schedule.due(watched=True)
    schedule.wait(0.1, watched=True)
    assert len(slept_s) == 1


@pytest.mark.parametrize(("watched", "cost"), [(False, IDLE_COST), (True, WATCHED_COST)])
@pytest.mark.parametrize("slowdown", [0.0, 0.05, 0.3])
def test_a_job_that_tracing_slows_is_traced_less(clock, slowdown, watched, cost) -> None:
    share = shares_traced(clock, slowdown, watched)
    assert slowdown * share <= 1.5 * cost  # the first bursts cost more, before anybody knows
    assert share > 0.25 * min(cost / max(slowdown, 0.001), WATCHED_SHARE if watched else IDLE_SHARE) * 0.8


@pytest.mark.parametrize("every", [1, 2, 10, 100])
def test_every_nth_step_is_traced_where_that_was_asked_for(clock, every):
    schedule = Schedule(every)
    step_s = 0.1
    traced_steps, began_at_s = 0, clock.now_s
    for _ in range(50):
        while not schedule.due(watched=False):
            clock.now_s += step_s
        schedule.begin()
        clock.now_s += (schedule.steps + 1) * step_s
        schedule.traced()
        traced_steps += schedule.steps
        schedule.learn(step_s * 1e9, 800.0)
    all_steps = (clock.now_s - began_at_s) / step_s
    # Each burst lets one step pass, which is not measured: a burst of one step is half of what it takes.
    assert all_steps / every * 0.5 <= traced_steps <= all_steps / every * 1.1


@given(st.floats(0, 1e13), st.floats(0, 1e7))
def test_a_burst_is_never_of_no_steps_nor_of_too_many_steps_or_kernels(step_ns, kernels_per_step):
    schedule = Schedule(None)
    schedule.learn(step_ns, kernels_per_step)
    assert 1 <= schedule.steps <= MAX_STEPS
    assert schedule.steps == 1 or schedule.steps * kernels_per_step <= MAX_KERNELS
    assert schedule.begins_at == schedule.steps
    assert schedule.steps.bit_count() == 1


def test_bursts_of_short_steps_are_of_many_and_those_of_long_ones_of_one():
    schedule = Schedule(None)
    sizes = []
    for step_ns in (1e5, 1e6, 1e7, 5e7, 1e9):
        schedule.learn(step_ns, 10)
        sizes.append(schedule.steps)
    assert sizes == [MAX_STEPS, MAX_STEPS, 16, 4, 1]
    assert schedule.begins_at == 1
