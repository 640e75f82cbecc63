"""The search from the dashboard: its view, and the keys around it, over a scripted search."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from textual.widgets import Input

from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.tui.search.screen import SearchScreen
from overlaptop.tui.search.view import search_lines
from overlaptop.tui.tune.knob_editor import SETTLE_S
from overlaptop.tuning import tuner
from overlaptop.tuning.forecast import CurveSample
from overlaptop.tuning.search import State
from overlaptop.tuning.state import CurvePoint, Result, SearchState
from overlaptop.wire import commands
from tests.fleet.builders import T0, status, welcome

from .fakes import opened, screen_text, shown
from .knobs import ACCUMULATION, BUCKET, controlled_job, obey, tell

MS = 1_000_000
SIZES = ((160, 45), (100, 30), (60, 20))


def measured(value, ms, state, *, reach=0.3, exposed=2.0, predicted=None, foretold=None, steps=48):
    return CurvePoint(
        value=value, state=state, windows=steps // 12, steps=steps, step_ns=ms * MS,
        low_ns=(ms - reach) * MS, high_ns=(ms + reach) * MS,
        exposed_ns=None if exposed is None else round(exposed * MS),
        predicted_ns=None if predicted is None else predicted * MS, foretold_ns=foretold,
    )  # fmt: skip


UNDER_WAY = SearchState(
    knob=BUCKET, least=1, most=400, doing="round 3: measures 50 MiB, 7 of 12 steps", over=False, why="",
    failed=False, now=50, best=100, candidates=3,
    points=(
        measured(1, 52.1, State.ELIMINATED, reach=1.2, exposed=9.0, predicted=51.6, steps=12),
        measured(25, 47.6, State.EQUIVALENT, predicted=47.4),
        measured(50, 46.6, State.CANDIDATE, predicted=46.7),
        measured(100, 46.2, State.CANDIDATE, predicted=46.1),
        measured(400, 48.6, State.ELIMINATED, predicted=49.2, exposed=None, steps=24),
    ),
    predicted=tuple(CurveSample(v, (45.5 + 6 / v + v * 0.01) * MS, 1.5 * MS) for v in (1, 5, 25, 100, 400)),
    model_reason="", windows=(), round=3, steps_spent=180, steps_to_go=420, seconds_to_go=20.4, result=None,
)  # fmt: skip
FOUND = replace(
    UNDER_WAY, over=True, now=None, doing="done", steps_to_go=0, seconds_to_go=None,
    result=Result(
        value=100, before_text="25", saves=0.029, saves_low=0.02, saves_high=0.038, confidence=0.95,
        known=True, spent=False, rivals_gain=0.006,
        line="bucket_cap_mb 100 MiB: a step 2.9 % shorter than with 25",
        code="DistributedDataParallel(model, bucket_cap_mb=100)",
    ),
)  # fmt: skip


class ScriptedTuner:
    """Has the states that a test gives it, and notes what is asked of it."""

    made: list[ScriptedTuner]
    state = UNDER_WAY

    def __init__(self, line, knob, least, most, *, keep, collector):
        assert collector is not None
        self.asked = (knob.name, least, most, keep)
        self.lease = commands.make_search(knob)
        self.over = False
        self.stopped = False
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


async def test_the_selected_knob_is_searched_in_its_own_range(tuners):
    async with opened(controlled_job(ACCUMULATION), size=(100, 30)) as (_, pilot):
        await begin(pilot)
        assert tuners[0].asked == ("accumulation", 1, 8, True)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("x", "type the smallest and the largest value, as in 1:400"),
        ("25", "type the smallest and the largest value, as in 1:400"),
        ("50:5", "the first of the two must be the smaller one, not 50:5"),
        ("0:50", "bucket_cap_mb must be from 1 to 10000"),
    ],
)
@pytest.mark.parametrize("size", [*SIZES, (30, 12)])
async def test_a_range_that_is_none_is_said_at_the_prompt_in_whole(size, typed, words, tuners):
    async with opened(controlled_job(), size=size) as (app, pilot):
        await begin(pilot, *typed)
        assert words in " ".join(screen_text(app).split())
        assert tuners == []
        await pilot.press("escape")
        await pilot.pause()
        assert not app.screen.query(Input)


def lines_of(state, width, height):
    lines, _ = search_lines(state, width, height, 0)
    return ["".join(run.text for run in line) for line in lines]


@pytest.mark.parametrize("size", SIZES)
def test_the_view_has_the_curve_the_point_being_measured_and_the_table(size):
    lines = lines_of(UNDER_WAY, size[0], size[1] - 2)
    text = "\n".join(lines)
    assert len(lines) <= size[1] - 2
    assert "round 3: measures 50 MiB, 7 of 12 steps" in text
    assert "180 steps spent" in text
    assert "★" in text
    assert "◆" in text
    assert any(cell in text for cell in "▘▝▀▖▗▄")  # the prediction
    row = next(line for line in lines if "100 MiB" in line and "46.2" in line)
    figures = row[row.index("100 MiB") :].split()
    assert figures[2:4] == ["46.20", "0.30"]
    assert {"46.10", "-0.2", "%"} <= set(figures) or size[0] < 60
    if size[0] >= 100:
        assert "exposed" in text
        assert "at most 420 to go, 20.4 s" in text
        assert "eliminated" in text


def test_what_is_not_known_is_a_dash_in_the_table():
    unpredicted = replace(
        UNDER_WAY, points=(measured(25, 47.6, State.CANDIDATE, exposed=None),), predicted=(),
        model_reason="no step has been seen with names",
    )  # fmt: skip
    text = "\n".join(lines_of(unpredicted, 160, 40))
    assert "no model: no step has been seen with names" in text
    row = next(line for line in text.splitlines() if "25 MiB" in line)
    assert row.split().count("–") == 4


def test_an_interval_that_nothing_tells_is_a_dash_in_the_table():
    point = replace(measured(25, 47.6, State.CANDIDATE), low_ns=0.0, high_ns=math.inf)
    row = next(line for line in lines_of(replace(UNDER_WAY, points=(point,)), 160, 40) if "47.60" in line)
    assert row[row.index("25 MiB") :].split()[2:4] == ["47.60", "–"]


@pytest.mark.parametrize("size", SIZES)
def test_before_anything_is_measured_there_is_an_axis_without_a_scale_and_no_table(size):
    empty = replace(
        UNDER_WAY, points=(), predicted=(), now=25, best=None, steps_spent=1, steps_to_go=None,
        seconds_to_go=None,
    )  # fmt: skip
    lines = lines_of(empty, size[0], size[1] - 2)
    text = "\n".join(lines)
    assert "1 step spent" in text
    assert "to go" not in text
    assert any(line.rstrip().endswith("400 MiB") for line in lines)
    assert "the first point comes with the first window" in text
    assert "step ms" not in text
    assert "µs" not in text
    assert "0.0" not in text


@pytest.mark.parametrize("size", SIZES)
def test_the_axis_ends_where_all_is_alike_from_the_first_frame_on_and_says_so(size):
    first = replace(UNDER_WAY, points=(), predicted=(), now=25, best=None, alike_from=120, steps_to_go=None)
    later = replace(UNDER_WAY, alike_from=120, points=UNDER_WAY.points[:4],
                    predicted=UNDER_WAY.predicted[:4])  # fmt: skip
    axes = []
    for state in (first, replace(later, predicted=()), later):
        lines = lines_of(state, size[0], size[1] - 2)
        axes.append(next(line for line in lines if "120 MiB on: all alike" in line)[:60])
    assert len(set(axes)) == 1


@pytest.mark.parametrize("size", SIZES)
def test_what_the_star_is_stands_beside_it(size):
    doubtful = replace(UNDER_WAY, caveat="within noise of 25 MiB")
    lines = lines_of(doubtful, size[0], size[1] - 2)
    assert " ★ 100 MiB: shortest step so far, within noise of 25 MiB" in [line.rstrip() for line in lines]
    assert any("★ shortest step  " in line for line in lines)
    at_the_end = lines_of(FOUND, size[0], size[1] - 2)
    assert any("★ shortest step  " in line for line in at_the_end)
    assert not any("so far" in line for line in at_the_end)


@pytest.mark.parametrize("size", SIZES)
def test_after_a_stop_it_says_what_the_job_has_and_that_the_code_would_make_the_best_permanent(size):
    stopped = replace(FOUND, why="stopped", left="the job has 25 MiB again, as before the search")
    joined = " ".join(" ".join(lines_of(stopped, size[0], size[1] - 2)).split())
    assert "the job has 25 MiB again, as before the search" in joined
    assert "to make 100 MiB permanent: DistributedDataParallel(model, bucket_cap_mb=100)" in joined
    assert "to keep it" not in joined


@pytest.mark.parametrize("size", SIZES)
def test_at_the_end_the_result_and_the_line_of_code_are_there_in_whole(size):
    joined = " ".join(" ".join(lines_of(FOUND, size[0], size[1] - 2)).split())
    assert "bucket_cap_mb 100 MiB: a step 2.9 % shorter than with 25" in joined
    assert "DistributedDataParallel(model, bucket_cap_mb=100)" in joined
    assert "to go" not in joined


@pytest.mark.parametrize("state", [UNDER_WAY, FOUND])
async def test_every_size_is_filled_in_ascii_too(state, tuners, monkeypatch):
    monkeypatch.setattr(ScriptedTuner, "state", state)
    async with opened(controlled_job(), ascii=True, size=SIZES[0]) as (app, pilot):
        await begin(pilot)
        for size in (*SIZES, (40, 12), (20, 5), (2, 1)):
            await pilot.resize_terminal(*size)
            text = await shown(app, pilot)
            assert text.isascii()
            assert [len(line) for line in text.splitlines()] == [size[0]] * size[1]


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


async def test_all_ranks_are_watched_while_it_goes_on_and_then_the_chosen_one_again(tuners):
    session = controlled_job()
    async with opened(session, size=(100, 30)) as (app, pilot):
        for leave in ("escape", "enter"):
            assert session.watched == {0}
            await pilot.press("a")  # from the question on: the model is to be there in time
            await pilot.pause()
            await shown(app, pilot)
            assert session.watched == {0, 1}
            await shown(app, pilot, leave)
        assert session.watched == {0, 1}
        tuners[0].end()
        await shown(app, pilot)
        assert session.watched == {0}


@pytest.mark.parametrize("key", ["a", "x"])
async def test_a_second_key_stops_it(key, tuners):
    async with opened(controlled_job(), size=(100, 30)) as (app, pilot):
        await begin(pilot)
        assert "stop and go back" in (await shown(app, pilot)).splitlines()[-1]
        await pilot.press(key)
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


async def test_quitting_stops_it_first_and_waits_until_the_value_is_back(tuners):
    async with opened(controlled_job(), size=(100, 30)) as (app, pilot):
        await begin(pilot)
        await pilot.press("q")
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


async def test_q_leaves_at_once_while_the_search_goes_back(tuners):
    async with opened(controlled_job(), size=(100, 30)) as (app, pilot):
        await begin(pilot)
        await pilot.press("q", "y", "q")
        await pilot.pause()
    assert not app.is_running


def anothers_search(session):
    search = replace(commands.make_search(BUCKET), by="eve@there\x1b[2J, pid 7")
    session.say(search)
    return search


@pytest.mark.parametrize("size", SIZES)
async def test_while_another_searches_it_is_said_who_and_nothing_is_offered(size, tuners):
    session = controlled_job()
    search = anothers_search(session)
    async with opened(session, size=size) as (app, pilot):
        if size[0] >= 100:
            assert "search by eve@there?[2J" in (await shown(app, pilot)).splitlines()[0]
        text = await shown(app, pilot, "a")
        assert "eve@there?[2J, pid 7 searches for the best bucket_cap_mb" in text
        assert not app.screen.query(Input)
        assert " a  search" not in text.splitlines()[-1]
        await pilot.press("a", "x")
        assert not app.screen.query(Input)
        session.say(replace(search, over=True))
        await shown(app, pilot)
        await pilot.press("a")
        await pilot.pause()
        assert app.screen.query(Input)
    assert tuners == []


async def test_a_searchs_changes_are_in_the_log_as_its_own(tuners):
    session = controlled_job()
    async with opened(session, size=(160, 45)) as (app, pilot):
        await begin(pilot)
        for number, (search, by) in enumerate(
            ((tuners[0].lease.id, "me"), ("20261121-210000-abcdef", "eve"))
        ):
            command = commands.make_setting(BUCKET, 50 + number, search=search)
            command = replace(command, by=by, at_ns=T0 + number)
            session.say(command)
            obey(session, command, 40 + number, "25", str(50 + number))
        text = await shown(app, pilot, "u")
    assert "25 → 50 your search changed at step 40" in " ".join(text.split())
    assert "25 → 51 search of eve changed at step 41" in " ".join(text.split())


async def test_a_knob_that_cannot_be_changed_is_not_searched(tuners):
    async with opened(controlled_job(replace(BUCKET, refusal="compiled")), size=(100, 30)) as (app, pilot):
        text = await shown(app, pilot, "a")
        assert not app.screen.query(Input)
        assert "bucket_cap_mb cannot be changed: rank 0: compiled" in text


def restart(session, job="job-2", script="/home/me/train.py"):
    """The job that is shown gives way to another one."""
    session.job_key = job
    session.fleet.apply(welcome(job=job, script=script))
    session.say(status())
    tell(session, BUCKET)


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_found_outlives_the_job_and_says_of_which_run_it_is(size, tuners):
    session = controlled_job()
    async with opened(session, size=size) as (app, pilot):
        await begin(pilot)
        tuners[0].end()
        assert "not of the job that is shown now" not in await shown(app, pilot)
        restart(session)
        text = " ".join((await shown(app, pilot)).split())
        assert "of an earlier run of train.py, not of the job that is shown now" in text
        assert "2.9 % shorter" in text
        assert "2.9 % shorter" in await shown(app, pilot, "escape", "a")  # above the question
        text = await shown(app, pilot, "enter")
        assert len(tuners) == 2
        assert "not of the job that is shown now" not in text
        assert "round 3: measures 50 MiB" in text


async def test_of_another_script_it_says_which_and_of_the_same_job_nothing(tuners):
    session = controlled_job()
    async with opened(session, size=(100, 30)) as (app, pilot):
        await begin(pilot)
        tuners[0].end()
        restart(session, script="/home/me/other.py")
        text = await shown(app, pilot)
        assert " of train.py, not of the job that is shown now" in text
        restart(session, "job-1")
        text = await shown(app, pilot)
        assert "not of the job that is shown now" not in text
        assert "2.9 % shorter" in text


async def test_a_search_whose_job_is_left_is_told_as_not_finished(tuners):
    session = controlled_job()
    async with opened(session, size=(100, 30)) as (app, pilot):
        await begin(pilot)
        restart(session)
        text = await shown(app, pilot)
        assert "searching" not in text.splitlines()[0]
        said = " ".join(text.split())
        assert "not finished: another job is shown here" in said
        assert "180 steps spent" in said


async def test_tune_tells_of_the_searchs_last_change_too(tuners):
    session = controlled_job()
    async with opened(session, size=(160, 45)) as (app, pilot):
        await pilot.press("right_square_bracket")
        session.clock.pass_s(SETTLE_S)
        await shown(app, pilot)
        obey(session, session.sent[0], 40, "25", "50")
        await begin(pilot)
        for step, was, becomes in ((60, "50", "100"), (80, "100", "50")):
            command = commands.make_setting(BUCKET, int(becomes), search=tuners[0].lease.id)
            command = replace(command, at_ns=session.sent[0].at_ns + step)
            session.say(command)
            obey(session, command, step, was, becomes)
        tuners[0].end()
        lines = [" ".join(line.split()) for line in (await shown(app, pilot, "u")).splitlines()]
        assert "● bucket 100 → 50 MiB changed at step 80 by your search" in lines
        text = " ".join((await shown(app, pilot, "right_square_bracket")).split())
        assert "bucket 50 → 100 MiB esc takes it back" in text


async def test_a_search_where_a_step_does_other_work_is_refused_at_the_prompt():
    knob = replace(ACCUMULATION, changes_work=True)
    async with opened(controlled_job(knob), size=(100, 30)) as (app, pilot):
        await begin(pilot)
        said = " ".join(screen_text(app).split())
        assert "a step does another amount of work with another accumulation" in said
        assert app.dashboard.control.tuner is None
