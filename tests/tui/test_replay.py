"""A recording on the screen."""

import pytest

from overlaptop.fleet.replay_session import ReplaySession
from overlaptop.recording.reader import open_recording
from overlaptop.tui.model import dashboard
from tests.fleet.builders import Clock
from tests.recording.played import PlayedJob, played

from .fakes import opened, shown


@pytest.fixture
def session(tmp_path):
    """60 s of a job, and a clock of ours that stands still."""
    path = tmp_path / "run.mcap"
    played(Clock(), path, 60, after_s=1.0)
    return ReplaySession(open_recording(path), monotonic_s=Clock().monotonic_s)


def at_s(session):
    return round((session.at_ns - session.recording.first_ns) / 1e9)


async def test_keys_move_pause_and_look_back_in_the_recording(session):
    async with opened(session, (160, 200), readonly=True) as (app, pilot):
        text = await shown(app, pilot)
        assert "recorded " in text
        assert "● live" not in text
        await shown(app, pilot, ")", ")")
        assert at_s(session) == 20
        assert "rank 1 is late" in await shown(app, pilot, ")")
        await shown(app, pilot, "(", "(")
        assert at_s(session) == 10
        assert "of the recording" in await shown(app, pilot, "space")
        assert session.paused
        for keys in ((")", ")"), ("N",)):
            assert "■ paused" in await shown(app, pilot, *keys)
            assert session.paused
        assert "recorded " in await shown(app, pilot, "space")
        assert not session.paused
        assert "past step" in await shown(app, pilot, "L")
        assert session.paused
        text = await shown(app, pilot, "?")
        assert "10 s back in the recording" in text
        for never in ("larger bucket size", "begin or end a recording"):
            assert never not in text


async def test_time_goes_on_from_where_no_event_was_found(tmp_path, monkeypatch):
    monkeypatch.setattr(dashboard, "MOST_SOUGHT_NS", 20_000_000_000)
    path, ours = tmp_path / "run.mcap", Clock()
    job = PlayedJob(Clock(), path)
    for number in range(50):
        job.step(number, after_s=1.0)
    job.recorder.end()
    session = ReplaySession(open_recording(path), monotonic_s=ours.monotonic_s)
    async with opened(session, readonly=True) as (app, pilot):
        await shown(app, pilot, "N")
        assert at_s(session) == 20
        ours.pass_s(10)
        await shown(app, pilot)
        assert at_s(session) == 30


async def test_a_search_that_takes_long_ends_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(dashboard, "MOST_SEARCH_S", 0.0)
    job = PlayedJob(Clock(), tmp_path / "run.mcap")
    for number in range(50):
        job.step(number, after_s=1.0)
    job.recorder.end()
    session = ReplaySession(open_recording(tmp_path / "run.mcap"), monotonic_s=Clock().monotonic_s)
    async with opened(session, readonly=True) as (app, pilot):
        await shown(app, pilot, "N")
        assert at_s(session) < 5


async def test_next_event_is_the_next_finding(tmp_path):
    path = tmp_path / "run.mcap"
    job = PlayedJob(Clock(), path, 4)
    for number in range(60):
        job.step(number, late=2)
    job.recorder.end()
    session = ReplaySession(open_recording(path), monotonic_s=Clock().monotonic_s)
    async with opened(session, readonly=True) as (app, pilot):
        await shown(app, pilot, "N")
        assert 0 < at_s(session) < 20
        assert "rank 2" in await shown(app, pilot, "f")
