"""Which steps are measured, on simulated jobs of known cost and noise."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, median
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.sources import cadence
from overlaptop.agent.sources.cadence import Cadence, plan
from overlaptop.agent.sources.kernels import COST, LAUNCH_BOUND_COST
from overlaptop.agent.sources.window import LEAD_STEPS

AGENT = SimpleNamespace(cpu_ns=0)
"""The agent's thread."""


@pytest.fixture(autouse=True)
def its_cpu_time(monkeypatch):
    monkeypatch.setattr(cadence, "thread_time_ns", lambda: AGENT.cpu_ns)


@dataclass
class NoisyJob:
    """A training job whose steps vary, and last longer while the source works."""

    step_ms: float
    slowdown: float
    noise: float = 0.01
    """Standard deviation of a step, of its length; a third of it carries over to the next."""
    drift: float = 0.0
    """It gets so much slower in a minute."""
    reading: float = 0.0
    """What reading the steps in which the source works takes afterwards, a share of their length; the job
    waits for it."""
    together: bool = False
    """Steps of up to a second that are treated alike are timed as one, as the kernels source does."""
    seed: int = 0
    ranks: int = 1
    """Each step lasts as long as that of the slowest rank, while the source of any works."""
    jitter: float = 0.01
    """Standard deviation of when one of several ranks ends a step, of its length. It is no later for that:
    the next collective waits for all."""
    longer: tuple[int, int] | None = None
    """Each n-th step is half longer, from that one on."""
    cadences: list[Cadence] = field(default_factory=list)
    at_s: float = 0.0
    step: int = 0
    _deviation: float = 0.0

    @property
    def cadence(self) -> Cadence:
        """Of the first rank."""
        return self.cadences[0]

    def watch(self) -> None:
        """A dashboard watches all ranks."""
        for each in self.cadences:
            each.watched = True

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.cadences = self.cadences or [Cadence(None, COST, LEAD_STEPS) for _ in range(self.ranks)]
        self._untold: list[list[tuple[int, float, bool, bool]]] = [[] for _ in self.cadences]
        self._traced_s = [0.0] * self.ranks
        self._told_s = [0.0] * self.ranks
        self._late_s = [0.0] * self.ranks

    def run(self, seconds: float) -> list[tuple[float, float, float]]:
        """For each step when it ended in s, the share of ranks that measured it, and the time lost in s."""
        steps = []
        until_s = self.at_s + seconds
        while self.at_s < until_s:
            ahead = range(self.step, self.step + LEAD_STEPS + 1)
            working = [any(map(each.measures, ahead)) for each in self.cadences]
            measured = [each.measures(self.step) for each in self.cadences]
            self._deviation = 0.3 * self._deviation + self._random.gauss(0, math.sqrt(0.91) * self.noise)
            plain_s = self.step_ms / 1e3 * max(0.2, 1 + self._deviation + self.drift * self.at_s / 60)
            if self.longer is not None and self.step % self.longer[0] == self.longer[1]:
                plain_s *= 1.5
            if self._random.random() < 0.005:
                plain_s *= 3  # it collects garbage
            lost_s = plain_s * self.slowdown * any(working)
            lost_s += max(self._read(rank, plain_s, works) for rank, works in enumerate(working))
            self.at_s += plain_s + lost_s
            steps.append((self.at_s, mean(measured), lost_s))
            self.step += 1
            for rank, works in enumerate(working):
                began_s, self._late_s[rank] = self._late_s[rank], self._jitter_s()
                length_s = plain_s + lost_s + self._late_s[rank] - began_s
                self._untold[rank].append((self.step - 1, length_s, measured[rank], not works))
                self._tell(rank)
        return steps

    def _jitter_s(self) -> float:
        return self._random.gauss(0, self.jitter * self.step_ms / 1e3) if self.ranks > 1 else 0.0

    def _read(self, rank: int, plain_s: float, works: bool) -> float:
        if works or not self._traced_s[rank]:
            self._traced_s[rank] += plain_s * works
            return 0.0
        reading_s, cadence = self._traced_s[rank] * self.reading, self.cadences[rank]
        with cadence.reading():
            AGENT.cpu_ns += round(reading_s * 1e9)
        cadence.note_reading(round(self._traced_s[rank] * 1e9), hidden=not self.reading)
        self._traced_s[rank] = 0.0
        return reading_s

    def _tell(self, rank: int) -> None:
        cadence, untold = self.cadences[rank], self._untold[rank]
        told_s = self.at_s - self._told_s[rank]
        if self.together and self.step >= 10 and not cadence.turns_at(self.step) and told_s <= 1.0:
            return
        self._told_s[rank] = self.at_s
        length_ns = round(mean(length_s for _, length_s, _, _ in untold) * 1e9)
        for step, _, measured, untouched in untold:
            cadence.note(step, length_ns, measured=measured, untouched=untouched)
        untold.clear()


def lost(steps):
    return sum(lost_s for _, _, lost_s in steps) / (steps[-1][0] - steps[0][0])


def share(steps):
    return mean(measured for _, measured, _ in steps)


@pytest.mark.parametrize("step_ms", [20, 50, 250, 1000])
def test_a_watched_job_that_loses_nothing_is_measured_nearly_always_after_20_s(step_ms):
    job = NoisyJob(step_ms, slowdown=0.0)
    job.watch()
    job.run(20 if step_ms < 1000 else 90)  # 90 steps
    steps = job.run(120)
    assert share(steps) > 0.9
    at_s = [at_s for at_s, measured, _ in steps if measured]
    gaps_s = sorted(after - before for before, after in pairwise(at_s))
    assert gaps_s[int(len(gaps_s) * 0.95)] < max(1.0, 1.1 * step_ms / 1e3)


@pytest.mark.parametrize(("watched", "budget"), [(True, 0.005), (False, 0.001)])
@pytest.mark.parametrize("step_ms", [20, 250])
@pytest.mark.parametrize(("slowdown", "reading"), [(0.003, 0.0), (0.03, 0.0), (0.1, 0.0), (0.02, 0.15)])
def test_the_budget_is_kept(step_ms, slowdown, reading, watched, budget):
    runs = []
    for seed in range(5):
        job = NoisyJob(step_ms, slowdown, noise=0.02, reading=reading, seed=seed)
        if watched:
            job.watch()
        job.run(max(60, 1.2 * step_ms))
        runs.append(job.run(240))
    assert median(map(lost, runs)) <= 1.2 * budget
    assert all(share(steps) > 0 for steps in runs)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("step_ms", [50, 250])
@pytest.mark.parametrize("slowdown", [0.01, 0.03])
def test_several_ranks_lose_little_more_than_one(step_ms, slowdown, ranks):
    runs = []
    for seed in range(3):
        job = NoisyJob(step_ms, slowdown, noise=0.02, together=True, ranks=ranks, seed=seed)
        job.watch()
        job.run(60)
        runs.append(job.run(120))
    assert median(map(lost, runs)) <= 0.008


def test_eight_ranks_that_differ_by_noise_alone_are_rarely_misled_by_one():
    runs = []
    for seed in range(7):
        job = NoisyJob(250, slowdown=0.01, noise=0.02, together=True, ranks=8, seed=seed)
        job.watch()
        job.run(60)
        runs.append(job.run(120))
    assert mean(map(lost, runs)) <= 0.0062


def watched_runs_with_long_steps(longer, slowdown):
    for seed in range(3):
        job = NoisyJob(100, slowdown, noise=0.02, together=True, longer=longer, seed=seed)
        job.watch()
        job.run(60)
        yield job.run(180)


regular_long_steps = pytest.mark.parametrize("longer", [(8, 0), (8, 5), (16, 5), (32, 20)])


@regular_long_steps
def test_regular_long_steps_do_not_keep_a_job_from_being_measured(longer):
    assert median(map(share, watched_runs_with_long_steps(longer, slowdown=0.003))) > 0.1


@regular_long_steps
def test_regular_long_steps_hardly_hide_the_cost(longer):
    assert median(map(lost, watched_runs_with_long_steps(longer, slowdown=0.03))) <= 0.008


def test_what_learning_the_cost_takes_is_soon_over():
    job = NoisyJob(50, slowdown=0.03)
    assert lost(job.run(20)) < 0.02
    assert lost(job.run(20)) < 0.001


@pytest.mark.parametrize("slowdown", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("drift", [0.0, 0.1])
def test_the_estimate_is_as_likely_too_high_as_too_low_and_within_its_error(slowdown, drift):
    estimates = []
    for seed in range(40):
        job = NoisyJob(100, slowdown, noise=0.03, drift=drift, seed=seed)
        job.watch()
        job.run(90)
        estimates.append(job.cadence.cost.of_measured_steps())
    off = [each.share - slowdown for each in estimates]
    assert abs(median(off)) < 0.003
    assert sum(abs(each) <= estimate.error for each, estimate in zip(off, estimates, strict=True)) >= 32


@pytest.mark.parametrize("noise", [0.0005, 0.01])
@pytest.mark.parametrize(("step_ms", "slowdown"), [(50, 0.03), (264, 0.008)])
def test_the_cost_of_all_steps_is_told_with_an_error_that_holds_in_nearly_all_jobs(
    step_ms, slowdown, noise
):
    within = 0
    for seed in range(20):
        job = NoisyJob(step_ms, slowdown, noise, together=True, seed=seed)
        job.watch()
        job.run(30 if step_ms == 50 else 60)
        paid = lost(job.run(90))
        cost = job.cadence.cost.of_all_steps()
        within += abs(cost.share - paid) <= cost.told_error
    assert within >= 19


def test_noise_does_not_keep_a_job_from_being_measured():
    job = NoisyJob(50, slowdown=0.0, noise=0.2)
    job.watch()
    job.run(60)
    assert share(job.run(60)) > 0.05


def launch_bound_jobs(prior, step_ms):
    """Five, watched, of which it is known after five steps what is usual of their kind."""
    for seed in range(5):
        job = NoisyJob(step_ms, slowdown=0.1, noise=0.1, together=True, seed=seed)
        job.watch()
        job.run(5 * step_ms / 1e3)
        job.cadence.prior = prior
        yield job


@pytest.mark.parametrize(
    ("step_ms", "reading", "seconds", "most"),
    [
        (20, 0.04, 60, 0.006), (250, 0.04, 60, 0.006), (1000, 0.04, 60, 0.006),
        (20, 0.4, 60, 0.01), (250, 0.4, 60, 0.01),
        (1000, 0.4, 120, 0.01),  # one measured step, whose reading takes 0.8 s, is 1.7 % of a minute
    ],
)  # fmt: skip
def test_a_launch_bound_job_loses_little_at_first(step_ms, reading, seconds, most):
    runs = []
    for job in launch_bound_jobs(LAUNCH_BOUND_COST, step_ms):
        job.reading = reading
        runs.append(job.run(seconds))
    assert median(map(lost, runs)) < most


@pytest.mark.parametrize("step_ms", [20, 250, 1000])
def test_a_job_of_a_kind_that_loses_much_loses_less_while_that_is_learnt(step_ms):
    careful, usual = (
        median(lost(job.run(40)) for job in launch_bound_jobs(prior, step_ms))
        for prior in (LAUNCH_BOUND_COST, COST)
    )
    assert careful < 0.75 * usual


def test_a_job_that_turns_to_something_dearer_is_measured_less():
    job = NoisyJob(50, slowdown=0.0)
    job.watch()
    job.run(60)
    assert share(job.run(10)) > 0.9
    job.step_ms, job.slowdown = 20, 0.05
    job.run(60)
    assert lost(job.run(60)) <= 0.006


@pytest.mark.parametrize("noise", [0.003, 0.01])
def test_a_job_whose_measured_steps_become_dearer_alone_is_soon_measured_less(noise):
    job = NoisyJob(250, slowdown=0.0, noise=noise, together=True)
    job.watch()
    job.run(600)
    job.slowdown = 0.1
    job.run(60)
    assert lost(job.run(60)) <= 0.01


def test_the_turn_in_which_a_job_changes_says_nothing_of_its_cost():
    off = []
    for seed in range(40):
        job = NoisyJob(100, slowdown=0.003, together=True, seed=seed)
        job.watch()
        job.run(60)
        job.step_ms = 180
        job.run(20)
        estimate = job.cadence.cost.of_measured_steps()
        off.append(abs(estimate.share - job.slowdown) if estimate is not None else 0.0)
    assert sorted(off)[36] < 0.02


@pytest.mark.parametrize(("before_ms", "after_ms"), [(3, 200), (200, 10)])
def test_a_job_that_turns_to_steps_of_another_length_is_soon_measured_again(before_ms, after_ms):
    for seed in range(3):
        job = NoisyJob(before_ms, slowdown=0.1, together=True, seed=seed)
        job.watch()
        job.run(40)
        job.step_ms = after_ms
        assert share(job.run(6)) > 0


def turned_to_and_fro(job, other_ms, periods, period_s):
    """What `run` gives, of all but the first quarter of the steps."""
    steps, usual_ms = [], job.step_ms
    for period in range(periods):
        job.step_ms = other_ms if period % 2 else usual_ms
        steps += job.run(period_s)
    return steps[len(steps) // 4 :]


def test_a_job_that_turns_to_and_fro_keeps_its_budget_nearly():
    job = NoisyJob(20, slowdown=0.03)
    job.watch()
    assert lost(turned_to_and_fro(job, other_ms=100, periods=17, period_s=15)) < 0.006


def test_a_launch_bound_job_that_turns_to_and_fro_unwatched_keeps_its_budget():
    job = NoisyJob(20, slowdown=0.11, reading=0.035)
    job.cadence.prior = LAUNCH_BOUND_COST
    assert lost(turned_to_and_fro(job, other_ms=60, periods=16, period_s=60)) < 0.0011


def test_a_dashboard_that_comes_is_served_at_once_and_one_that_leaves_saves_at_once():
    job = NoisyJob(50, slowdown=0.006)
    job.run(60)
    assert share(job.run(30)) < 0.2
    job.watch()
    job.run(4)
    assert share(job.run(10)) > 0.35
    job.cadence.watched = False
    job.run(1)
    assert share(job.run(10)) < 0.2


def test_every_nth_step_is_measured_whatever_it_costs():
    job = NoisyJob(50, slowdown=0.5, cadences=[Cadence(3, COST, LEAD_STEPS)])
    job.run(60)
    assert [job.cadence.measures(step) for step in range(7)] == [True, False, False] * 2 + [True]
    assert not any(map(job.cadence.pauses, range(100)))
    assert job.cadence.every == 3


step_lengths = st.floats(1e5, 1e11)
shares = st.floats(1 / 1024, 1)
cycles = st.integers(0, 1000)
"""How many whole cycles are over."""


def begin(made, cycle):
    return math.ceil(cycle * made.cycle_steps)


@given(step_lengths, shares, st.integers(0, 2), cycles)
def test_a_plan_measures_and_pauses_and_never_both(step_ns, part, lead_steps, cycle):
    made = plan(step_ns, part, lead_steps)
    steps = range(begin(made, cycle), begin(made, cycle + 1))
    working = {
        step for step in steps if any(made.measures(step + ahead) for ahead in range(lead_steps + 1))
    }
    paused = {step for step in steps if made.pauses(step)}
    assert sum(map(made.measures, steps)) == made.measured_steps >= 1
    assert paused
    assert not working & paused
    treated = [(made.measures(step), made.pauses(step)) for step in range(steps.start - 1, steps.stop)]
    for (before, after), step in zip(pairwise(treated), steps, strict=True):
        assert made.turns_at(step) == (before != after)


@pytest.mark.parametrize("part", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("step_ms", [50, 250, 1000])
def test_each_nth_step_is_measured_and_paused_as_often_as_others(step_ms, part):
    made = plan(step_ms * 1e6, part, LEAD_STEPS)
    steps = range(begin(made, 40))
    measured = [step for step in steps if made.measures(step)]
    paused = [step for step in steps if made.pauses(step)]
    for nth in (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 50, 64, 100, 128):
        ours, theirs = (Counter(step % nth for step in chosen) for chosen in (measured, paused))
        for each in range(nth):
            assert abs(ours[each] / len(measured) - theirs[each] / len(paused)) < 0.08


@given(step_lengths, st.floats(1 / 1024, 0.5), cycles)
def test_where_some_steps_are_measured_they_are_read_before_the_pause(step_ns, part, cycle):
    made = plan(step_ns, part, LEAD_STEPS)
    steps = range(begin(made, cycle), begin(made, cycle + 1))
    pause = next(step for step in steps if made.pauses(step))
    assert (pause - steps.start - made.measured_steps) * step_ns >= cadence.READ_S * 1e9


@given(step_lengths, st.tuples(shares, shares), st.integers(0, 2), cycles)
def test_ranks_that_spend_differently_measure_some_of_the_same_steps_and_pause_together(
    step_ns, parts, lead_steps, cycle
):
    plans = [plan(step_ns, part, lead_steps) for part in parts]
    longer = max(plans, key=lambda made: made.cycle_steps)
    steps = range(begin(longer, cycle), begin(longer, cycle + 1))
    assert all(made.measures(steps.start) for made in plans)
    assert any(all(made.pauses(step) for made in plans) for step in steps)
