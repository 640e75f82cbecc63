import random
import re
import time
from dataclasses import replace

import pytest

from overlaptop.fleet.fleet import HISTORY_STEPS
from overlaptop.stats.comparison import (
    KEPT_STEPS,
    MOST_RANKS,
    MOST_STEPS,
    NOT_MEASURED,
    OTHER_WORK,
    Comparer,
    compare,
    compare_steps,
)
from overlaptop.stats.drift import FEWEST_BEFORE
from overlaptop.wire import commands
from overlaptop.wire.commands import CommandReport
from overlaptop.wire.knobs import KnobFacts
from tests.fleet.builders import BUCKET_CAP_MB, Clock, info, step, unmeasured, welcome
from tests.fleet.hub import PlayedFleet


class Job:
    """A job whose steps, changes and snapshots are made by a few words; times in ms."""

    def __init__(self, ranks=2):
        self.clock = Clock()
        self.fleet = PlayedFleet(self.clock)
        self.ranks = ranks
        self.at = 0
        self.cap = 25
        self._random = random.Random(3)
        self.fleet.apply(welcome(world_size=ranks))
        for rank in range(ranks):
            self.fleet.apply(info(rank, control_allowed=True))
            self.fleet.apply(KnobFacts(rank, (BUCKET_CAP_MB,)))

    def run(self, count, compute=60.0, noise=0.01, **how):
        for _ in range(count):
            for rank in range(self.ranks):
                length = compute * (1 + self._random.gauss(0, noise))
                self.fleet.apply(step(rank, self.at, compute=length, **how))
            self.at += 1

    def change(self, cap, *, steps=2, search="", state="changed"):
        """Ask for it, run through the transitional steps, and have all ranks report."""
        command = commands.make_setting(BUCKET_CAP_MB, cap, search=search)
        self.fleet.apply(replace(command, at_ns=self.clock()))
        agreed = self.at
        self.run(steps, compute=500, transitional=True)
        for rank in range(self.ranks):
            self.fleet.apply(
                CommandReport(
                    rank, command.id, "set", self.clock(), state, agreed, "", str(self.cap), str(cap)
                )
            )
        self.clock.pass_s(1)
        self.cap = cap
        return agreed


def quantity(found, name):
    return next(each for each in found.quantities if each.name == name)


def test_before_any_change_there_is_nothing_to_compare():
    job = Job()
    job.run(50)
    assert compare(job.fleet.snapshot()) is None


def test_a_change_is_told_with_both_sides_and_with_what_it_did():
    job = Job()
    job.run(100)
    agreed = job.change(50)
    job.run(80, compute=54, comm=30, hidden=25, stall=5, collectives=2)
    found = compare(job.fleet.snapshot())
    assert found.title == "bucket_cap_mb 25 → 50 MiB at step 100"
    assert (found.knob, found.was, found.becomes, found.step) == ("bucket_cap_mb", "25", "50", agreed)
    assert (found.steps_before, found.steps_after, found.over) == (100, 80, False)
    # 60 + 10 exposed + 10 idle, then 54 + 5 + 10: 80 ms and 69 ms.
    assert found.step_time.before.centre == pytest.approx(80e6, rel=0.005)
    assert found.step_time.after.centre == pytest.approx(69e6, rel=0.005)
    assert found.step_time.difference.share == pytest.approx(69 / 80 - 1, abs=0.003)
    assert found.step_time.verdict == found.step_time.difference.words()
    assert "% shorter (" in found.step_time.verdict
    assert quantity(found, "overlap").after.centre == pytest.approx(25 / 30)
    assert quantity(found, "overlap").verdict == "17 points more"
    assert quantity(found, "exposed_ns").verdict == "50 % less"
    assert quantity(found, "stall_ns").verdict == "50 % less"
    assert quantity(found, "collectives").verdict == "33 % fewer"
    assert [each.better for each in found.quantities] == [True, True, True, True, None]


def test_what_changes_nothing_is_told_as_no_difference_and_is_neither_better_nor_worse():
    job = Job()
    job.run(150)
    job.change(50)
    job.run(150)
    found = compare(job.fleet.snapshot()).step_time
    assert found.verdict.startswith("no difference beyond noise (±")
    assert found.better is None


def test_a_longer_step_is_worse():
    job = Job()
    job.run(100)
    job.change(50)
    job.run(60, compute=66)
    assert compare(job.fleet.snapshot()).step_time.better is False


def test_where_a_step_does_other_work_only_shares_are_compared():
    job = Job()
    for rank in range(job.ranks):
        job.fleet.apply(KnobFacts(rank, (replace(BUCKET_CAP_MB, changes_work=True),)))
    job.run(100)
    job.change(50)
    job.run(60, compute=120, hidden=10)
    found = compare(job.fleet.snapshot())
    verdicts = {each.name: each.verdict for each in found.quantities}
    assert verdicts.pop("overlap").startswith("33 points less")
    assert set(verdicts.values()) == {OTHER_WORK}
    assert found.step_time.better is None
    assert found.step_time.after.centre > 1.5 * found.step_time.before.centre  # side by side all the same


def test_right_after_a_change_it_is_said_how_many_steps_are_still_needed():
    job = Job()
    job.run(100)
    job.change(50)
    assert compare(job.fleet.snapshot()).step_time.verdict == NOT_MEASURED
    job.run(3)
    found = compare(job.fleet.snapshot())
    assert (found.steps_before, found.steps_after) == (100, 3)
    assert found.step_time.verdict == "not known yet: 9 more steps"
    assert found.step_time.after.centre > 0
    job.run(8)
    assert compare(job.fleet.snapshot()).step_time.verdict == "not known yet: 1 more step"


def test_where_too_few_steps_before_tell_how_the_machine_drifts_that_is_said():
    job = Job()
    job.run(60)
    job.change(50)
    job.run(60, compute=66)
    found = compare(job.fleet.snapshot()).step_time
    assert found.verdict == f"not known: 60 measured steps before it, {FEWEST_BEFORE} are needed"
    assert (found.difference, found.better) == (None, None)


def test_a_difference_that_the_machine_makes_by_itself_is_not_called_one():
    job = Job()
    for number in range(4):  # a neighbour comes and goes
        job.run(100, compute=60 if number % 2 else 90)
    job.change(50)
    job.run(100, compute=90)
    found = compare(job.fleet.snapshot()).step_time
    assert re.fullmatch(r"not known: the machine drifts by ±\d\d %", found.verdict)
    assert (found.difference, found.better) == (None, None)


def test_more_steps_after_a_change_tell_it_from_what_the_machine_does_within_few():
    job = Job()
    for number in range(40):  # a wave of ten steps
        job.run(10, compute=50 if number % 2 else 70)
    job.change(50)
    job.run(15, compute=54)
    assert re.fullmatch(r"not known yet: \d\d more steps", compare(job.fleet.snapshot()).step_time.verdict)
    job.run(45, compute=54)
    assert "% shorter (" in compare(job.fleet.snapshot()).step_time.verdict


def test_steps_with_an_earlier_or_a_later_value_do_not_count_nor_those_that_a_command_disturbed():
    job = Job()
    job.run(40, compute=200)
    job.change(10)
    job.run(40)
    job.run(3, compute=900, captured=True)
    job.change(50)
    job.run(30)
    comparer = Comparer()
    found = comparer.take(job.fleet.snapshot())
    assert (found.was, found.becomes, found.steps_before, found.steps_after) == ("10", "50", 40, 30)
    assert found.step_time.before.centre == pytest.approx(80e6, rel=0.01)
    job.change(75, search="search-1234")
    job.run(50, compute=300)
    found = comparer.take(job.fleet.snapshot())
    assert (found.becomes, found.steps_after, found.over) == ("50", 30, True)
    assert compare(job.fleet.snapshot(), searches=True).becomes == "75"


def test_a_step_that_is_disturbed_on_one_rank_counts_on_none():
    before = [step(rank, at, captured=rank == 1 and at == 3) for rank in (0, 1) for at in range(20)]
    assert compare_steps(before, before)[0].before.steps == 19


def test_a_change_that_failed_or_changed_nothing_is_not_told():
    job = Job()
    job.run(30)
    job.change(50, state="failed")
    job.run(30)
    assert compare(job.fleet.snapshot()) is None
    job.cap = 25
    job.change(25)
    job.run(30)
    assert compare(job.fleet.snapshot()) is None


def test_nobody_who_did_not_see_what_was_before_compares_it():
    job = Job()
    job.run(30)
    job.change(50)
    job.run(HISTORY_STEPS + 1)
    assert compare(job.fleet.snapshot()) is None


def test_the_steps_beside_the_change_are_kept_when_the_fleet_has_forgotten_them():
    job, comparer = Job(), Comparer()
    job.run(100)
    comparer.take(job.fleet.snapshot())
    job.change(50)
    for _ in range(2 * KEPT_STEPS // 200):
        job.run(200, compute=54)
        found = comparer.take(job.fleet.snapshot())
    assert (found.steps_before, found.steps_after) == (100, MOST_STEPS)
    assert found.step_time.difference.share == pytest.approx(74 / 80 - 1, abs=0.005)


def test_snapshots_that_were_missed_leave_no_gap_while_the_history_reaches_back():
    job, comparer, often = Job(), Comparer(), Comparer()
    job.run(30)
    comparer.take(job.fleet.snapshot())
    job.change(50)
    for _ in range(10):
        job.run(20)
        often.take(job.fleet.snapshot())
    last = job.fleet.snapshot()
    assert comparer.take(last) == often.take(last)


def test_another_job_and_a_restarted_one_begin_anew():
    job, comparer = Job(), Comparer()
    job.run(30)
    job.change(50)
    job.run(30)
    assert comparer.take(job.fleet.snapshot()) is not None
    job.fleet.apply(welcome(job="job-2"))
    assert comparer.take(job.fleet.snapshot()) is None
    job.at = 0
    job.run(5)
    assert comparer.take(job.fleet.snapshot()) is None


def test_ranks_are_taken_together_step_by_step():
    sides = [
        [
            step(rank, at, compute=60 + 20 * rank, comm=10 + 20 * rank, hidden=10 * rank, stall=4 + rank)
            for rank in (0, 1)
            for at in range(20)
        ]
        for _ in range(2)
    ]
    found = {each.name: each.before.centre for each in compare_steps(*sides)}
    assert found["step_ns"] == pytest.approx((80e6 + 110e6) / 2)
    assert found["overlap"] == pytest.approx(10 / 40)
    assert found["exposed_ns"] == pytest.approx((10e6 + 20e6) / 2)
    assert found["stall_ns"] == pytest.approx(4.5e6)
    assert found["collectives"] == 3


def test_what_was_not_measured_stays_unknown():
    found = compare_steps(*[[unmeasured(0, at) for at in range(FEWEST_BEFORE)]] * 2)
    assert found[0].verdict == "the same"
    for each in found[1:]:
        assert (each.before, each.after, each.difference) == (None, None, None)
        assert (each.verdict, each.better) == (NOT_MEASURED, None)


def test_steps_without_communication_have_no_overlap():
    silent = [step(0, at, comm=0, hidden=0, stall=0) for at in range(FEWEST_BEFORE)]
    found = {each.name: each for each in compare_steps(silent, silent)}
    assert found["overlap"].before is None
    assert found["exposed_ns"].verdict == "no difference beyond noise"


def test_of_very_many_ranks_some_stand_for_all():
    job = Job(ranks=3 * MOST_RANKS)
    job.run(13)
    job.change(50, steps=1)
    job.run(13)
    assert compare(job.fleet.snapshot()).steps_after == 13


def test_nothing_new_costs_next_to_nothing_and_gives_the_same_answer():
    job, comparer = Job(ranks=8), Comparer()
    job.run(300)
    job.change(50)
    job.run(250)
    snapshot = job.fleet.snapshot()
    first = _cpu_ns(lambda: comparer.take(snapshot))
    answer = comparer.take(snapshot)
    again = min(_cpu_ns(lambda: comparer.take(snapshot)) for _ in range(5))
    assert comparer.take(snapshot) is answer
    assert again < first / 5


def _cpu_ns(work):
    began = time.thread_time_ns()
    work()
    return time.thread_time_ns() - began
