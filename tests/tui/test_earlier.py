"""What is kept of the jobs that were watched before the present one."""

from dataclasses import replace

import pytest

from overlaptop.fleet.fleet import Fleet
from overlaptop.fleet.snapshot import LinkState
from overlaptop.tui.earlier import KEPT_STEPS, MAX_JOBS, WITH_STEPS, JobsSeen, job_of
from overlaptop.tui.widgets.tried_table import shortened
from overlaptop.wire.knobs import Knob, KnobFacts
from tests.fleet.builders import MS, Clock, info, status, step, welcome


class Watched:
    """One fleet, as a session has it, which may turn from job to job."""

    def __init__(self):
        self.fleet = Fleet(Clock())
        self.seen = JobsSeen()
        self.fleet.set_link(LinkState.LIVE)

    def job(self, key, *, steps=20, ranks=2, **parts):
        self.fleet.apply(welcome(job=key, script=f"{key}.py", world_size=ranks))
        self.look()
        for rank in range(ranks):
            self.fleet.apply(info(rank, job=key))
            for number in range(steps):
                self.fleet.apply(step(rank, number, **parts))
        self.fleet.apply(status())
        self.look()

    def look(self):
        self.seen.see(self.fleet.snapshot())


def test_the_first_job_has_nothing_to_be_compared_with():
    watched = Watched()
    assert (watched.seen.present, watched.seen.earlier, watched.seen.all) == (None, None, [])
    watched.job("first")
    assert watched.seen.earlier is None
    assert [job.label for job in watched.seen.all] == ["first.py"]


def test_a_job_that_is_left_keeps_its_figures_and_steps():
    watched = Watched()
    watched.job("first", comm=30, hidden=15)
    watched.job("second", comm=30, hidden=30)
    earlier = watched.seen.earlier
    assert (earlier.job, earlier.label, earlier.steps_done) == ("first", "first.py", 20)
    assert earlier.overlap == pytest.approx(0.5)
    assert (earlier.step_ns, earlier.exposed_ns) == (85 * MS, 15 * MS)
    assert {rank: [each.step for each in steps] for rank, steps in earlier.steps.items()} == {
        0: list(range(20)), 1: list(range(20)),
    }  # fmt: skip
    assert [job.job for job in watched.seen.all] == ["first", "second"]
    assert watched.seen.present.overlap == 1.0


def test_a_job_that_has_made_no_step_yet_takes_nobodys_place():
    watched = Watched()
    watched.job("first")
    watched.fleet.apply(welcome(job="second"))
    watched.look()
    assert watched.seen.present.job == "first"
    assert watched.seen.earlier is None


def test_coming_back_to_a_job_compares_it_with_the_other_one_and_lists_it_once():
    watched = Watched()
    for key in ("first", "second", "first"):
        watched.job(key)
    assert watched.seen.earlier.job == "second"
    assert [job.job for job in watched.seen.all] == ["second", "first"]


def test_a_jobs_name_is_what_was_asked_for_where_it_was_started_here():
    watched = Watched()
    watched.job("first")
    watched.seen.tell("first", "ddp --layers 8", "torchrun ddp.py --layers 8")
    assert watched.seen.present.label == "ddp --layers 8"
    watched.seen.tell("first", "ddp --layers 8", "torchrun ddp.py --layers 8", "ended here")
    watched.job("second")
    earlier = watched.seen.earlier
    assert (earlier.label, earlier.command_line, earlier.how) == (
        "ddp --layers 8", "torchrun ddp.py --layers 8", "ended here",
    )  # fmt: skip
    assert watched.seen.present.how == "runs"


def test_a_job_that_ended_without_a_step_is_listed_and_one_with_steps_keeps_them():
    watched = Watched()
    watched.job("first")
    watched.seen.tell_end("first", "ddp", "", "killed by SIGKILL")
    watched.seen.tell_end("second", "ddp --layers 9", "", "exit status 1")
    assert [(job.label, job.how, job.step_ns is None) for job in watched.seen.all] == [
        ("ddp", "killed by SIGKILL", False),
        ("ddp --layers 9", "exit status 1", True),
    ]
    assert watched.seen.earlier is None


def test_steps_that_a_command_disturbed_and_those_of_settings_before_are_not_kept():
    watched = Watched()
    watched.job("first", steps=10)
    for rank in (0, 1):
        watched.fleet.apply(replace(step(rank, 10), transitional=True))
        for number in range(11, 20):
            watched.fleet.apply(replace(step(rank, number), captured=number == 15))
    watched.look()
    steps = watched.seen.present.steps
    assert [each.step for each in steps[0]] == [11, 12, 13, 14, 16, 17, 18, 19]


def test_what_was_changed_of_a_job_is_told():
    watched = Watched()
    watched.job("first")
    knob = Knob("bucket_cap_mb", 50, "50", "25", 1, 10_000)
    watched.fleet.apply(KnobFacts(0, (knob,)))
    watched.look()
    assert watched.seen.present.changed == "bucket_cap_mb 50"
    watched.fleet.apply(KnobFacts(0, (replace(knob, value_text="25"),)))
    watched.look()
    assert watched.seen.present.changed == ""


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (40, "ddp --layers 2 --bucket-cap-mb 50"),
        (33, "ddp --layers 2 --bucket-cap-mb 50"),
        (24, "ddp … --bucket-cap-mb 50"),
        (23, "ddp … 50"),
        (12, "ddp … 50"),
        (5, "ddp -"),
        (0, ""),
    ],
)
def test_a_long_label_keeps_its_name_and_its_end(width, words):
    assert shortened("ddp --layers 2 --bucket-cap-mb 50", width) == words


def test_unknown_figures_are_unknown():
    watched = Watched()
    watched.job("first", comm=0, hidden=0)
    assert watched.seen.present.overlap is None
    watched.fleet.apply(welcome(job="second"))
    made = job_of(watched.fleet.snapshot())
    assert (made.step_ns, made.overlap, made.exposed_ns, made.steps_done) == (None, None, None, 0)


def test_what_is_kept_is_bounded():
    watched = Watched()
    for number in range(MAX_JOBS + 5):
        watched.job(f"job{number}", steps=3, ranks=1)
        watched.seen.tell_end("", "broken", "", "exit status 1")
    assert len(watched.seen.all) <= MAX_JOBS + 1
    left = [job for job in watched.seen.all if job.job != watched.seen.present.job]
    assert sum(bool(job.steps) for job in left) == WITH_STEPS
    assert all(job.step_ns is not None for job in left if job.job)
    watched.job("long", steps=KEPT_STEPS + 50, ranks=1)
    assert len(watched.seen.present.steps[0]) == KEPT_STEPS
