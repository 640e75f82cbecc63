"""Which steps are measured, on jobs whose true cost is known."""

import random
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import median

import pytest

from overlaptop.agent.reporting import reporter
from overlaptop.agent.sources.kernels import COST, LAUNCH_BOUND_COST
from overlaptop.agent.sources.schedule import Schedule
from overlaptop.agent.sources.window import LEAD_STEPS
from overlaptop.wire.joining import Watch

WATCHED = Watch(detail=True)
NOBODY = Watch(detail=False)
READ_S = 0.15  # The source reads for so long what it has measured


@dataclass
class Job:
    """A training job whose steps last longer while the source works in them."""

    step_ms: float
    cost: float = 0.1  # Of a step, in which the source works
    noise: float = 0.01
    lag_s: float = 0.0  # After so long the length of a step is known
    schedule: Schedule = field(default_factory=lambda: Schedule(None, COST, LEAD_STEPS))
    seed: int = 0
    step: int = 0
    now_s: float = 0.0
    lost_s: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._read_s = 0.0
        self._untold: deque[tuple[float, int, int, bool]] = deque()

    def run(self, seconds: float) -> list[bool]:
        until_s, measured = self.now_s + seconds, []
        while self.now_s < until_s:
            measured.append(self.schedule.measures(self.step))
            if any(self.schedule.measures(self.step + ahead) for ahead in range(LEAD_STEPS + 1)):
                self._read_s = self.now_s + READ_S
            touched = self.now_s < self._read_s
            plain_s = self.step_ms / 1e3 * max(0.5, self._random.gauss(1, self.noise))
            lost_s = plain_s * self.cost * touched
            self.now_s += plain_s + lost_s
            self.lost_s += lost_s
            self._untold.append((self.now_s, self.step, round((plain_s + lost_s) * 1e9), touched))
            while self._untold and self._untold[0][0] <= self.now_s - self.lag_s:
                _, step, length_ns, was_touched = self._untold.popleft()
                self.schedule.note(step, length_ns, touched=was_touched)
            self.step += 1
        return measured

    def settle(self) -> None:
        """Until the burst after warm-up is over, and what it cost is earned again."""
        self.run(min(400, max(40, 2 * self.step_ms)))
        self.lost_s = 0.0


def blocks(measured: list[bool]) -> list[tuple[bool, int]]:
    return [(each, len(list(group))) for each, group in groupby(measured)]


def longest(measured: list[bool]) -> int:
    """Steps in a row that are measured, at most: more than one in bursts only."""
    return max((size for each, size in blocks(measured) if each), default=0)


STEPS_MS = [5, 112, 1500]


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_watcher_gets_a_burst_of_blocks_at_once(step_ms):
    job = Job(step_ms)
    job.settle()
    job.schedule.follow(WATCHED)
    measured = job.run(max(3.0, 16 * step_ms / 1e3))
    assert measured.index(True) * step_ms / 1e3 <= max(1.0, 8 * step_ms / 1e3)
    least = max(2, 0.25 / (step_ms / 1e3))
    if step_ms < 1000:  # else each step is measured after the burst
        assert sum(each and size >= least for each, size in blocks(measured)) >= 2
    assert sum(measured) >= 4


def test_bursts_asked_for_come_every_30_s_after_the_first_two():
    job = Job(112)
    job.settle()
    bursts = 0
    for asked in range(20):
        job.schedule.follow(Watch(detail=True, bursts=asked))
        bursts += sum(each and size > 1 for each, size in blocks(job.run(5)))
    assert 2 * 4 <= bursts <= 4 * 5  # measured blocks, in 100 s


@pytest.mark.parametrize(("step_ms", "lag_s"), [(20, 2), (112, 0.1), (600, 2)])
def test_ranks_asked_at_once_measure_six_steps_in_common(step_ms, lag_s):
    """Also where one is ahead of its GPU and waits for launches, and the other does not."""
    schedule = Schedule(None, LAUNCH_BOUND_COST, LEAD_STEPS)
    ranks = [Job(0.95 * step_ms), Job(step_ms, cost=0.15, lag_s=lag_s, schedule=schedule, seed=1)]
    for rank in ranks:
        rank.schedule.follow(WATCHED)
        rank.run(20)
    for asked in range(1, 10):
        start = max(rank.step for rank in ranks)
        found = []
        for rank in ranks:
            while rank.step < start:  # they wait for each other
                rank.run(step_ms / 1e3 / 2)
            rank.schedule.follow(Watch(detail=True, bursts=asked))
            measured = rank.run(max(31, 40 * step_ms / 1e3))
            found.append({rank.step - len(measured) + at for at, each in enumerate(measured) if each})
        within = start + (3.5 + lag_s) * 1e3 / step_ms + 20
        assert sum(step < within for step in set.intersection(*found)) >= 6


@pytest.mark.parametrize(("step_ms", "factor"), [(10, 1.3), (112, 0.7), (400, 2)])
def test_a_burst_comes_when_a_job_that_nobody_watches_changes(step_ms, factor):
    job = Job(step_ms)
    job.settle()
    job.run(60)
    job.step_ms *= factor
    assert longest(job.run(max(5, 20 * job.step_ms / 1e3))) > 1


def test_a_healthy_job_has_no_burst_but_the_first():
    job = Job(50, noise=0.1)
    job.settle()
    assert longest(job.run(300)) <= 1


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_between_bursts_one_step_a_second_is_measured(step_ms):
    job = Job(step_ms, cost=0.005)
    job.schedule.follow(WATCHED)
    job.run(max(120, step_ms / 5))
    measured = job.run(60)
    # A script may do special work in every second step.
    assert step_ms > 400 or 0.2 < sum(measured[::2]) / sum(measured) < 0.8
    gaps = [size for each, size in blocks(measured) if not each]
    assert max(gaps, default=0) * step_ms <= 2000 * 1.01
    assert sum(measured) >= 0.95 * min(60, len(measured))
    assert sum(measured) <= 60 / min(1, 0.45 / max(step_ms / 1e3, 0.45)) * 2.3 or step_ms > 400


@pytest.mark.parametrize(
    ("step_ms", "cost", "noise", "prior"),
    [(5, 0.3, 0.1, LAUNCH_BOUND_COST), (112, 0.3, 0.01, COST), (1500, 0.12, 0.01, COST)],
)
@pytest.mark.parametrize(("wanted", "budget"), [(WATCHED, 0.01), (NOBODY, 0.001)])
def test_the_budget_is_kept(step_ms, cost, noise, prior, wanted, budget):
    lost = []
    for seed in range(3):
        job = Job(step_ms, cost, noise, schedule=Schedule(None, prior, LEAD_STEPS), seed=seed)
        job.schedule.follow(wanted)
        seconds = min(600, 30 * step_ms)
        job.run(seconds)
        job.lost_s = 0.0
        job.run(seconds)
        lost.append(job.lost_s / seconds)
    # What is learnt late is paid late: a prior that is far too low costs half as much again at first.
    assert median(lost) <= budget * (1.1 if prior is LAUNCH_BOUND_COST else 1.6)


@pytest.mark.parametrize("step_ms", [10, 300])
def test_burst_costs_half_a_second_or_three_steps_at_most(step_ms):
    job = Job(step_ms, cost=4.0)
    job.schedule.cost.estimate = lambda: None  # not known yet
    job.schedule.prior = replace(COST, share=4.0)
    job.run(1000)
    job.lost_s = 0.0
    job.schedule.follow(WATCHED)
    job.run(max(5, 40 * step_ms / 1e3))
    # Steps are under way when the limit is reached: one block at most.
    assert job.lost_s <= max(0.5, 3 * step_ms / 1e3) + 4.0 * max(2, 0.5 / step_ms * 1e3) * step_ms / 1e3


def test_a_larger_budget_measures_more():
    few, many = (Job(20, schedule=Schedule(None, COST, LEAD_STEPS, budget)) for budget in (None, 0.05))
    for job in (few, many):
        job.schedule.follow(WATCHED)
        job.run(120)
    assert sum(many.run(60)) > 3 * sum(few.run(60))


def test_the_own_cost_is_of_the_last_minutes_steps():
    job = Job(112, cost=0.12)
    assert reporter.own_cost(job.schedule, 1) is None
    job.schedule.follow(WATCHED)
    job.run(200)
    cost = reporter.own_cost(job.schedule, 1)
    assert (cost.rank, cost.watched) == (1, True)
    assert cost.measured_change == pytest.approx(0.12, abs=0.02)
    assert 0.002 < cost.change < 0.011
