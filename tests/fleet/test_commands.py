"""Commands and reports, folded into what a view may show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlaptop.fleet import commands as fold
from overlaptop.fleet.fleet import Fleet
from overlaptop.wire import commands
from overlaptop.wire.messages import CommandReport, RankEnd

from .builders import BUCKET_CAP_MB, T0, Clock, S, info, step, unmeasured, welcome


def capture(steps=5, at_ns=T0):
    return replace(commands.make(commands.CAPTURE, {"steps": steps}), at_ns=at_ns)


def report(rank, command, state, step=None, text=""):
    return CommandReport(rank, command.id, command.name, T0, state, step, text)


class Job:
    def __init__(self, ranks=2):
        self.clock = Clock()
        self.fleet = Fleet(self.clock)
        self.say(welcome(world_size=ranks), *(info(rank) for rank in range(ranks)))

    def say(self, *messages):
        for message in messages:
            self.fleet.apply(message)

    def view(self):
        return self.fleet.snapshot().commands[-1]


@pytest.fixture
def job():
    return Job()


def test_a_command_stands_where_its_slowest_rank_is(job):
    command = capture()
    job.say(command)
    assert (job.view().state, job.view().words, job.view().by) == ("sent", "capture (steps 5)", command.by)
    reached = []
    for state in ("accepted", "agreed", "recording", "writing", "written"):
        for rank in (0, 1):
            job.say(report(rank, command, state, 40 if state != "accepted" else None))
            reached.append(job.view().state)
    assert reached == [
        "sent", "accepted", "accepted", "agreed", "agreed", "recording", "recording", "writing", "writing",
        "written",
    ]  # fmt: skip
    assert (job.view().step, job.view().done, job.view().reason) == (40, True, "")


def test_a_report_that_comes_late_takes_nothing_back(job):
    command = capture()
    job.say(command, report(0, command, "recording", 40), report(0, command, "agreed", 40))
    assert job.view().ranks[0].state == "recording"


@pytest.mark.parametrize(
    ("state", "text", "reason"),
    [
        ("refused", "start the job with --control", "rank 1 refused: start the job with --control"),
        ("busy", "another command is under way", "rank 1 is busy: another command is under way"),
        ("failed", "no space left on device", "rank 1 failed: no space left on device"),
        ("failed", "rank 3 does not answer", "rank 3 does not answer"),
    ],
)
def test_one_rank_that_does_not_do_it_fails_the_whole_and_is_named(job, state, text, reason):
    command = capture()
    job.say(command, report(0, command, "accepted"), report(1, command, state, None, text))
    assert (job.view().state, job.view().reason, job.view().done) == ("failed", reason, False)
    job.say(report(0, command, "failed", None, "rank 1 refuses: so"))
    assert job.view().done


def test_what_is_said_of_another_rank_is_said_first(job):
    command = capture()
    job.say(command, report(0, command, "failed", None, "DistNetworkError: connection reset"))
    job.say(report(1, command, "failed", None, "rank 0 gave up"))
    assert job.view().reason == "rank 0 gave up"


def test_a_rank_that_never_answers_fails_it_in_the_end(job):
    command = capture()
    job.say(command, report(0, command, "accepted"))
    job.clock.pass_s(fold.UNANSWERED_NS / S - 1)
    assert job.view().state == "sent"
    job.clock.pass_s(2)
    assert (job.view().state, job.view().reason) == ("failed", "rank 1 does not answer")


def test_a_command_that_no_rank_hears_fails_in_the_end():
    job = Job(ranks=0)
    job.say(capture())
    assert (job.view().state, job.view().done) == ("sent", False)
    job.clock.pass_s(16)
    assert (job.view().reason, job.view().done) == ("no rank is there to answer", True)


def test_a_rank_that_ends_before_its_last_word_fails_it_and_one_that_ends_after_does_not(job):
    command = capture()
    job.say(command, report(0, command, "written", 40, "/there/rank0.json.gz"))
    job.say(report(1, command, "recording", 40), RankEnd(0, T0, clean=True))
    assert job.view().state == "recording"
    job.say(RankEnd(1, T0, clean=False))
    assert job.view().reason == "rank 1 ended before it was done"
    assert job.view().done


def test_the_live_overlap_is_that_of_the_measured_steps_just_before(job):
    command = capture()
    job.say(command, report(0, command, "accepted"))
    # Ten steps of 20 %, forty of 50 %, some of them not measured, then captured ones.
    job.say(*(step(0, n, comm=10, hidden=2) for n in range(10)))
    job.say(*(step(0, n, comm=10, hidden=5) if n % 2 else unmeasured(0, n) for n in range(10, 90)))
    job.say(report(0, command, "agreed", 90))
    assert (job.view().ranks[0].live_overlap, job.view().ranks[0].live_steps) == (0.5, 32)
    job.say(*(step(0, n, comm=10, hidden=0) for n in range(90, 100)))
    job.say(report(0, command, "written", 90, "/there/rank0.json.gz"))
    assert job.view().ranks[0].live_overlap == 0.5
    assert (job.view().ranks[1].live_overlap, job.view().ranks[1].live_steps) == (None, 0)


def test_steps_whose_times_cancel_each_other_out_tell_no_overlap(job):
    # A far end may say so, though no agent does.
    odd = [replace(step(0, number), comm_ns=comm_ns) for number, comm_ns in ((1, 7), (2, -7))]
    command = capture()
    job.say(*odd, command, report(0, command, "agreed", 40))
    assert (job.view().ranks[0].live_overlap, job.view().ranks[0].live_steps) == (None, 0)


def test_the_live_overlap_outlives_the_steps_that_it_came_from(job):
    command = capture()
    job.say(*(step(0, n, comm=10, hidden=5) for n in range(40)), report(0, command, "agreed", 40))
    job.say(*(step(0, n, comm=10, hidden=0) for n in range(40, 2000)))
    job.say(report(0, command, "written", 40))
    assert job.view().ranks[0].live_overlap == 0.5


def test_a_report_on_a_command_that_was_never_heard_is_shown_for_what_it_is(job):
    command = capture()
    job.say(report(0, command, "written", 40, "/there/rank0.json.gz"))
    assert (job.view().words, job.view().by) == ("capture", "")
    assert job.view().ranks[0].text == "/there/rank0.json.gz"


def test_a_command_heard_again_from_the_hub_is_one_command(job):
    command = capture()
    job.say(command, replace(command, at_ns=T0 + 7))
    assert [each.at_ns for each in job.fleet.snapshot().commands] == [T0 + 7]


def test_only_the_newest_commands_are_kept(job):
    made = [capture() for _ in range(fold.MAX_COMMANDS + 12)]
    job.say(*made)
    kept = job.fleet.snapshot().commands
    assert [each.id for each in kept] == [each.id for each in made[-fold.MAX_COMMANDS :]]


def test_where_there_are_many_those_of_searches_go_before_what_a_person_asked(job):
    persons = [capture(at_ns=T0 + number) for number in range(3)]
    searched = [
        replace(commands.make_setting(BUCKET_CAP_MB, 50, search=persons[0].id), at_ns=T0 + 10 + number)
        for number in range(fold.MAX_COMMANDS)
    ]
    job.say(*persons, *searched)
    kept = [each.id for each in job.fleet.snapshot().commands]
    assert kept == [each.id for each in (*persons, *searched[3:])]


def test_what_has_ended_stays_so_until_a_rank_says_something_else(job):
    command = capture()
    job.say(command, *(report(rank, command, "written", 40) for rank in (0, 1)))
    ended = job.view()
    assert ended.done
    job.say(info(5))  # a rank that came later
    job.clock.pass_s(100)
    assert job.view() is ended
    job.say(report(5, command, "failed", None, "no room"))
    assert (job.view().state, job.view().reason) == ("failed", "rank 5 failed: no room")


def test_a_rank_number_beyond_belief_is_not_shown(job):
    command = capture()
    job.say(command, report(1 << 19, command, "written"))
    assert [each.rank for each in job.view().ranks] == [0, 1]


def test_another_job_forgets_them(job):
    job.say(capture(), welcome(job="job-2"))
    assert job.fleet.snapshot().commands == ()


def test_the_step_time_of_the_job_leaves_captured_steps_out(job):
    for rank in (0, 1):
        job.say(step(rank, 1), replace(unmeasured(rank, 2, ms=5000), captured=True))
    assert job.fleet.snapshot().totals.step_ns == step(0, 1).step_ns
    assert job.fleet.snapshot().totals.step == 2


def test_the_change_of_a_setting_has_stages_and_a_last_word_of_its_own(job):
    command = replace(commands.make_setting(BUCKET_CAP_MB, 50), at_ns=T0)
    job.say(command)
    reached = []
    for state in ("accepted", "agreed", "changing", "changed"):
        for rank in (0, 1):
            job.say(report(rank, command, state, 40 if state != "accepted" else None, f"as {state}"))
            reached.append((job.view().state, job.view().done))
    assert reached == [
        ("sent", False), ("accepted", False), ("accepted", False), ("agreed", False), ("agreed", False),
        ("changing", False), ("changing", False), ("changed", True),
    ]  # fmt: skip
    assert (job.view().words, job.view().step) == ("set bucket_cap_mb 50", 40)
    assert [rank.text for rank in job.view().ranks] == ["as changed"] * 2


def test_a_rank_that_ends_after_it_has_changed_a_setting_has_not_failed(job):
    command = replace(commands.make_setting(BUCKET_CAP_MB, 50), at_ns=T0)
    job.say(command, *(report(rank, command, "changed", 40) for rank in (0, 1)), RankEnd(0, T0, clean=True))
    assert (job.view().state, job.view().done) == ("changed", True)


def test_the_step_time_of_the_job_leaves_transitional_steps_out(job):
    for rank in (0, 1):
        job.say(step(rank, 1), replace(unmeasured(rank, 2, ms=5000), transitional=True))
    assert job.fleet.snapshot().totals.step_ns == step(0, 1).step_ns


def test_commands_stand_in_the_order_in_which_they_were_given_whenever_they_were_heard_of(job):
    late, early = capture(at_ns=T0 + 2), capture(at_ns=T0 + 1)
    job.say(late, early)
    assert [each.id for each in job.fleet.snapshot().commands] == [early.id, late.id]


def setting(at_ns=T0):
    return replace(commands.make_setting(BUCKET_CAP_MB, 50), at_ns=at_ns)


def test_a_change_that_a_lost_rank_may_have_made_is_not_called_failed(job):
    command = setting()
    job.say(command, report(0, command, "changed", 40), report(1, command, "agreed", 40))
    job.say(RankEnd(1, T0, clean=False))
    view = job.view()
    assert (view.state, view.done) == ("unknown", True)
    assert view.reason == view.ranks[1].text == "rank 1 ended before it had said"
    job.say(info(1), report(1, command, "changed", 40))
    assert (job.view().state, job.view().reason) == ("changed", "")


def test_a_silent_rank_leaves_a_change_in_doubt_until_another_says_that_none_was_made(job):
    command = setting()
    job.say(command, report(0, command, "accepted"))
    job.clock.pass_s(fold.UNANSWERED_NS / S + 1)
    assert (job.view().state, job.view().reason, job.view().done) == (
        "unknown",
        "rank 1 has not said",
        False,
    )
    job.say(report(0, command, "failed", None, "rank 1 does not answer"))
    assert (job.view().state, job.view().reason, job.view().done) == (
        "failed",
        "rank 1 does not answer",
        True,
    )


def test_a_rank_that_cannot_learn_what_was_decided_leaves_it_in_doubt_until_it_does(job):
    command = setting()
    job.say(command, report(0, command, "changed", 40), report(1, command, "accepted"))
    job.say(report(1, command, "unknown", None, "the job's store does not answer"))
    view = job.view()
    assert (view.state, view.done) == ("unknown", True)
    assert view.reason == "rank 1 cannot tell: the job's store does not answer"
    job.say(report(1, command, "agreed", 40))
    assert (job.view().state, job.view().done) == ("agreed", False)
    job.say(report(1, command, "changed", 40))
    assert job.view().state == "changed"


def test_a_job_that_ends_before_its_ranks_have_agreed_has_changed_nothing(job):
    command = setting()
    job.say(command, report(0, command, "accepted"), *(RankEnd(rank, T0, clean=False) for rank in (1, 0)))
    assert (job.view().state, job.view().reason) == ("failed", "rank 0 ended before it was done")


def test_changes_of_a_process_that_another_has_taken_the_place_of_are_forgotten(job):
    old, asked = setting(T0), setting(T0 + 1)
    job.say(old, *(report(rank, old, "changed", 40) for rank in (0, 1)), asked)
    job.say(info(0), info(1))  # the same processes: nothing is new
    assert [each.id for each in job.fleet.snapshot().commands] == [old.id, asked.id]
    job.say(*(RankEnd(rank, T0, clean=False) for rank in (0, 1)), info(0, pid=77))
    assert [each.id for each in job.fleet.snapshot().commands] == [asked.id]
    # A hub whose history has not heard of it yet, and a word of the dead that comes late.
    job.say(old, report(1, old, "changed", 40), info(1, pid=78))
    assert [each.id for each in job.fleet.snapshot().commands] == [asked.id]
    new = setting(T0 + 2)
    job.say(new, *(report(rank, new, "changed", 3) for rank in (0, 1)))
    assert job.view().id == new.id
