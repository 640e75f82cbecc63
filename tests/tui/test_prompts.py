"""Keys in bursts, and the questions that come before the job is changed, over scripted jobs."""

import asyncio

import pytest
from textual import events
from textual.keys import _character_to_key

from overlaptop.launch.request import LaunchRequest
from overlaptop.tui.capture.screen import CaptureScreen
from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.tui.rank.screen import RankScreen
from overlaptop.tui.trials.screen import TrialsScreen
from overlaptop.tui.tune.screen import TuneScreen

from .fakes import WIDE, app_of, opened, running_job, screen_text, shown, table_ranks
from .knobs import BUCKET, controlled_job, with_value
from .launchers import FakeLauncher, started_here

NAMED = {"\r": "enter", "\x1b": "escape"}


def press(app, character):
    app.post_message(events.Key(NAMED.get(character) or _character_to_key(character), character))


async def burst(app, pilot, text):
    """All these keys wait before the first is looked at, as where a terminal sends them at once."""
    for character in text:
        press(app, character)
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


async def test_text_enter_and_the_next_key_may_come_at_once():
    launcher = FakeLauncher()
    async with opened(running_job(), launcher=launcher) as (app, pilot):
        await burst(app, pilot, "/0-1\rs")
        await shown(app, pilot)
        assert app.screen.prompt is None
        assert app.dashboard.state.filter.words == "0-1"
        assert app.dashboard.state.sort_key == "overlap"
        assert set(table_ranks(app)) == {0, 1}
        await burst(app, pilot, "/3\x1b2")
        assert app.dashboard.state.filter.words == ""
        assert isinstance(app.screen, RankScreen)
        await burst(app, pilot, "w--seed 7\r")
        assert launcher.requests == [LaunchRequest("ddp", ("--seed", "7"))]


@pytest.mark.parametrize(
    ("keys", "screen", "words"),
    [
        ("/foo bar<", OverviewScreen, "foo bar<"),
        ("ub7", TuneScreen, "7"),
        ("c q[a ", CaptureScreen, " q[a "),
        ("a1,9q", TrialsScreen, "1,9q"),
    ],
)
async def test_keys_right_behind_the_key_of_a_prompt_go_to_it(keys, screen, words):
    session = controlled_job()
    async with opened(session) as (app, pilot):
        await burst(app, pilot, keys)
        assert isinstance(app.screen, screen)
        assert app.screen.prompt.words == words
        assert app.dashboard.state.paused_at_ns is None
        assert session.sent == []


async def test_a_prompt_keeps_its_keys_after_a_click_elsewhere():
    async with opened(running_job()) as (app, pilot):
        await pilot.press("slash")
        await pilot.click(offset=(20, 0))
        await burst(app, pilot, "1q")
        assert app.is_running
        assert app.screen.prompt.words == "1q"


def app_with_own_job():
    """The dashboard of a job that was started from here."""
    session = controlled_job()
    return app_of(session, launcher=started_here(session))


@pytest.mark.parametrize("yes", ["y", "ctrl+c"])
async def test_q_asks_where_it_ends_a_job_and_ctrl_c_does_not(yes):
    app = app_with_own_job()
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("q", "escape")
        await pilot.pause()
        assert app.is_running
        await pilot.press("q")
        await pilot.pause()
        assert "quit? ddp, started here, ends   y: yes   esc: no" in screen_text(app)
        await pilot.press(yes)
        await pilot.pause()
    assert not app.is_running


@pytest.mark.parametrize("key", list("wq/bacx"))
async def test_the_dashboard_can_end_while_a_prompt_opens(key):
    for turns in range(1, 6):
        app = app_with_own_job()
        async with app.run_test(size=WIDE):
            press(app, key)
            for _ in range(turns):  # of the event loop
                await asyncio.sleep(0)


@pytest.mark.parametrize("keys", ["[[", "ur"])
async def test_a_change_by_keys_can_be_taken_back_before_it_is_sent(keys):
    session = controlled_job(with_value(BUCKET, "100"))
    async with opened(session, size=(60, 20)) as (app, pilot):
        await burst(app, pilot, keys)
        assert "esc takes it back" in " ".join((await shown(app, pilot)).split())
        await shown(app, pilot, rest_s=1.0)
        assert session.sent == []
        top = app.screen
        assert "takes it back" not in await shown(app, pilot, "escape", rest_s=60)
        assert session.sent == []
        assert app.screen is top
