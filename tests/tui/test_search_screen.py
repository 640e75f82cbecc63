"""The search from the dashboard: its view, and the keys around it, over a scripted search."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from msgspec import structs
from textual.widgets import Input

from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.tui.search.screen import SearchScreen, search_lines
from overlaptop.tui.tune.knob_editor import SETTLE_S, TAKE_BACK
from overlaptop.tuning import tuner
from overlaptop.tuning.search import BestValue, MeasuredValue, State
from overlaptop.tuning.state import Result, SearchState
from overlaptop.wire import commands
from tests.fleet.builders import MS

from .fakes import SIZES, fills, opened, screen_text, shown
from .knobs import ACCUMULATION, BUCKET, by_another, controlled_job, obey, turn_to

CODE = "DistributedDataParallel(model, bucket_cap_mb=100)"


def measured(value, ms, state, *, reach=0.3, exposed=2.0, steps=48):
    return MeasuredValue(
        value, state, steps // 12, steps, ms * MS, (ms - reach) * MS, (ms + reach) * MS,
        None if exposed is None else round(exposed * MS),
    )  # fmt: skip


UNDER_WAY = SearchState(
    knob=BUCKET, least=1, most=400, doing="round 3: measures 50 MiB, 7 of 12 steps", over=False, why="",
    failed=False, now=50, best=100, candidates=3,
    points=(
        measured(1, 52.1, State.ELIMINATED, reach=1.2, exposed=9.0, steps=12),
        measured(25, 47.6, State.EQUIVALENT),
        measured(50, 46.6, State.CANDIDATE),
        measured(100, 46.2, State.CANDIDATE),
        measured(400, 48.6, State.ELIMINATED, exposed=None, steps=24),
    ),
    windows=(), round=3, steps_spent=180, steps_to_go=420, seconds_to_go=20.4, result=None,
)  # fmt: skip
FOUND = replace(
    UNDER_WAY, over=True, now=None, doing="done", steps_to_go=0, seconds_to_go=None,
    result=Result(
        BestValue(100, 25, True, False, 0.029, 0.02, 0.038, 0.006), before_text="25",
        line="bucket_cap_mb 100 MiB: a step 2.9 % shorter than with 25", code=CODE,
    ),
)  # fmt: skip


class ScriptedTuner:
    """Has the states that a test gives it, and notes what is asked of it."""

    made: list[ScriptedTuner]
    state = UNDER_WAY

    def __init__(self, session, knob, least, most, *, keep):
        self.asked = (knob.name, least, most, keep)
        self.lease = commands.make_search(knob)
        self.over = self.stopped = False
        self.ticks = 0
        self.made.append(self)

    def tick(self, snapshot):
        self.ticks += 1

    def stop(self):
        self.stopped = True

    def end(self, state=FOUND):
        self.over, self.state = True, state


@pytest.fixture
def tuners(monkeypatch):
    """All searches that the dashboard begins."""
    made = []
    monkeypatch.setattr(ScriptedTuner, "made", made, raising=False)
    monkeypatch.setattr(tuner, "Tuner", ScriptedTuner)
    return made


async def begin(pilot, *typed):
    """From any screen: ask for a search, type a range in place of the usual one, start."""
    await pilot.press("a")
    await pilot.pause()
    await pilot.press(*typed, "enter")
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES)
async def test_a_asks_for_a_range_with_a_default_and_starts_on_enter(size, tuners):
    async with opened(controlled_job(), size=size) as (app, pilot):
        await pilot.press("a")
        await pilot.pause()
        text = screen_text(app)
        assert "The search measures values of one knob" in text
        assert " search bucket_cap_mb from:to 1:400 " in text
        assert "enter: start   esc: not now " in text.splitlines()[-1]  # below where it is narrow
        await pilot.press("enter")
        await pilot.pause()
        assert [each.asked for each in tuners] == [("bucket_cap_mb", 1, 400, True)]
        text = await shown(app, pilot)
        assert "search for the best bucket_cap_mb" in text
        assert "◆ searching" in text.splitlines()[0]
        assert tuners[0].ticks > 0


async def test_a_range_that_is_none_is_said_at_the_prompt_in_whole(tuners):
    async with opened(controlled_job(), size=(30, 12)) as (app, pilot):
        for typed, words in (
            ("25", "type the smallest and the largest value, as in 1:10000"),
            ("50:5", "the first of the two must be the smaller one, not 50:5"),
        ):
            await begin(pilot, *typed)
            assert words in " ".join(screen_text(app).split())
            await pilot.press("escape")
            await pilot.pause()
            assert not app.screen.query(Input)
    assert tuners == []


async def test_the_selected_knob_is_searched_in_its_own_range_unless_it_is_refused(tuners):
    async with opened(controlled_job(ACCUMULATION), size=(100, 30)) as (_, pilot):
        await begin(pilot)
        assert tuners[0].asked == ("accumulation", 1, 8, True)
    async with opened(controlled_job(structs.replace(BUCKET, refusal="compiled")), size=(100, 30)) as (
        app,
        pilot,
    ):
        text = await shown(app, pilot, "a")
        assert not app.screen.query(Input)
        assert "bucket_cap_mb cannot be changed: rank 0: compiled" in text


async def test_a_range_beyond_what_is_allowed_is_refused_at_the_prompt():
    async with opened(controlled_job(), size=(100, 30)) as (app, pilot):
        await begin(pilot, *"0:50")
        assert "bucket_cap_mb must be from 1 to 10000" in screen_text(app)
        assert app.dashboard.control.tuner is None


async def test_a_search_where_a_step_does_other_work_is_refused_at_the_prompt():
    knob = structs.replace(ACCUMULATION, changes_work=True)
    async with opened(controlled_job(knob), size=(100, 30)) as (app, pilot):
        await begin(pilot)
        page = " ".join(screen_text(app).split())
        assert "a step does another amount of work with another accumulation" in page
        assert app.dashboard.control.tuner is None


# What is drawn


def lines_of(state, size):
    lines, _ = search_lines(state, size[0], size[1] - 2, 0)
    assert len(lines) <= size[1] - 2
    return ["".join(run.text for run in line).rstrip() for line in lines]


@pytest.mark.parametrize("size", SIZES)
def test_the_view_has_the_curve_the_point_being_measured_and_the_table(size):
    lines = lines_of(replace(UNDER_WAY, caveat="within noise of 25 MiB"), size)
    text = "\n".join(lines)
    assert "round 3: measures 50 MiB, 7 of 12 steps" in text
    assert "180 steps spent" in text
    assert "◆" in text
    assert " ★ 100 MiB: shortest step so far, within noise of 25 MiB" in lines
    assert any("★ shortest step  " in line for line in lines)
    row = next(line for line in lines if "100 MiB" in line and "46.2" in line)
    assert row[row.index("100 MiB") :].split() == ["100", "MiB", "46.20", "0.30", "2.00", "ms", "48"]
    if size[0] >= 100:
        assert "at most 420 to go, 20.4 s" in text
        assert "eliminated" in text


def test_what_is_not_known_is_a_dash_in_the_table():
    point = replace(measured(25, 47.6, State.CANDIDATE, exposed=None), low_ns=0.0, high_ns=math.inf)
    row = next(line for line in lines_of(replace(UNDER_WAY, points=(point,)), SIZES[0]) if "47.60" in line)
    assert row[row.index("25 MiB") :].split() == ["25", "MiB", "47.60", "–", "–", "48"]


@pytest.mark.parametrize("size", SIZES)
def test_before_anything_is_measured_there_is_an_axis_without_a_scale_and_no_table(size):
    empty = replace(
        UNDER_WAY, points=(), now=25, best=None, steps_spent=1, steps_to_go=None, seconds_to_go=None
    )
    lines = lines_of(empty, size)
    text = "\n".join(lines)
    assert "1 step spent" in text
    assert any(line.endswith("400 MiB") for line in lines)
    assert "the first point comes with the first window" in text
    assert not [words for words in ("to go", "step ms", "µs", "0.0") if words in text]


@pytest.mark.parametrize("size", SIZES)
def test_the_axis_ends_where_all_is_alike_from_the_first_frame_on_and_says_so(size):
    first = replace(UNDER_WAY, points=(), now=25, best=None, alike_from=120, steps_to_go=None)
    later = replace(UNDER_WAY, points=UNDER_WAY.points[:4], alike_from=120)
    axes = [
        next(line for line in lines_of(state, size) if "120 MiB on: all alike" in line)[:60]
        for state in (first, later)
    ]
    assert axes[0] == axes[1]


@pytest.mark.parametrize("size", SIZES)
def test_at_the_end_the_result_the_value_that_the_job_has_and_the_line_of_code_are_there_in_whole(size):
    stopped = replace(FOUND, why="stopped", left="the job has 25 MiB again, as before the search")
    page = " ".join(" ".join(lines_of(stopped, size)).split())
    assert "bucket_cap_mb 100 MiB: a step 2.9 % shorter than with 25" in page
    assert "the job has 25 MiB again, as before the search" in page
    assert f"to make 100 MiB permanent: {CODE}" in page
    assert not [words for words in ("to go", "so far", "to keep it") if words in page]


@pytest.mark.parametrize("state", [UNDER_WAY, FOUND])
async def test_every_size_is_filled_in_ascii_too(state, tuners, monkeypatch):
    monkeypatch.setattr(ScriptedTuner, "state", state)
    async with opened(controlled_job(), ascii=True, size=SIZES[0]) as (app, pilot):
        await begin(pilot)
        for size in (*SIZES, (40, 12), (20, 5), (2, 1)):
            await pilot.resize_terminal(*size)
            assert (await shown(app, pilot)).isascii()
            assert fills(app, size)


# Around it


async def test_esc_leaves_it_to_go_on_and_the_header_says_so(tuners):
    async with opened(controlled_job(), size=(100, 30)) as (app, pilot):
        await begin(pilot)
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)
        assert "◆ searching" in (await shown(app, pilot)).splitlines()[0]
        assert not tuners[0].stopped
        await pilot.press("a")
        await pilot.pause()
        assert isinstance(app.screen, SearchScreen)
        assert not app.screen.query(Input)
        assert "search for the best bucket_cap_mb" in await shown(app, pilot)
        tuners[0].end()
        text = await shown(app, pilot)
        assert "searching" not in text.splitlines()[0]
        assert "2.9 % shorter" in text


@pytest.mark.parametrize("key", ["a", "x"])
async def test_a_second_key_stops_it(key, tuners):
    async with opened(controlled_job(), size=(100, 30)) as (app, pilot):
        await begin(pilot)
        assert "stop and go back" in (await shown(app, pilot)).splitlines()[-1]
        await pilot.press(key)
        await pilot.pause()
        assert "stop the search and go back to the value before it?" in screen_text(app)
        assert not tuners[0].stopped
        await pilot.press("y")
        assert tuners[0].stopped
        tuners[0].end()
        foot = (await shown(app, pilot)).splitlines()[-1]
        assert "stop" not in foot
        await pilot.press("x")
        await begin(pilot)
        assert len(tuners) == 2


async def test_quitting_stops_it_first_and_waits_until_the_value_is_back_or_q_comes_again(tuners):
    async with opened(controlled_job(), size=(100, 30)) as (app, pilot):
        await begin(pilot)
        await pilot.press("q")
        await pilot.pause()
        assert "quit? the search stops and goes back to the value before it" in screen_text(app)
        await pilot.press("escape", "q")
        assert not tuners[0].stopped
        await pilot.press("y")
        assert tuners[0].stopped
        assert app.is_running
        tuners[0].end()
        app.read()
        await pilot.pause()
    assert not app.is_running
    async with opened(controlled_job(), size=(100, 30)) as (app, pilot):
        await begin(pilot)
        await pilot.press("q", "y", "q")
        await pilot.pause()
    assert not app.is_running


async def test_while_another_searches_it_is_said_who_and_nothing_is_offered(tuners):
    session = controlled_job()
    search = structs.replace(commands.make_search(BUCKET), by="eve@there\x1b[2J, pid 7")
    session.say(search)
    async with opened(session, size=SIZES[1]) as (app, pilot):
        assert "search by eve@there?[2J" in (await shown(app, pilot)).splitlines()[0]
        text = await shown(app, pilot, "a")
        assert "eve@there?[2J, pid 7 searches for the best bucket_cap_mb" in text
        assert " a  search" not in text.splitlines()[-1]
        await pilot.press("a", "x")
        assert not app.screen.query(Input)
        session.say(structs.replace(search, over=True))
        await shown(app, pilot)
        await pilot.press("a")
        await pilot.pause()
        assert app.screen.query(Input)
    assert tuners == []


def searches_change(session, search, step, was, becomes, by="me"):
    """A change that a search has made."""
    at_ns = session.sent[0].at_ns + step
    obey(session, by_another(session, int(becomes), search=search, by=by, at_ns=at_ns), step, was, becomes)


async def test_its_changes_are_in_the_log_as_its_own_and_the_newest_stands_above_until_a_key(tuners):
    session = controlled_job()
    async with opened(session, size=(160, 45)) as (app, pilot):
        await pilot.press("right_square_bracket")
        session.clock.pass_s(SETTLE_S)
        await shown(app, pilot)
        obey(session, session.sent[0], 40, "25", "50")
        await begin(pilot)
        mine = tuners[0].lease.id
        searches_change(session, "20261121-210000-abcdef", 50, "50", "51", by="eve")
        searches_change(session, mine, 60, "51", "100")
        searches_change(session, mine, 80, "100", "50")
        tuners[0].end()
        lines = [" ".join(line.split()) for line in (await shown(app, pilot, "u")).splitlines()]
        assert "● bucket 100 → 50 MiB changed at step 80 by your search" in lines
        assert "51 → 100 MiB your search changed at step 60" in " ".join(lines)
        assert "50 → 51 MiB search of eve changed at step 50" in " ".join(lines)
        text = " ".join((await shown(app, pilot, "right_square_bracket")).split())
        assert f"bucket 50 → 100 MiB {TAKE_BACK}" in text


# After another job has come


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_found_outlives_the_job_and_says_of_which_run_it_is(size, tuners):
    session = controlled_job()
    async with opened(session, size=size) as (app, pilot):
        await begin(pilot)
        tuners[0].end()
        assert "not of the job that is shown now" not in await shown(app, pilot)
        turn_to(session, "job-2", "/home/me/other.py")
        text = " ".join((await shown(app, pilot)).split())
        assert " of train.py, not of the job that is shown now" in text
        turn_to(session, "job-1")
        text = await shown(app, pilot)
        assert "not of the job that is shown now" not in text
        turn_to(session, "job-2")
        text = " ".join((await shown(app, pilot)).split())
        assert "of an earlier run of train.py, not of the job that is shown now" in text
        assert "2.9 % shorter" in text
        assert "2.9 % shorter" in await shown(app, pilot, "escape", "a")  # above the question
        text = await shown(app, pilot, "enter")
        assert len(tuners) == 2
        assert "not of the job that is shown now" not in text
        assert "round 3: measures 50 MiB" in text


async def test_a_search_whose_job_is_left_is_told_as_not_finished(tuners):
    session = controlled_job()
    async with opened(session, size=(100, 30)) as (app, pilot):
        await begin(pilot)
        turn_to(session, "job-2")
        text = await shown(app, pilot)
        assert "searching" not in text.splitlines()[0]
        page = " ".join(text.split())
        assert "not finished: another job is shown here" in page
        assert "180 steps spent" in page
