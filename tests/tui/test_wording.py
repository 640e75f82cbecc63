"""What the overview says is so: of one step and one moment, and of the rank that it is about."""

from __future__ import annotations

from msgspec.structs import replace

from overlaptop.fleet.snapshot import LinkState
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import MS, T0, S, detail, status, step

from .fakes import WIDE, app_of, opened, running_job, shown
from .knobs import BUCKET, controlled_job, tell, with_value


async def test_rows_totals_and_the_timeline_are_of_one_step():
    session = running_job()
    app = app_of(session)

    def exposed_of_0(text):
        row = next(line for line in text.splitlines() if line.split()[:2] == ["▸", "0"])
        return row[row.index("%") :].split()[1]

    async with app.run_test(size=WIDE) as pilot:
        await shown(app, pilot)
        for rank in range(4):
            session.say(step(rank, 40, comm=54, hidden=0))
        session.say(detail(0, 40))
        text = await shown(app, pilot)
        assert "rank 0  step 40" in text
        assert exposed_of_0(text) == "54.0"
        session.clock.pass_s(0.5)
        for rank in range(4):
            session.say(step(rank, 41, comm=30, hidden=30))
        session.say(detail(0, 41))
        text = await shown(app, pilot)
        assert "rank 0  step 40" in text
        assert exposed_of_0(text) == "54.0"
        assert "exposed 54.0 ms" in text
        assert "step 40, mean of 4 ranks" in text
        session.clock.pass_s(0.6)
        text = await shown(app, pilot)
        assert "rank 0  step 41" in text
        assert "step 41, mean of 4 ranks" in text


async def test_rows_are_not_held_at_a_timeline_of_long_ago():
    session = running_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        for rank in range(4):
            session.say(*(step(rank, number) for number in range(40, 200)))
        assert "step 199, mean of 4 ranks" in await shown(app, pilot)


async def test_a_rank_that_is_launch_bound_is_named():
    session = running_job(2)
    async with opened(session) as (app, pilot):
        session.say(step(0, 40, launch_lead_ns=40 * MS), step(1, 40, launch_lead_ns=0, idle=20))
        session.say(detail(0, 40))
        assert "launch-bound on rank 1" in await shown(app, pilot)


async def test_the_header_and_the_notices_name_a_silent_rank_in_red_and_take_it_back():
    session = running_job()
    async with opened(session) as (app, pilot):
        assert "● live" in await shown(app, pilot)
        session.clock.pass_s(70)
        session.say(status(silent=(2,)))
        text = await shown(app, pilot)
        assert "● rank 2 silent for 1 m 10 s" in text
        assert "● live" not in text
        [run] = [r for r in app.screen.query_one(JobHeader)._lines[0] if "silent" in r.text]
        assert run.style.fg == "error"
        assert text.count("○ silent since") == 1
        assert text.count("○ no step since") == 3
        text = await shown(app, pilot, "n")
        assert "rank 2 sent nothing since" in text
        assert "nothing is wrong" not in text
        await pilot.press("escape")
        session.say(status(), *(step(rank, 40) for rank in range(4)))
        assert "● live" in await shown(app, pilot)


async def test_after_a_step_in_which_the_job_stood_still_scale_and_unit_stay_with_the_usual_one():
    session = running_job()
    async with opened(session) as (app, pilot):
        usual = next(line for line in (await shown(app, pilot)).splitlines() if "exposed ms" in line)
        for rank in range(4):
            session.say(step(rank, 40, idle=70_000), step(rank, 41, start_ns=T0 + 80 * S))
        session.say(replace(detail(0, 41), start_ns=T0 + 80 * S))
        text = await shown(app, pilot)
        assert next(line for line in text.splitlines() if "exposed ms" in line) == usual


async def test_the_row_and_the_header_say_which_rank_failed_and_why():
    session = running_job()
    async with opened(session) as (app, pilot):
        session.say(RankEnd(1, T0 + 1, True, "ValueError: boom"))
        text = await shown(app, pilot)
        assert "● rank 1 failed" in text
        assert "rank 1 failed: ValueError: boom" in text
        assert "■ failed: ValueError: boom" in text
        session.say(*(RankEnd(rank, T0 + S, False) for rank in (0, 2, 3)))
        session.fleet.set_link(LinkState.ENDED, "waiting for it to start again")
        text = await shown(app, pilot)
        assert "■ ended since" in text
        assert "rank 1 failed: ValueError: boom; 3 other ranks ended badly after it" in text
        assert text.count("■ died after rank 1") == 3


async def test_a_picture_that_is_held_still_is_of_one_moment_and_goes_on_when_a_change_is_asked_for():
    session = controlled_job()
    async with opened(session) as (app, pilot):
        assert "bucket 25 MiB" in await shown(app, pilot)
        await pilot.press("space")
        tell(session, with_value(BUCKET, "50"))
        text = await shown(app, pilot)
        assert "paused" in text
        assert "bucket 25 MiB" in text
        text = await shown(app, pilot, "right_square_bracket")
        assert "paused" not in text
        assert "bucket 50 →" in text
