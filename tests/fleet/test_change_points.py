"""Since which step a job goes on as it does now: changes are found, noise and alternation are none."""

import random

import pytest
from msgspec.structs import replace

from overlaptop.fleet.change_points import ChangePoints
from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.waits import StepWaits
from overlaptop.timeline.arrivals import WaitTimes

from .builders import MS, Clock, info, unmeasured, welcome

ONSET, STEP_MS = 100, 80.0


def looks(length_ms, steps=240, ranks=1, at_once=False, told=lambda rank, number: {}, changes=None):
    """After each step of a job, or after all, the first step since it changed. ``length_ms(number)``;
    ``told``: what totals hold besides; ``changes``: to be read afterwards.
    """
    fleet, changes, found = JobState(Clock()), changes or ChangePoints(), []
    for message in (welcome(world_size=ranks), *map(info, range(ranks))):
        fleet.apply(message)
    for number in range(steps):
        length = length_ms(number)
        for rank in range(ranks):
            made = unmeasured(rank, number, length)
            fleet.apply(replace(made, start_ns=made.start_ns + number * MS, **told(rank, number)))
        if not at_once or number == steps - 1:
            changes.look(fleet.snapshot().ranks)
            found.append(changes.first_step)
    return found


def split(number, wait_ms):
    """A step in which rank 0 waits and another rank does not."""
    times = {0: WaitTimes(0, 0, 0, round(wait_ms * MS), 0, 0), 1: WaitTimes(0, 0, 0, 0, 0, 0)}
    return StepWaits.of(number, number * MS, round(STEP_MS * MS), (), times)


def around(seed, spread=0.02):
    """Lengths around STEP_MS."""
    draw = random.Random(seed)
    return lambda times=1: STEP_MS * draw.gauss(1, spread) * times


def every(number, nth, times):
    return times if number % nth == 0 else 1


HEALTHY = {
    "noisy": lambda draw, _: max(0.2, draw.gauss(1, 0.1)),
    "heavy-tailed": lambda draw, _: draw.gauss(1, 0.05) * max(1, draw.uniform(-32, 4)),
    "every fourth longer": lambda draw, number: draw.gauss(1, 0.02) * every(number, 4, 3),
    "blocks of four": lambda draw, number: draw.gauss(1, 0.02) * every(number // 4, 2, 1.3),
    "checkpoints": lambda draw, number: draw.gauss(1, 0.02) * every(number, 50, 40),
    "drift": lambda draw, number: draw.gauss(1, 0.02) * (1 + number / 400),
    "disturbed": lambda draw, number: draw.gauss(1, 0.02) * (1.4 if 100 <= number < 107 else 1),
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_job_does_not_change(kind):
    draw = random.Random(kind)
    assert set(looks(lambda number: STEP_MS * HEALTHY[kind](draw, number), ranks=2)) == {0}


def later_on_rank_1(name):
    return lambda rank, number: {name: MS * (5 + 20 * (rank == 1 and number >= ONSET))}


@pytest.mark.parametrize(
    ("told", "since"),
    [
        (later_on_rank_1("loading_ns"), ONSET),
        (later_on_rank_1("forward_ns"), ONSET),
        (later_on_rank_1("cpu_ns"), 0),
        (lambda rank, number: {"full_collections": int(rank == 1 and number >= ONSET)}, ONSET),
        (lambda rank, number: {"full_collections": int(number >= ONSET and number % 20 == 0)}, 0),
    ],
    ids=["loading", "forward", "cpu", "collects each step", "collects rarely"],
)
def test_change_of_one_rank_s_counter_is_one_of_the_job(told, since):
    length_ms = around("counters")
    found = looks(lambda _: length_ms(), ONSET + 40, 2, told=told)
    assert (found[ONSET - 1], found[-1]) == (0, since)


def on_trial(_rank, number):
    return {"trial": 60 <= number < 110, "transitional": number in (60, 109)}


@pytest.mark.parametrize(
    ("times", "told", "steps", "since"),
    [
        (lambda at: 1.5 if 60 <= at < 110 else 1, lambda _, at: {}, 150, 110),
        (lambda at: 1.5 if 60 <= at < 110 else 1, on_trial, 150, 0),
        (lambda at: 1, lambda _, at: {"transitional": at == 99}, 110, 100),
        (lambda at: 5 if at >= 100 else 1, lambda _, at: {"comm_ns": 0} if at >= 100 else {}, 110, 100),
    ],
    ids=["of two", "a trial", "of a setting", "to steps that are all measured"],
)
def test_last_change_is_found_also_in_a_history(times, told, steps, since):
    length_ms = around(1)
    assert looks(lambda at: length_ms(times(at)), steps, at_once=True, told=told) == [since]


@pytest.mark.parametrize("times", [1.2, 1.5, 1 / 1.5])
@pytest.mark.parametrize("noise", [0.01, 0.04])
def test_change_of_the_step_is_found_within_twelve_steps(noise, times):
    length_ms = around(f"{noise} {times}", noise)
    found = looks(lambda number: length_ms(times if number >= ONSET else 1), ONSET + 12, ranks=2)
    assert set(found[:ONSET]) == {0}
    assert ONSET - 2 <= found[-1] <= ONSET + 2


@pytest.mark.parametrize("seed", range(2))
def test_change_that_single_steps_are_too_noisy_for_is_found_within_seconds(seed):
    before_ms, after_ms = around(f"before {seed}", 0.1), around(f"after {seed}", 0.2)
    found = looks(lambda number: after_ms(1.4) if number >= 160 else before_ms(), 240)
    assert set(found[:160]) == {0}
    assert 150 <= found[-1] <= 170


@pytest.mark.parametrize("late_ms", [12, 40])
def test_wait_that_begins_or_ends_is_a_change_though_the_step_hardly_grows(late_ms):
    draw, changes, found = random.Random(late_ms), ChangePoints(), []
    for number in range(0, 400, 10):  # one in ten is measured
        is_late = 100 <= number < 250
        wait_ms = draw.gauss(late_ms, 0.1 * late_ms) if is_late else draw.expovariate(1)
        changes.add_waits(split(number, wait_ms))
        found.append(changes.first_step)
    assert set(found[:10]) == {0}
    assert found[14:25] == [100] * 11
    assert found[-1] == 250


@pytest.mark.parametrize("times", [0.4, 1, 5])
def test_steps_that_measuring_makes_longer_are_no_change(times):
    """Bursts of alternating blocks, each of four steps or a quarter of a second."""
    length_ms, block = around(1), 8 if times < 1 else 4

    def measured(_rank, number):
        return {"comm_ns": 0} if 100 <= number < 132 and number // block % 2 == 0 else {}

    def longer_ms(number):
        return times * length_ms(1.4 if measured(0, number) else 1)

    assert set(looks(longer_ms, 160, told=measured)) == {0}


def test_restart_forgets_the_change():
    fleet, changes = JobState(Clock()), ChangePoints()
    for number in range(20):
        fleet.apply(replace(unmeasured(0, number), transitional=number == 12))
    changes.look(fleet.snapshot().ranks)
    assert changes.first_step == 13
    fleet.apply(replace(unmeasured(0, 0), start_ns=unmeasured(0, 900).start_ns))
    changes.look(fleet.snapshot().ranks)
    assert changes.first_step == 0


@pytest.mark.parametrize("wander_ms", [0.0, 4.0])
def test_steps_wander_by_what_few_steps_in_a_row_differ_from_others(wander_ms):
    draw, length_ms, changes = random.Random(1), around(1, spread=0.005), ChangePoints()
    strays_ms = [draw.gauss(0, wander_ms) for _ in range(30)]
    looks(lambda number: length_ms() + strays_ms[number // 8], changes=changes)
    assert changes.wander_ns / MS == pytest.approx(wander_ms, rel=0.4, abs=0.3)
