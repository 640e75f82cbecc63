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

from .fakes import SIZES, opened, shown
from .knobs import controlled_job, report


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of traces, and an analysis that says what an oracle would."""
    steps = [
        {"type": "step", "rank": rank, "comm_ns": comm_ms * MS, "hidden_ns": hidden_ms * MS,
         "exposed_ns": (comm_ms - hidden_ms) * MS, "compute_exact": True}
        for rank, comm_ms, hidden_ms in ((0, 5, 4), (0, 3, 1), (1, 8, 4))
    ]  # fmt: skip
    records = [*steps, {"type": "rank", "rank": 1, "comm_ns": 90 * MS, "hidden_ns": 0}]
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
            assert "steps to capture" not in await shown(app, pilot, "escape")
        session.no_line = "there is no connection to the job"
        await ask(pilot)
        assert "there is no connection to the job" in await shown(app, pilot)
        await pilot.press("escape", "escape")
        assert isinstance(app.screen, OverviewScreen)
        session.no_line = ""
        await ask(pilot)
        await pilot.press("1", "c", "escape")
        assert isinstance(app.screen, CaptureScreen)  # it has a capture now
        await ask(pilot, "backspace", "1", "2")
        assert [commands.argument(command, "steps") for command in session.sent] == [5, 12]


@pytest.mark.parametrize("size", SIZES[::2])
async def test_capture_is_followed_from_sent_to_the_profiler_s_overlap(size, folder):
    session = controlled_job()
    async with opened(session, size=size) as (app, pilot):
        await ask(pilot)
        (command,) = session.sent
        report(session, command, "accepted", ranks=(0,))
        assert "● sent" in await shown(app, pilot)
        for state, words in (
            ("accepted", "accepted"),
            ("agreed", "agreed on step 40"),
            ("recording", "recording"),
        ):
            report(session, command, state, 40)
            assert f"● {words}" in await shown(app, pilot)
        await pilot.press("1")
        if size[1] >= 18:
            assert "capture (steps 5): recording" in await shown(app, pilot)
        await pilot.press("5")
        report(session, command, "written", 40, f"{folder}/rank0.json.gz", ranks=(0,))
        assert "● recording" in await shown(app, pilot)
        written(session, command, folder)
        text, rows = await rows_of(app, pilot)
    assert str(folder) in text.replace("\n", "").replace(" ", "")
    # Rank 0 hid 28 of 30 ms before, rank 1 24 of 30.
    assert [row[:7] for row in rows] == [
        ["0", "written", "93.3", "%", "62.5", "%", "+30.8"],
        ["1", "written", "80.0", "%", "50.0", "%", "+30.0"],
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


async def test_other_dashboard_s_capture_is_read_once_it_is_looked_at(folder):
    session = controlled_job()
    command = replace(commands.make("capture", {"steps": 3}), by="eve@elsewhere\x1b[2J", at_ns=T0)
    session.say(command)
    written(session, command, folder)
    async with opened(session, size=(160, 45)) as (app, pilot):
        await shown(app, pilot)
        assert app.dashboard.traces == {}  # nobody looks at it
        await pilot.press("5")
        text, _ = await rows_of(app, pilot)
    assert "asked by eve@elsewhere?[2J" in text
    assert "62.5 %" in text
