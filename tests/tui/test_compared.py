"""What is compared on the overview, and how often it is worked out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from overlaptop.fleet.snapshot import HubState
from overlaptop.stats.comparison import OTHER_WORK, Comparison, compare_steps
from overlaptop.tui.state import ViewState
from overlaptop.tui.tune.change_panel import panel_lines
from overlaptop.tui.tune.compared import EVERY_S, Comparing, what_differs
from overlaptop.tui.workloads.earlier import EarlierJob, Setting
from tests.fleet.builders import info, status, step, welcome
from tests.fleet.fakes import FakeSession, record

from .fakes import opened, running_job, shown
from .knobs import ACCUMULATION, by_another, controlled_job, obey


def steps_of(rank, first, count, compute=60.0):
    return tuple(
        step(rank, number, compute=compute * (1 + (number % 7) / 1000))
        for number in range(first, first + count)
    )


EARLIER = EarlierJob("job-0", "ddp --bucket-cap-mb 50", steps={0: steps_of(0, 0, 100, compute=90.0)})


def take(comparing, session, earlier=None):
    """Beside an earlier job that was asked for the same, unless the session's was changed."""
    return comparing.take(session.tick(), earlier, earlier)


def test_without_a_change_or_a_job_before_there_is_nothing_to_compare():
    session = controlled_job()
    comparing = Comparing(session.clock.monotonic_s)
    assert take(comparing, session) is None
    assert take(comparing, session, replace(EARLIER, job="job-1")) is None  # it is this one
    assert take(comparing, FakeSession(hub_state=HubState.WAITING, job_key=None), EARLIER) is None
    search = by_another(session, 50, search="20261121-210000-abcdef")
    obey(session, search, 20, "25", "50")  # a search's is not compared as a person's
    assert take(comparing, session) is None


def test_the_job_before_is_compared_until_there_is_a_change():
    session = controlled_job()
    comparing = Comparing(session.clock.monotonic_s)
    found = take(comparing, session, EARLIER)
    assert found.title == "beside the job before: ddp --bucket-cap-mb 50"
    assert (found.was, found.becomes, found.command) == ("before", "now", "")
    named = Comparing(session.clock.monotonic_s).take(session.tick(), EARLIER, job_asked("ddp"))
    assert (named.was, named.becomes) == ("--bucket-cap-mb 50", "the defaults")
    assert "shorter" in found.quantities[0].verdict
    command = by_another(session, 50)
    obey(session, command, 20, "25", "50")
    found = take(comparing, session, EARLIER)
    assert (found.was, found.becomes, found.command) == ("25 MiB", "50 MiB", command.id)
    assert [each.name for each in found.quantities] == [
        "step_ns", "overlap", "exposed_ns", "stall_ns", "collectives",
    ]  # fmt: skip


def job_asked(label, **knobs):
    settings = tuple(Setting(name, f"{value} MiB", False) for name, value in knobs.items())
    return EarlierJob("job", label, settings=settings)


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (job_asked("train.py"), job_asked("train.py"), None),
        (job_asked("train.py"), job_asked("other.py"), ("train.py", "other.py")),
        (
            job_asked("ddp --layers 2 --no-overlap"),
            job_asked("ddp --layers 2"),
            ("--no-overlap", "the defaults"),
        ),
        (
            job_asked("ddp --bucket-cap-mb 50", bucket_cap_mb=50),
            job_asked("ddp", bucket_cap_mb=25),
            ("bucket 50 MiB", "bucket 25 MiB"),
        ),
        (
            job_asked("ddp --hidden-size 1024 --sequence-length 4096"),
            job_asked("ddp"),
            ("--hidden-size 1024 --sequen…", "the defaults"),
        ),
    ],
)
def test_two_jobs_are_headed_by_what_differs(one, other, told):
    assert what_differs(one, other) == told


def test_two_jobs_whose_steps_do_other_work_are_not_called_faster():
    session = controlled_job(structs.replace(ACCUMULATION, changes_work=True))
    one, other = (job_asked("ddp", accumulation=value) for value in (8, 4))
    one = replace(one, steps=EARLIER.steps)
    found = Comparing(session.clock.monotonic_s).take(session.tick(), one, other)
    assert found.quantities[0].verdict == OTHER_WORK
    found = Comparing(session.clock.monotonic_s).take(session.tick(), one, one)
    assert "shorter" in found.quantities[0].verdict


@pytest.mark.parametrize("width", [78, 100, 160])
def test_long_heads_leave_the_verdicts_their_room(width):
    quantities = compare_steps(steps_of(0, 0, 100), steps_of(0, 0, 100, compute=50.0))
    told = Comparison("", "beside", "", "--hidden-size 1024 --sequen…", "the defaults", 1, quantities)
    state = ViewState(running_job(exact=False).tick(), compared=told)
    lines = panel_lines(state, width, 9)
    row = "".join(run.text for run in lines[2])
    assert "step time" in row
    assert "% shorter" in row
    assert ("% shorter (" in row) == (width >= 100)
    assert "…" not in row


def test_two_jobs_are_compared_anew_only_now_and_then():
    session = FakeSession(welcome(world_size=1), status(), info(0), *steps_of(0, 0, 50))
    comparing = Comparing(session.clock.monotonic_s)
    first = take(comparing, session, EARLIER)
    session.say(*steps_of(0, 50, 50))
    assert take(comparing, session, EARLIER) is first
    session.clock.pass_s(EVERY_S)
    later = take(comparing, session, EARLIER)
    assert later.quantities[0].after.steps == 100
    other = take(comparing, session, replace(EARLIER, job="job-00", label="fsdp"))
    assert other.title.endswith("fsdp")


async def test_the_overview_shows_the_job_before_beside_this_one():
    steps, slower = (
        [structs.replace(each, collectives=1234) for each in steps_of(0, 0, 100, compute)]
        for compute in (60.0, 90.0)
    )
    session = FakeSession(
        welcome(job="job-0"), status(), info(0), *slower, jobs=(record("job-0"), record("job-1"))
    )
    async with opened(session) as (app, pilot):
        app.read()
        session.job_key = "job-1"
        session.fleet.apply(welcome(job="job-1"))
        session.say(status(), info(0), *steps)
        text = await shown(app, pilot)
        assert "beside the job before: train.py" in text
        assert "before, 100 steps" in text
        assert "now, 100 steps" in text
        assert "% shorter (" in text
        assert "1,234 ±0" in text  # as a number is written
        assert "beside the job before" not in await shown(app, pilot, "d")
