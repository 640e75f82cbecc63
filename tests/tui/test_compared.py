"""What is compared on the overview, and how often it is worked out."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from overlaptop.tui.model.compared import EVERY_S, BeforeAfter, Comparing
from overlaptop.tui.model.earlier import EarlierJob, JobFigures, JobsSeen
from overlaptop.tui.model.state import ViewState
from overlaptop.tui.tune.change_panel import panel_lines
from tests.fleet.builders import MS, info, status, step, welcome
from tests.fleet.fakes import FakeSession, record

from .fakes import opened, running_job, shown
from .knobs import ACCUMULATION, by_another, controlled_job, obey


def steps_of(rank, first, count, compute=60.0):
    return tuple(
        step(rank, number, compute=compute * (1 + (number % 7) / 1000))
        for number in range(first, first + count)
    )


def one_rank(job="job-1"):
    return FakeSession(
        welcome(job=job, world_size=1), status(), info(0), jobs=(record("job-0"), record("job-1"))
    )


def seen_one_after_the_other(first, second, seconds=60.0):
    """A job's steps, and then those of another one of the same script."""
    seen = JobsSeen()
    for job, compute in ((first, 90.0), (second, seconds)):
        session = one_rank(job)
        session.say(*steps_of(0, 0, 100, compute))
        snapshot = session.tick()
        seen.see(snapshot, record(job))
    return seen, snapshot


def test_a_job_is_compared_with_the_one_before():
    seen, snapshot = seen_one_after_the_other("job-0", "job-1")
    found = Comparing(lambda: 0.0).take(snapshot, seen)
    assert found.title == "beside the job before: train.py"
    assert (found.old, found.new, found.of_change) == ("before", "now", False)
    assert (found.before.steps_done, found.after.steps_done) == (100, 100)
    assert found.before.figures.step_ns > found.after.figures.step_ns


def test_steps_before_a_change_are_compared_with_those_after():
    session, seen = controlled_job(), JobsSeen()
    seen.see(session.tick())
    command = by_another(session, 50)
    obey(session, command, 40, "25", "50")
    session.say(*(each for rank in (0, 1) for each in steps_of(rank, 40, 30)))
    seen.see(session.tick())
    found = Comparing(session.clock.monotonic_s).take(session.tick(), seen)
    assert found.title == "bucket 25 MiB → 50 MiB at step 40"
    assert (found.old, found.new, found.of_change) == ("25 MiB", "50 MiB", True)


def test_jobs_that_were_asked_for_are_headed_by_what_was_asked():
    seen, snapshot = seen_one_after_the_other("job-0", "job-1")
    for job, label in (("job-0", "ddp"), ("job-1", "ddp --layers 2 --hidden-size 1024")):
        seen.describe(job, label)
    found = Comparing(lambda: 0.0).take(snapshot, seen)
    assert (found.old, found.new) == ("ddp", "ddp --layers 2 --hidden-siz…")


BEFORE = EarlierJob("job", "", figures=JobFigures(47.6 * MS, 0.5, 10.0 * MS), steps_done=40)
AFTER = replace(BEFORE, figures=JobFigures(46.12 * MS, 0.562, None), since=40, steps_done=1_200)


def panel(width, height=9, **changes):
    title = "bucket 25 MiB → 50 MiB at step 40"
    told = BeforeAfter(title, "25 MiB", "50 MiB", BEFORE, AFTER, same_work=True)
    state = ViewState(running_job(exact=True).tick(), compared=replace(told, **changes))
    return ["".join(run.text for run in line).rstrip() for line in panel_lines(state, width, height)]


def test_a_narrow_panel_is_one_line():
    (line,) = panel(60, 1)
    assert line.startswith(" 25 MiB → 50 MiB  step time 47.6 ms → 46.1 ms -3.1 %")


def test_steps_that_do_other_work_are_not_called_faster():
    assert panel(100, same_work=False)[2].split()[-2:] == ["other", "work"]


def test_a_knob_that_changes_the_work_says_so():
    knob = structs.replace(ACCUMULATION, changes_work=True)
    session, seen = controlled_job(knob), JobsSeen()
    seen.see(session.tick())
    obey(session, by_another(session, 8, knob=knob), 40, "4", "8", knob=knob)
    session.say(*(each for rank in (0, 1) for each in steps_of(rank, 40, 30)))
    seen.see(session.tick())
    assert not Comparing(session.clock.monotonic_s).take(session.tick(), seen).same_work


def test_two_jobs_are_compared_anew_only_now_and_then():
    seen, snapshot = seen_one_after_the_other("job-0", "job-1")
    now_s = [0.0]
    comparing = Comparing(lambda: now_s[0])
    first = comparing.take(snapshot, seen)
    assert comparing.take(snapshot, seen) is first
    now_s[0] += EVERY_S
    assert comparing.take(snapshot, seen) is not first


async def test_the_overview_shows_the_job_before_beside_this_one():
    steps, slower = (steps_of(0, 0, 100, compute) for compute in (60.0, 90.0))
    session = one_rank("job-0")
    session.say(*slower)
    async with opened(session) as (app, pilot):
        app.read()
        session.job_key = "job-1"
        session.fleet.apply(welcome(job="job-1"))
        session.say(status(), info(0), *steps)
        text = await shown(app, pilot)
        assert "beside the job before: train.py" in text
        assert "before, 100 steps" in text
        assert "now, 100 steps" in text
        assert "beside the job before" not in await shown(app, pilot, "d")
