"""A recording on the screen."""

from overlaptop.fleet.replay_session import ReplaySession
from overlaptop.recording.reader import open_recording
from overlaptop.tui.model import dashboard
from tests.fleet.builders import Clock
from tests.recording.played import played

from .fakes import opened, shown


def recorded(path, ours, **how):
    """A job of which a step a second was recorded, as `played`. ``ours``: the clock of the replay."""
    played(Clock(), path, 60, after_s=1.0, **how)
    return ReplaySession(open_recording(path), monotonic_s=ours.monotonic_s)


def at_s(session):
    return round((session.at_ns - session.recording.first_ns) / 1e9)


async def test_keys_move_pause_and_look_back_in_the_recording(tmp_path):
    session = recorded(tmp_path / "run.mcap", Clock())
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


async def test_next_event_is_the_next_finding(tmp_path):
    session = recorded(tmp_path / "run.mcap", Clock(), late=2, ranks=4)
    async with opened(session, readonly=True) as (app, pilot):
        await shown(app, pilot, "N")
        assert 0 < at_s(session) < 20
        assert "rank 2" in await shown(app, pilot, "f")


async def test_a_long_search_ends_and_time_goes_on_from_there(tmp_path, monkeypatch):
    monkeypatch.setattr(dashboard, "MOST_SEARCH_S", 0.0)
    ours = Clock()
    session = recorded(tmp_path / "run.mcap", ours, late=None)
    async with opened(session, readonly=True) as (app, pilot):
        await shown(app, pilot, "N")
        found_s = at_s(session)
        assert found_s < 5
        ours.pass_s(10)
        await shown(app, pilot)
        assert at_s(session) == found_s + 10
