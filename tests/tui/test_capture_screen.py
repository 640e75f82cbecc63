"""The capture screen, driven through Textual's pilot over a scripted job."""

import json
import sys

import pytest
from msgspec.structs import replace

from overlaptop.tui.capture.screen import CaptureScreen
from overlaptop.tui.model import captures
from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.wire import commands
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import MS, T0

from .fakes import opened, shown
from .knobs import controlled_job, report


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of traces, and an analysis that says what an oracle would."""
    parts_ms = ((0, 5, 4), (0, 3, 1), (1, 8, 4))
    records = [
        {
            "type": "step",
            "rank": rank,
            "comm_ns": comm * MS,
            "hidden_ns": hidden * MS,
            "compute_exact": True,
        }
        for rank, comm, hidden in parts_ms
    ]
    records.append({"type": "rank", "rank": 1, "comm_ns": 90 * MS, "hidden_ns": 0})
    command = [sys.executable, "-c", "import sys; print(sys.argv[1])", "\n".join(map(json.dumps, records))]
    monkeypatch.setattr(captures, "command_for", lambda _folder: command)
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json.gz").touch()
    return tmp_path


def written(session, command, folder):
    """Both ranks have written their traces there."""
    for rank in (0, 1):
        report(session, command, "written", 40, f"{folder}/rank{rank}.json.gz", ranks=(rank,))


async def rows_of(app, pilot):
    """The ranks' rows, once the traces have been read."""
    await shown(app, pilot)
    await app.workers.wait_for_complete()
    text = await shown(app, pilot)
    return text, [line.split() for line in text.splitlines() if " written " in line and "●" not in line]


async def ask(pilot, *keys):
    await pilot.press("c")
    await pilot.pause()
    await pilot.press(*keys, "enter")
    await pilot.pause()


async def test_prompt_sends_the_typed_steps_or_says_why_not():
    session = controlled_job()
    async with opened(session, size=(100, 30)) as (app, pilot):
        for typed, words in (("500", "from 1 to 100"), ("x", "whole number")):
            await ask(pilot, "backspace", *typed)
            assert words in await shown(app, pilot)
            await pilot.press("escape")
        session.no_line = "there is no connection to the job"
        await ask(pilot)
        assert session.no_line in await shown(app, pilot)
        await pilot.press("escape", "escape")
        assert isinstance(app.screen, OverviewScreen)
        session.no_line = ""
        await ask(pilot)
        await pilot.press("1", "c", "escape")
        assert isinstance(app.screen, CaptureScreen)  # it has a capture now
        assert [commands.argument(command, "steps") for command in session.sent] == [5]


async def test_capture_is_followed_to_the_profiler_s_overlap(folder):
    session = controlled_job()
    command = replace(commands.make("capture", {"steps": 3}), by="eve@elsewhere\x1b[2J", at_ns=T0)
    async with opened(session) as (app, pilot):
        session.say(command)
        assert "● sent" in await shown(app, pilot, "5")
        for state in ("agreed", "recording"):
            report(session, command, state, 40)
            assert f"● {state} on step 40" in await shown(app, pilot)
        assert "capture (steps 3): recording" in await shown(app, pilot, "1")
        report(session, command, "written", 40, f"{folder}/rank0.json.gz", ranks=(0,))
        assert "● recording" in await shown(app, pilot, "5")
        await shown(app, pilot, "1")
        written(session, command, folder)
        await shown(app, pilot)
        assert app.dashboard.traces == {}  # nobody looks at it
        await pilot.press("5")
        text, rows = await rows_of(app, pilot)
    assert "asked by eve@elsewhere?[2J" in text
    assert str(folder) in text
    # Rank 0 hid 28 of 30 ms before, rank 1 24 of 30.
    assert rows == [
        ["0", "written", "93.3", "%", "62.5", "%", "+30.8", "points"],
        ["1", "written", "80.0", "%", "50.0", "%", "+30.0", "points"],
    ]


async def test_refusal_end_of_a_rank_and_a_busy_job_are_said():
    session = controlled_job()
    async with opened(session, size=(100, 30)) as (app, pilot):
        await ask(pilot)
        report(session, session.sent[0], "refused", None, "start the job with --control")
        assert "not made: rank 0 refused: start the job with --control" in await shown(app, pilot)
        await ask(pilot)
        report(session, session.sent[1], "recording", 40)
        session.say(RankEnd(1, T0, clean=False))
        assert "not made: rank 1 ended before it was done" in await shown(app, pilot)
        await ask(pilot)
        report(session, session.sent[2], "busy", None, "another command is under way", ranks=(0,))
        assert "not made: rank 1 ended before it was done" in await shown(app, pilot)


async def test_failed_analysis_says_its_last_line(folder, monkeypatch):
    session = controlled_job()
    fails = "import sys; sys.exit('overlaptop: rank0.json.gz: no GPU activity in it')"
    monkeypatch.setattr(captures, "command_for", lambda _folder: [sys.executable, "-c", fails])
    async with opened(session, size=(100, 30)) as (app, pilot):
        await ask(pilot)
        written(session, session.sent[0], folder)
        text, _ = await rows_of(app, pilot)
        assert "the traces cannot be analysed: rank0.json.gz: no GPU activity in it" in text
