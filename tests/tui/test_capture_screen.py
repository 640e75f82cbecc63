"""The capture screen, driven through Textual's pilot over a scripted job."""

from __future__ import annotations

import json
import sys

import pytest
from msgspec.structs import replace

from overlaptop.tui.capture.screen import CaptureScreen
from overlaptop.tui.model import profiler_reference as truth
from overlaptop.tui.model.profiler_reference import RankReference, parse, run
from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.wire import commands
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import T0, info
from tests.fleet.fakes import FakeSession

from .clusters import Cluster
from .fakes import SIZES, opened, running_job, shown
from .knobs import controlled_job, report


def analysis_says(monkeypatch, *records):
    """Whatever the folder: these records, in a process of its own."""
    output = "\n".join(map(json.dumps, records))
    command = [sys.executable, "-c", "import sys; print(sys.argv[1])", output]
    monkeypatch.setattr(truth, "command_for", lambda _folder: command)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of traces, and an analysis that says what an oracle would."""
    analysis_says(
        monkeypatch,
        {"type": "step", "rank": 0, "comm_ns": 5_000_000, "hidden_ns": 4_000_000, "exposed_ns": 1_000_000},
        {"type": "step", "rank": 0, "comm_ns": 3_000_000, "hidden_ns": 1_000_000, "exposed_ns": 2_000_000},
        {"type": "step", "rank": 1, "comm_ns": 8_000_000, "hidden_ns": 4_000_000, "exposed_ns": 4_000_000},
        {"type": "rank", "rank": 1, "comm_ns": 90_000_000, "hidden_ns": 0, "exposed_ns": 90_000_000},
    )  # fmt: skip
    return tmp_path


def lost_host():
    """Of two hosts whose ranks would obey one is lost."""
    cluster = Cluster("gpu-a", "gpu-b")
    cluster.live()
    for number, host in enumerate(cluster.hosts):
        for rank in (2 * number, 2 * number + 1):
            host.hub.say(info(rank, control_allowed=True, host=host.name))
    cluster.session.tick()
    cluster.host("gpu-b").cut()
    return cluster.session


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


async def test_c_asks_for_steps_and_sends_what_was_typed():
    session = controlled_job()
    async with opened(session, size=SIZES[2]) as (app, pilot):
        await ask(pilot)
        assert "steps to capture" not in await shown(app, pilot)
        await ask(pilot, "backspace", "1", "2")
        assert [commands.argument(command, "steps") for command in session.sent] == [5, 12]
        text = await shown(app, pilot)
        assert "capture (steps 12)" in text
        assert "● sent" in text
        assert "◌ agreed" in text


async def test_what_is_not_allowed_is_not_sent_and_the_prompt_says_why():
    session = controlled_job()
    async with opened(session, size=(100, 30)) as (app, pilot):
        for typed, words in (("500", "from 1 to 100"), ("0", "from 1 to 100"), ("x", "whole number")):
            await ask(pilot, "backspace", *typed)
            assert words in await shown(app, pilot)
            assert "steps to capture" not in await shown(app, pilot, "escape")
            assert isinstance(app.screen, CaptureScreen)
        assert session.sent == []
        session.no_line = "there is no connection to the job"
        await ask(pilot)
        assert "there is no connection to the job" in await shown(app, pilot)
        await pilot.press("escape", "escape")
        assert isinstance(app.screen, OverviewScreen)


@pytest.mark.parametrize("size", SIZES)
async def test_a_capture_is_followed_from_sent_to_the_profilers_own_overlap(size, folder):
    session = controlled_job()
    async with opened(session, size=size) as (app, pilot):
        await ask(pilot)
        (command,) = session.sent
        report(session, command, "accepted", ranks=(0,))
        assert "● sent" in await shown(app, pilot)
        report(session, command, "accepted", ranks=(1,))
        assert "● accepted" in await shown(app, pilot)
        for state, words in (("agreed", "● agreed on step 40"), ("recording", "● recording")):
            report(session, command, state, 40)
            assert words in await shown(app, pilot)
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


async def test_a_refusal_and_a_rank_that_ends_in_the_middle_are_said():
    session = controlled_job()
    async with opened(session, size=(100, 30)) as (app, pilot):
        await ask(pilot)
        report(session, session.sent[0], "refused", None, "start the job with --control")
        assert "not made: rank 0 refused: start the job with --control" in await shown(app, pilot)
        await ask(pilot)
        report(session, session.sent[1], "recording", 40)
        session.say(RankEnd(1, T0, clean=False))
        assert "not made: rank 1 ended before it was done" in await shown(app, pilot)


async def test_another_dashboards_capture_is_seen_and_read_here_as_well(folder):
    session = controlled_job()
    command = replace(commands.make("capture", {"steps": 3}), by="eve@elsewhere\x1b[2J", at_ns=T0)
    session.say(command)
    written(session, command, folder)
    async with opened(session, size=(160, 45)) as (app, pilot):
        await shown(app, pilot)
        assert app.dashboard.captures.references == {}  # nobody here has asked for it
        await pilot.press("5")
        text, _ = await rows_of(app, pilot)
    assert "asked by eve@elsewhere?[2J" in text
    assert "62.5 %" in text


async def test_a_capture_that_came_in_the_way_of_another_does_not_hide_it():
    session = controlled_job()
    first = commands.make("capture", {"steps": 3})
    session.say(first)
    report(session, first, "recording", 40)
    async with opened(session, size=(160, 45)) as (app, pilot):
        await ask(pilot)
        why = "another command is under way: capture (steps 3)"
        report(session, session.sent[0], "busy", None, why)
        text = await shown(app, pilot)
        assert "capture (steps 3)   at" in text
        (told,) = app._notifications
        assert told.message.startswith("capture (steps 5) was not made: rank 0 is busy")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (running_job, "start the job with --control"),
        (lambda: Cluster("gpu-a", "gpu-b").live(), "start the job with --control"),
        (lost_host, "gpu-b cannot be reached"),
    ],
)
async def test_no_steps_are_asked_for_where_the_ranks_would_refuse(made, reason):
    session = made()
    async with opened(session, size=(100, 30)) as (app, pilot):
        await shown(app, pilot)
        await pilot.press("c")
        assert not isinstance(app.screen, CaptureScreen)
        assert reason in str([each.message for each in app._notifications])
        assert session.tick().commands == ()
    async with opened(FakeSession(job_key=None), size=(100, 30)) as (app, pilot):
        await pilot.press("c", "5")
        assert not isinstance(app.screen, CaptureScreen)


async def test_an_analysis_that_fails_is_said_in_its_own_last_line():
    fails = "import sys; sys.exit('overlaptop: rank0.json.gz: no GPU activity in it')"
    found = await run([sys.executable, "-c", fails])
    assert found.note == "the traces cannot be analysed: rank0.json.gz: no GPU activity in it"
    assert (await run(["/no/such/program"])).note.startswith("the traces cannot be analysed")
    assert (await run([sys.executable, "-c", ""])).note == "the analysis names no rank"


def test_only_whole_step_records_count():
    good = {"type": "step", "rank": 3, "comm_ns": 0, "hidden_ns": 0, "exposed_ns": 0}
    bad = [
        "not json", "[" * 100_000, "[]", {**good, "type": "rank"}, {**good, "rank": -1},
        {**good, "rank": True}, {**good, "comm_ns": "1"}, {**good, "hidden_ns": None},
        {**good, "exposed_ns": -1},
    ]  # fmt: skip
    lines = [line if isinstance(line, str) else json.dumps(line) for line in bad]
    assert parse("\n".join(lines)) == {}
    found = parse("\n".join([*lines, json.dumps(good)]))
    assert found == {3: RankReference(0, 0, 0)}
    assert found[3].overlap is None
    bound = parse("\n".join(map(json.dumps, (good, {**good, "compute_exact": False}, good))))
    assert bound == {3: RankReference(0, 0, 0, exact=False)}
