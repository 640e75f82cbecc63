"""``R``: a recording of the job on the screen."""

from unittest.mock import Mock

import pytest

from overlaptop.fleet.replay_session import ReplaySession
from overlaptop.recording.reader import open_recording
from tests.fleet.builders import Clock
from tests.recording.played import PlayedJob

from .fakes import opened, shown


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return PlayedJob(Clock(), None)


def said(app):
    return str([each.message for each in app._notifications])


def go_on(app, job, steps):
    """Steps that only the dashboard reads."""
    for number in steps:
        job.make(number)
        app.read()


@pytest.mark.parametrize("ends", ["R", "other job"])
async def test_r_or_another_job_ends_a_recording(job, tmp_path, ends):
    async with opened(job.session, recorder=job.recorder) as (app, pilot):
        go_on(app, job, range(20))
        assert "● rec" not in await shown(app, pilot)
        text = await shown(app, pilot, "R")
        assert "● rec " in text
        assert "recording to job-1-" in said(app)
        go_on(app, job, range(20, 40))
        assert "KiB" in (await shown(app, pilot)).partition("● rec ")[2].splitlines()[0]
        if ends == "R":
            await pilot.press("R")
        else:
            app.dashboard.select_job("job-2")
        assert "● rec" not in await shown(app, pilot)
    (path,) = tmp_path.glob("job-1-*.mcap")
    assert ReplaySession(open_recording(path)).seek(job.clock()).totals.step == 39


async def test_failed_write_ends_the_recording_and_the_screen_goes_on(job, monkeypatch):
    async with opened(job.session, recorder=job.recorder) as (app, pilot):
        await shown(app, pilot, "R")
        no_space = OSError(28, "No space left on device")
        monkeypatch.setattr(job.recorder, "write", Mock(side_effect=no_space))
        assert "● rec" not in await shown(app, pilot)
        assert "the recording ended: no space left on device" in said(app)
        monkeypatch.undo()
        go_on(app, job, range(20))
        assert app.dashboard.latest.totals.step == 19
        monkeypatch.setattr(job.recorder, "begin", Mock(side_effect=PermissionError(13, "Not allowed")))
        assert "● rec" not in await shown(app, pilot, "R")
        assert "not allowed" in said(app)
