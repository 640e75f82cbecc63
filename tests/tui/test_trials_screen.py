"""Trials from the dashboard: the keys around them and what is drawn, on a simulated job."""

import re

import pytest
from textual.widgets import Input

from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.tui.tune.screen import TuneScreen
from overlaptop.wire import commands
from overlaptop.wire.commands import TRIAL, argument
from tests.fleet.builders import MS, info
from tests.trials.live_job import LiveJob

from .fakes import SIZES, opened, screen_text, shown
from .knobs import BUCKET

SIZE = (100, 30)


def job(**options):
    return LiveJob(knob=BUCKET, **options)


async def begin(pilot, *typed):
    """From any screen: ask for trials, type values in place of the usual ones, start."""
    await pilot.press("a", *(("ctrl+u", *typed) if typed else ()), "enter")
    await pilot.pause()


def told(app):
    return [notification.message for notification in app._notifications]


def until_over(app):
    for _ in range(5_000):
        app.read()
        if not app.dashboard.trials.running:
            return
    raise AssertionError(app.dashboard.trials.newest.trials.state.doing)


async def test_a_asks_for_values_and_starts_on_enter():
    session = job()
    async with opened(session, size=SIZES[2]) as (app, pilot):
        await pilot.press("a")
        await pilot.pause()
        assert "try bucket_cap_mb 3,6,12,50,100" in screen_text(app)
        await pilot.press("enter")
        text = await shown(app, pilot)
        assert "trials of bucket_cap_mb against 25 MiB" in text
        assert "◆ trials" in text.splitlines()[0]
        until_over(app)
        text = " ".join((await shown(app, pilot)).split())
        assert "◆ trials" not in text
        assert "bucket_cap_mb 50 MiB: a step 3.6 % shorter than with 25 MiB" in text
        assert "to make it permanent: DistributedDataParallel(model, bucket_cap_mb=50)" in text


@pytest.mark.parametrize(("key", "screen"), [("1", OverviewScreen), ("u", TuneScreen)])
async def test_escape_leads_back_to_where_a_was_pressed(key, screen):
    async with opened(job(), size=SIZE) as (app, pilot):
        await pilot.press(key, "a", "escape")
        assert isinstance(app.screen, screen)
        await begin(pilot, *"60")
        until_over(app)
        await pilot.press("escape", "a", "escape")
        assert "trials of bucket_cap_mb" in await shown(app, pilot), "the result, with its key to keep it"
        await pilot.press("escape")
        assert isinstance(app.screen, screen)


async def test_what_cannot_be_tried_is_said_at_the_prompt():
    session = job()
    async with opened(session, size=SIZE) as (app, pilot):
        await begin(pilot, "0")
        assert "bucket_cap_mb must be from 1 to 10000, not 0" in screen_text(app)
        await pilot.press("escape")
        await begin(pilot, "x")
        assert "type whole numbers with commas between them" in screen_text(app)
        assert session.sent == []


async def test_typed_values_are_tried_and_k_sets_the_best():
    session = job()
    async with opened(session, size=SIZE) as (app, pilot):
        await begin(pilot, *"60,400")
        until_over(app)
        text = await shown(app, pilot)
        assert re.search(r"60 MiB .* 7  best", text)
        assert re.search(r"400 MiB .* longer", text)
        assert {command.name for command in session.sent} == {TRIAL}
        assert "k keep the best" in text.splitlines()[-1]
        await pilot.press("k")
        for _ in range(40):
            app.read()
        assert session.value == 60
        session.job_key = "job-2"
        text = await shown(app, pilot)
        assert "of an earlier job" in text
        assert "keep the best" not in text.splitlines()[-1]


@pytest.mark.parametrize(
    ("key", "words"), [("s", "stopped"), ("right_square_bracket", "a value was changed by hand")]
)
async def test_trials_go_on_off_the_screen_until_they_are_stopped(key, words):
    async with opened(job(), size=SIZE) as (app, pilot):
        await begin(pilot)
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)
        for other in ("x", "A", "a"):
            await pilot.press("1", other)
            assert told(app) == ["trials run: wait, or stop them with s"]  # for some seconds only
            assert "trials of bucket_cap_mb" in await shown(app, pilot)
        assert not app.screen.query(Input)
        assert "s stop" in (await shown(app, pilot)).splitlines()[-1]
        text = await shown(app, pilot, key)
        assert words in text
        assert "s stop" not in text.splitlines()[-1]


async def test_capital_a_tries_the_value_before_the_change():
    session = job()
    async with opened(session, size=SIZE) as (app, pilot):
        await pilot.press("A")
        assert told(app) == ["nothing was changed: there is no value before to try"]
        session.send(commands.make_setting(session.knob, 60))
        for _ in range(40):
            app.read()
        assert "trials of bucket_cap_mb against 60 MiB" in await shown(app, pilot, "A")
        until_over(app)
        assert re.search(r"25 MiB .* longer", text := await shown(app, pilot))
        assert "bucket_cap_mb 60 MiB: no value tried is shorter" in text


async def test_x_asks_first_and_then_delays_each_rank():
    session = LiveJob(lambda _value: 50.0, critical={1: 1.0}, noise=0.0005)
    async with opened(session, size=SIZE) as (app, pilot):
        for _ in range(20):
            app.read()
        assert "delay 2 ranks in turn by 1.00 ms a step? costs the job" in await shown(app, pilot, "x")
        await pilot.press("escape")
        assert session.sent == []
        await pilot.press("x", "y")
        await pilot.pause()
        until_over(app)
        text = await shown(app, pilot)
        assert re.search(r"rank 0 .* slack", text)
        assert re.search(r"rank 1 .* critical", text)
        assert {argument(each, "delay_ns") // MS for each in session.sent} <= {0, 1}
        assert "critical" in await shown(app, pilot, "1")
        session.fleet.apply(info(0, control_allowed=False))
        await shown(app, pilot)
        await pilot.press("x")
        assert told(app) == ["start the job with --control or attach(control=True) to allow trials"]
