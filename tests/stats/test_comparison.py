import random
import re

import pytest
from msgspec.structs import replace

from overlaptop.fleet.fleet import HISTORY_STEPS
from overlaptop.stats.comparison import (
    KEPT_STEPS,
    MOST_RANKS,
    MOST_STEPS,
    NOT_MEASURED,
    OTHER_WORK,
    Comparer,
    compare_steps,
)
from overlaptop.stats.drift import FEWEST_BEFORE
from overlaptop.stats.noise import FEWEST
from overlaptop.wire import commands
from overlaptop.wire.commands import CommandReport
from overlaptop.wire.knobs import KnobFacts
from tests.fleet.builders import BUCKET_CAP_MB, Clock, info, step, unmeasured, welcome
from tests.fleet.hub import PlayedFleet


class JobWithChanges:
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

    @property
    def compared(self):
        """By somebody who looks now for the first time."""
        return Comparer().take(self.fleet.snapshot())

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


def changed_job(before, after=0, **how):
    """So many steps before a change and after it; ``how``: the steps after."""
    job = JobWithChanges()
    job.run(before)
    job.change(50)
    job.run(after, **how)
    return job


def step_time(found):
    return found.quantities[0]


def sides(found):
    """Steps before and after."""
    return step_time(found).before.steps, step_time(found).after.steps


def test_a_change_is_told_with_both_sides_and_with_what_it_did():
    job = JobWithChanges()
    job.run(200)
    assert job.compared is None
    job.change(50)
    job.run(140, compute=54, comm=30, hidden=25, stall=5, collectives=2)
    found = job.compared
    assert found.title == "bucket_cap_mb 25 → 50 MiB at step 200"
    assert (found.knob, found.was, found.becomes) == ("bucket_cap_mb", "25", "50")
    assert (*sides(found), found.changes) == (200, 140, 1)
    # 60 + 10 exposed + 10 idle, then 54 + 5 + 10: 80 ms and 69 ms.
    step_ns, overlap, exposed, stall, collectives = found.quantities
    assert step_ns.before.centre == pytest.approx(80e6, rel=0.005)
    assert step_ns.after.centre == pytest.approx(69e6, rel=0.005)
    assert step_ns.difference.share == pytest.approx(69 / 80 - 1, abs=0.01)
    assert step_ns.verdict == step_ns.difference.words()
    assert "% shorter (" in step_ns.verdict
    assert overlap.after.centre == pytest.approx(25 / 30)
    verdicts = [each.verdict for each in (overlap, exposed, stall, collectives)]
    assert verdicts == ["17 points more", "50 % less", "50 % less", "33 % fewer"]
    assert [each.better for each in found.quantities] == [True, True, True, True, None]


@pytest.mark.parametrize(
    ("compute", "words", "better"), [(60, "no difference beyond noise (±", None), (66, "", False)]
)
def test_what_changes_nothing_is_neither_better_nor_worse_and_a_longer_step_is_worse(
    compute, words, better
):
    found = step_time(changed_job(170, 170, compute=compute).compared)
    assert found.verdict.startswith(words)
    assert found.better is better


def test_where_a_step_does_other_work_only_shares_are_compared():
    job = JobWithChanges()
    for rank in range(job.ranks):
        job.fleet.apply(KnobFacts(rank, (replace(BUCKET_CAP_MB, changes_work=True),)))
    job.run(200)
    job.change(50)
    job.run(140, compute=120, hidden=10)
    found = job.compared
    verdicts = {each.name: each.verdict for each in found.quantities}
    assert verdicts.pop("overlap").startswith("33 points less")
    assert set(verdicts.values()) == {OTHER_WORK}
    assert {each.name for each in found.quantities if each.is_other_work} == set(verdicts)
    assert step_time(found).better is None
    assert step_time(found).after.centre > 1.5 * step_time(found).before.centre  # shown all the same


def test_right_after_a_change_it_is_said_how_many_steps_are_still_needed():
    job = changed_job(240)
    assert step_time(job.compared).verdict == NOT_MEASURED
    job.run(3)
    assert sides(job.compared) == (240, 3)
    assert step_time(job.compared).verdict == "not known yet: 69 more steps"
    assert step_time(job.compared).needs_steps
    job.run(68)
    assert step_time(job.compared).verdict == "not known yet: 1 more step"
    job.run(1)
    assert step_time(job.compared).verdict.startswith("no difference beyond noise")
    assert not step_time(job.compared).needs_steps


def test_of_collectives_a_few_steps_tell_as_no_machine_adds_any():
    job = changed_job(30, 11, collectives=2)
    assert job.compared.quantities[-1].verdict == "not known yet: 1 more step"
    job.run(1, collectives=2)
    assert job.compared.quantities[-1].verdict == "33 % fewer"


def test_where_too_few_steps_before_tell_anything_that_is_said():
    found = step_time(changed_job(FEWEST - 1, 60, compute=66).compared)
    assert found.verdict == f"not known: {FEWEST - 1} measured steps before it, {FEWEST} are needed"
    assert (found.difference, found.better, found.needs_steps) == (None, None, False)


def test_a_job_that_goes_back_and_again_is_judged_by_each_of_these_changes():
    job = JobWithChanges()
    job.run(84)
    for number, cap in enumerate((50, 25, 50)):
        job.change(cap)
        job.run(24, compute=60 if number % 2 else 64)
    found = job.compared
    assert (found.was, found.becomes, found.changes, *sides(found)) == ("25", "50", 3, 108, 48)
    assert re.fullmatch(r"[45]\.\d % longer \(\d.* to \d.*\)", step_time(found).verdict)
    assert step_time(found).better is False


def test_what_a_neighbour_did_at_one_change_is_taken_for_no_change_once_the_job_went_back():
    job = changed_job(300, 30, compute=90)  # a neighbour has come
    assert "longer" in step_time(job.compared).verdict  # one case of 25
    job.change(25)
    job.run(30, compute=90)
    assert "not known" in step_time(job.compared).verdict
    job.change(50)
    job.run(30, compute=90)
    found = step_time(job.compared)
    assert "not known" in found.verdict or "no difference" in found.verdict
    assert found.better is None


def test_steps_of_a_third_value_or_beside_another_change_are_of_no_alternation():
    job = JobWithChanges()
    job.run(84)
    for cap in (50, 25, 10, 25):
        job.change(cap)
        job.run(24)
    found = job.compared
    assert (found.was, found.becomes, found.changes, *sides(found)) == ("10", "25", 2, 24, 48)


def test_a_difference_that_the_machine_makes_by_itself_is_not_called_one():
    job = JobWithChanges()
    for number in range(4):  # a neighbour comes and goes
        job.run(100, compute=60 if number % 2 else 90)
    job.change(50)
    job.run(100, compute=90)
    found = step_time(job.compared)
    assert re.fullmatch(r"not known: the machine drifts by ±\d\d %", found.verdict)
    assert (found.difference, found.better, found.needs_steps) == (None, None, False)


def test_only_undisturbed_steps_with_the_value_before_and_the_new_one_count():
    job, comparer = JobWithChanges(), Comparer()
    job.run(40, compute=200)
    job.change(10)
    job.run(40)
    job.run(3, compute=900, captured=True)
    job.change(50)
    job.run(30)
    found = comparer.take(job.fleet.snapshot())
    assert (found.was, found.becomes, *sides(found)) == ("10", "50", 40, 30)
    assert step_time(found).before.centre == pytest.approx(80e6, rel=0.01)
    job.change(75, search="search-1234")  # a search's is not told, but ends the steps after
    job.run(50, compute=300)
    found = comparer.take(job.fleet.snapshot())
    assert (found.becomes, *sides(found)) == ("50", 40, 30)
    before = [step(rank, at, captured=rank == 1 and at == 3) for rank in (0, 1) for at in range(20)]
    assert compare_steps(before, before)[0].before.steps == 19  # disturbed on one rank


def test_a_change_that_failed_or_changed_nothing_or_whose_steps_before_nobody_saw_is_not_told():
    job = JobWithChanges()
    job.run(30)
    job.change(50, state="failed")
    job.run(30)
    assert job.compared is None
    job.cap = 25
    job.change(25)
    job.run(30)
    assert job.compared is None
    job.change(50)
    job.run(HISTORY_STEPS + 1)
    assert job.compared is None


def test_the_steps_beside_the_change_are_kept_when_the_fleet_has_forgotten_them():
    job, comparer = JobWithChanges(), Comparer()
    job.run(100)
    comparer.take(job.fleet.snapshot())
    job.change(50)
    for _ in range(2 * KEPT_STEPS // 200):
        job.run(200, compute=54)
        found = comparer.take(job.fleet.snapshot())
    assert sides(found) == (100, MOST_STEPS)
    assert step_time(found).difference.share == pytest.approx(74 / 80 - 1, abs=0.005)


def test_snapshots_that_were_missed_leave_no_gap_while_the_history_reaches_back():
    job, comparer, often = JobWithChanges(), Comparer(), Comparer()
    job.run(30)
    comparer.take(job.fleet.snapshot())
    job.change(50)
    for _ in range(10):
        job.run(20)
        often.take(job.fleet.snapshot())
    last = job.fleet.snapshot()
    assert comparer.take(last) == often.take(last)


def test_another_job_and_a_restarted_one_begin_anew():
    job, comparer = changed_job(30, 30), Comparer()
    assert comparer.take(job.fleet.snapshot()) is not None
    job.fleet.apply(welcome(job="job-2"))
    assert comparer.take(job.fleet.snapshot()) is None
    job.at = 0
    job.run(5)
    assert comparer.take(job.fleet.snapshot()) is None


def test_ranks_are_taken_together_step_by_step():
    steps = [
        step(rank, at, compute=60 + 20 * rank, comm=10 + 20 * rank, hidden=10 * rank, stall=4 + rank)
        for rank in (0, 1)
        for at in range(20)
    ]
    found = [each.before.centre for each in compare_steps(steps, steps)]
    assert found == pytest.approx([(80e6 + 110e6) / 2, 10 / 40, (10e6 + 20e6) / 2, 4.5e6, 3])


def test_what_was_not_measured_stays_unknown():
    step_ns, *others = compare_steps(*[[unmeasured(0, at) for at in range(FEWEST_BEFORE)]] * 2)
    assert step_ns.verdict == "the same"
    for each in others:
        assert (each.before, each.after, each.difference) == (None, None, None)
        assert (each.verdict, each.better) == (NOT_MEASURED, None)
    silent = [step(0, at, comm=0, hidden=0, stall=0) for at in range(FEWEST_BEFORE)]
    _, overlap, exposed, *_ = compare_steps(silent, silent)
    assert (overlap.before, exposed.verdict) == (None, "no difference beyond noise")


def test_of_very_many_ranks_some_stand_for_all():
    job = JobWithChanges(ranks=3 * MOST_RANKS)
    job.run(13)
    job.change(50, steps=1)
    job.run(13)
    assert sides(job.compared) == (13, 13)


def test_where_nothing_is_new_nothing_is_worked_out_again():
    comparer, snapshot = Comparer(), changed_job(30, 25).fleet.snapshot()
    assert comparer.take(snapshot) is comparer.take(snapshot)
