"""Commands and reports, folded into what a view may show."""

import pytest
from msgspec.structs import replace

from overlaptop.fleet import commands as fold
from overlaptop.fleet.job_state import JobState
from overlaptop.wire import commands
from overlaptop.wire.messages import RankEnd

from .builders import BUCKET_CAP_MB, T0, S, info, report, step, unmeasured, welcome
from .hub import PlayedJob


def capture(steps=5, at_ns=T0):
    return replace(commands.make(commands.CAPTURE, {"steps": steps}), at_ns=at_ns)


def setting(at_ns=T0):
    return replace(commands.make_setting(BUCKET_CAP_MB, 50), at_ns=at_ns)


def newest(job):
    """Its newest command."""
    return job.fleet.snapshot().commands[-1]


@pytest.fixture
def job():
    return PlayedJob()


@pytest.mark.parametrize(
    ("command", "ranks", "state", "reason"),
    [
        (capture(), 2, "failed", "rank 0 does not answer"),
        (setting(), 2, "unknown", "rank 0 has not reported"),
        (capture(), 0, "failed", "no rank is there to answer"),
    ],
)
def test_a_command_that_its_hub_never_answers_is_not_waited_for(command, ranks, state, reason):
    job = PlayedJob(ranks)
    JobState.apply(job.fleet, command)
    job.clock.pass_s(fold.UNANSWERED_NS / S - 1)
    assert (newest(job).state, newest(job).done, len(newest(job).ranks)) == ("sent", False, ranks)
    job.clock.pass_s(2)
    assert (newest(job).state, newest(job).reason, newest(job).done) == (state, reason, True)


def test_a_hub_that_replaces_another_may_not_know_a_command(job):
    command = setting()
    job.send(command, report(0, command, "changed", 40), report(1, command, "agreed", 40))
    outcome = newest(job).outcome
    JobState.apply(job.fleet, welcome(world_size=2))
    JobState.apply(job.fleet, outcome)  # the same hub sends it again
    assert (newest(job).state, newest(job).done) == ("agreed", False)
    JobState.apply(job.fleet, welcome(world_size=2))
    job.clock.pass_s(fold.UNANSWERED_NS / S + 1)
    assert (newest(job).state, newest(job).done) == ("unknown", True)


def test_live_overlap_is_of_the_measured_steps_just_before(job):
    command = capture()
    job.send(command, report(0, command, "accepted"))
    # Ten steps of 20 %, forty of 50 %, some of them not measured, then captured ones.
    job.send(*(step(0, n, comm=10, hidden=2) for n in range(10)))
    job.send(*(step(0, n, comm=10, hidden=5) if n % 2 else unmeasured(0, n) for n in range(10, 90)))
    job.send(report(0, command, "agreed", 90))
    assert newest(job).live == {0: (0.5, 32)}
    job.send(*(step(0, n, comm=10, hidden=0) for n in range(90, 800)))
    job.send(report(0, command, "written", 90, "/there/rank0.json.gz"))
    assert newest(job).live == {0: (0.5, 32)}


def test_newest_commands_are_kept_and_trials_dropped_first(job):
    persons, trial = [capture(at_ns=T0 + at) for at in range(3)], commands.make_trial
    made = (trial(BUCKET_CAP_MB, 50, 20) for _ in range(fold.MAX_COMMANDS))
    trials = [replace(each, at_ns=T0 + 10 + at) for at, each in enumerate(made)]
    job.send(*reversed(persons), *trials)
    kept = [each.id for each in job.fleet.snapshot().commands]
    assert kept == [each.id for each in (*persons, *trials[3:])]


def test_changes_of_a_replaced_process_are_forgotten(job):
    old, asked = setting(T0), setting(T0 + 1)
    job.send(old, *(report(rank, old, "changed", 40) for rank in (0, 1)), asked)
    job.send(info(0), info(1))  # the same processes: nothing is new
    assert [each.id for each in job.fleet.snapshot().commands] == [old.id, asked.id]
    job.send(*(RankEnd(rank, T0, clean=False) for rank in (0, 1)), info(0, pid=77))
    assert [each.id for each in job.fleet.snapshot().commands] == [asked.id]
    new = setting(T0 + 2)
    job.send(new, *(report(rank, new, "changed", 3) for rank in (0, 1)))
    assert newest(job).id == new.id
