"""KnobEditor a knob from the keyboard, driven through Textual's pilot over a scripted job."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from rich.cells import cell_len
from textual.widgets import Input

from overlaptop.fleet.snapshot import LinkState
from overlaptop.tui.capture.screen import CaptureScreen
from overlaptop.tui.help.screen import HelpPage
from overlaptop.tui.keys import APP_KEYS, changes_job
from overlaptop.tui.machine.screen import MachineScreen
from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.tui.rank.screen import RankScreen
from overlaptop.tui.tune.knob_editor import SETTLE_S
from overlaptop.tui.tune.screen import TuneScreen
from overlaptop.wire import commands
from overlaptop.wire.knobs import KnobFacts
from tests.fleet.builders import T0, info, status, step, welcome

from .fakes import FakeSession, app_of, opened, running_job, screen_lines, screen_text, shown
from .knobs import ACCUMULATION, BUCKET, controlled_job, obey, report, tell, with_value

SIZES = ((160, 45), (100, 30), (60, 20))
UP, DOWN = "right_square_bracket", "left_square_bracket"


def sent(session):
    return [commands.in_words(command) for command in session.sent]


def run_on(session, first, steps, *, compute=60.0, hidden=20.0, collectives=3, seed=1, ranks=2):
    """All ranks make so many steps whose length varies by a per cent."""
    draw = random.Random(seed)
    for number in range(first, first + steps):
        compute_ms = compute * (1 + draw.gauss(0, 0.01))
        for rank in range(ranks):
            session.say(step(rank, number, compute=compute_ms, hidden=hidden, collectives=collectives))


def job_without_steps():
    """It has told what can be changed, and is about to make its first step."""
    session = FakeSession(welcome(), status())
    tell(session, BUCKET)
    return session


@pytest.mark.parametrize("size", SIZES)
async def test_the_first_screen_says_which_keys_change_what(size):
    async with opened(controlled_job(), size=size) as (app, pilot):
        text = await shown(app, pilot)
    assert "bucket 25 MiB [ ]" in text
    keys = text.splitlines()[-1]
    assert (" [ ]  bucket size" if size[0] >= 100 else " [ ] bucket ") in keys


@pytest.mark.parametrize("size", SIZES)
async def test_keys_show_the_target_at_once_and_send_it_when_they_rest(size):
    session = controlled_job()
    async with opened(session, size=size) as (app, pilot):
        text = await shown(app, pilot, UP, UP)
        assert text.count("bucket 25 → 100 MiB") == 2  # the totals, and the line below them
        assert "esc takes it back" in text
        assert session.sent == []
        text = await shown(app, pilot, rest_s=SETTLE_S)
        assert sent(session) == ["set bucket_cap_mb 100"]
        assert "sent ..." in text
        (command,) = session.sent
        report(session, command, "agreed", 40)
        assert "agreed on step 40" in await shown(app, pilot)
        obey(session, command, 40, "25", "100")
        text = await shown(app, pilot)
        assert "bucket 100 MiB [ ]" in text
        assert "25 → 100 MiB" in text or "25 MiB → 100 MiB" in text


@pytest.mark.parametrize(("key", "kind"), [("2", RankScreen), ("m", MachineScreen), ("5", CaptureScreen)])
async def test_the_keys_work_on_every_screen_and_its_foot_says_how_it_goes(key, kind):
    session = controlled_job()
    async with opened(session, size=(160, 45)) as (app, pilot):
        await pilot.press(key, DOWN)
        assert isinstance(app.screen, kind)
        assert "bucket 25 → 10 MiB: esc takes it back" in (await shown(app, pilot)).splitlines()[-1]
        await shown(app, pilot, rest_s=SETTLE_S)
        obey(session, session.sent[0], 40, "25", "10")
        assert "bucket 25 → 10 MiB: changed at step 40" in (await shown(app, pilot)).splitlines()[-1]
        assert "changed at step 40" not in (await shown(app, pilot, rest_s=60)).splitlines()[-1]


@pytest.mark.parametrize("size", SIZES)
async def test_a_failure_stays_on_the_screen_in_words_until_the_next_key(size):
    session = controlled_job()
    app = app_of(session)
    why = "this DDP was compiled, and compiled code keeps the buckets that it was compiled with"
    async with app.run_test(size=size) as pilot:
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        report(session, session.sent[0], "refused", None, why, ranks=(1,))
        text = await shown(app, pilot, rest_s=300)
        assert "not changed: rank 1 refused: this DDP was compiled" in " ".join(text.split())
        assert "compiled with" in " ".join(text.split())
        assert "not changed" not in await shown(app, pilot, UP)


async def test_b_takes_an_exact_value_or_says_what_is_wrong_with_it():
    session = controlled_job()
    async with opened(session, size=(100, 30)) as (app, pilot):
        await pilot.press("b")
        await pilot.pause()
        foot = screen_lines(app)[-1]
        assert foot.startswith(" bucket: 25")
        assert "1 to 10000 MiB, or: script (25)" in foot
        await pilot.press(*"25600", "enter")  # in place of what stood there
        await pilot.pause()
        assert "bucket_cap_mb must be from 1 to 10000, not 25600" in screen_lines(app)[-1]
        assert session.sent == []
        await pilot.press("backspace", "backspace", "enter")
        await pilot.pause()
        assert sent(session) == ["set bucket_cap_mb 256"]
        assert not app.screen.query(Input)
        assert "[ ]  bucket size" in (await shown(app, pilot)).splitlines()[-1]


async def test_b_takes_the_word_script_and_esc_leaves_it():
    session = controlled_job(with_value(BUCKET, "100"))
    async with opened(session, size=(100, 30)) as (app, pilot):
        await pilot.press("b")
        await pilot.pause()
        await pilot.press("escape")
        await pilot.pause()
        assert session.sent == []
        await pilot.press("b")
        await pilot.pause()
        await pilot.press(*"script", "enter")
        await pilot.pause()
        assert sent(session) == ["restore bucket_cap_mb"]
        assert "bucket 100 → 25 MiB (script)" in await shown(app, pilot)


@pytest.mark.parametrize("size", SIZES)
async def test_what_a_change_brought_is_shown_before_and_after_with_its_spread(size):
    session = job_without_steps()
    async with opened(session, size=size) as (app, pilot):
        run_on(session, 0, 140)
        await shown(app, pilot)
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 140, "25", "50")
        assert "measuring ..." in await shown(app, pilot)
        run_on(session, 140, 100, compute=54, hidden=26, collectives=2, seed=2)
        text = await shown(app, pilot)
        assert "% shorter (" in text
        if size[0] < 66:
            assert "▼ 25 MiB → 50 MiB  step " in text
        else:
            assert "more than noise" in text
            rows = {line[:22].strip(): line for line in text.splitlines()}
            assert "±" in rows["step time"]
            assert "▲ 20 points more" in rows["overlap"]
            assert "66.7 ±" in rows["overlap"]
            assert "10.00 ±0.00 ms" in rows["exposed"]
            assert "4.00 ±0.00 ms" in rows["exposed"]
            assert "3 ±0" in rows["collectives a step"]
            assert "2 ±0" in rows["collectives a step"]
        assert "shorter (" not in await shown(app, pilot, "d")
        assert "shorter (" in await shown(app, pilot, "d")


def row_of(text, *words):
    return next(at for at, line in enumerate(text.splitlines()) if all(word in line for word in words))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ranks", [2, 4])
async def test_what_a_change_brought_moves_nothing_above_it(size, ranks):
    session = controlled_job(ranks=ranks)
    async with opened(session, size=size) as (app, pilot):
        before = await shown(app, pilot)
        pending = await shown(app, pilot, UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 40, "25", "50", ranks=ranks)
        run_on(session, 40, 40, ranks=ranks)
        after = await shown(app, pilot)
    assert "40 measured steps befor" in after
    for words in (("rank", "overlap", "step"), ("compute", "hidden"), ("step 39", "rank 0")):
        places = {row_of(text, *words) for text in (before, pending, after)}
        assert len(places) == 1, words


@pytest.mark.parametrize(("size", "told"), [((160, 45), True), ((100, 30), True), ((60, 20), False)])
async def test_the_panel_says_what_its_signs_and_colours_mean(size, told):
    session = job_without_steps()
    async with opened(session, size=size) as (app, pilot):
        run_on(session, 0, 140)
        await shown(app, pilot)
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 140, "25", "50")
        run_on(session, 140, 100, compute=54, seed=2)
        said = " ".join((await shown(app, pilot)).split())
        meanings = "± half of the steps (a to b) 95 % interval better worse beyond noise ≈ within noise"
        assert (meanings in said) == told
        assert "±" not in said or told  # one line has none
        await pilot.press("question_mark")
        page = app.screen.query_one(HelpPage).lines(size[0])
        said = " ".join("".join(run.text for line in page for run in line).split())
        assert "± after a figure is half the distance of the quartiles" in said


@pytest.mark.parametrize("size", SIZES)
async def test_where_a_step_does_other_work_no_time_is_called_longer(size):
    knob = replace(ACCUMULATION, changes_work=True)
    session = FakeSession(welcome(), status())
    tell(session, knob)
    async with opened(session, size=size) as (app, pilot):
        run_on(session, 0, 140)
        await shown(app, pilot)
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 140, "4", "8", knob)
        run_on(session, 140, 100, compute=120, hidden=10, collectives=6, seed=2)
        text = await shown(app, pilot)
    assert "a step does other work" in text
    assert ("not compared" in text) == (size[0] >= 100)
    for word in ("longer", "shorter", "fewer", "measuring"):
        assert word not in text
    if size[0] >= 100:
        assert "▼ 33 points less" in text  # a share stays one


async def test_a_change_that_brought_nothing_is_said_to():
    session = job_without_steps()
    async with opened(session, size=(160, 45)) as (app, pilot):
        run_on(session, 0, 140)
        await shown(app, pilot)
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 140, "25", "50")
        run_on(session, 140, 100, seed=2)
        text = await shown(app, pilot)
    assert "no more than noise" in text
    assert "≈ no difference beyond noise (±" in text


async def test_a_hidden_panel_comes_back_with_the_next_change():
    session = controlled_job()
    async with opened(session, size=(100, 30)) as (app, pilot):
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 40, "25", "50")
        await shown(app, pilot)
        assert "changed at step 40" not in await shown(app, pilot, "d")
        assert "esc takes it back" in await shown(app, pilot, UP)


async def test_another_dashboards_change_is_told_with_who_made_it():
    session = controlled_job()
    command = replace(commands.make_setting(BUCKET, 400), by="eve@there\x1b[2J, pid 7", at_ns=T0)
    session.say(command)
    async with opened(session, size=(160, 45)) as (app, pilot):
        obey(session, command, 40, "25", "400")
        assert "by eve@there?[2J, pid 7" in await shown(app, pilot)
        lines = (await shown(app, pilot, "u")).splitlines()
        row = next(line for line in lines if "changed at step 40" in line)
        assert "25 → 400 MiB" in row
    assert session.sent == []


@pytest.mark.parametrize("size", SIZES)
async def test_tune_lists_every_knob_and_why_one_cannot_be_changed(size):
    why = "the model was compiled, and compiled code keeps its buckets"
    session = controlled_job(ACCUMULATION, replace(BUCKET, refusal=why))
    async with opened(session, size=size) as (app, pilot):
        await pilot.press("7")
        assert isinstance(app.screen, TuneScreen)
        said = " ".join((await shown(app, pilot)).split())
        assert "bucket_cap_mb" in said
        assert "batches that share one optimizer step" in said
        assert "selected [ ]" in said
        said = " ".join((await shown(app, pilot, "down")).split())
        assert "bucket_cap_mb (DistributedDataParallel): how large DDP's buckets of gradients are." in said
        assert f"Cannot be changed: rank 0: {why}." in said
        assert "Now 25 MiB; the script gave 25 MiB; allowed: 1 to 10000 MiB." in said
        await pilot.press("u")
        assert isinstance(app.screen, OverviewScreen)


async def test_the_line_of_code_is_whole_also_where_it_is_narrow():
    async with opened(controlled_job(with_value(BUCKET, "400")), size=(40, 20)) as (app, pilot):
        lines = await shown(app, pilot, "u")
    assert BUCKET.code.replace("{value}", "400") in "".join(line.strip() for line in lines.splitlines())


async def test_in_tune_keys_mean_the_knob_under_the_cursor_and_it_stays_selected():
    session = controlled_job(BUCKET, ACCUMULATION)
    async with opened(session, size=(100, 30)) as (app, pilot):
        await shown(app, pilot, "u", "down", UP, rest_s=SETTLE_S)
        assert sent(session) == ["set accumulation 8"]
        obey(session, session.sent[0], 40, "4", "8", ACCUMULATION)
        tell(session, BUCKET, with_value(ACCUMULATION, "8"))
        assert "accumulation 8 [ ]" in await shown(app, pilot, "escape")
        assert "bucket 25 MiB [ ]" in await shown(app, pilot, "u", "up", "enter", "escape")


async def test_words_that_do_not_fit_a_knobs_row_end_in_dots():
    why = "the model was compiled, and compiled code keeps the buckets that it was compiled with"
    async with opened(controlled_job(replace(BUCKET, refusal=why)), size=(100, 30)) as (app, pilot):
        lines = [line.rstrip() for line in (await shown(app, pilot, "u")).splitlines()]
    (row,) = [line for line in lines if "fixed: " in line]
    assert row.endswith("…")


@pytest.mark.parametrize("size", [(60, 20), (30, 12)])
async def test_what_is_wrong_with_an_answer_is_there_in_whole_where_it_is_narrow(size):
    async with opened(controlled_job(ACCUMULATION), size=size) as (app, pilot):
        await pilot.press("b")
        await pilot.pause()
        assert "1, 2, 4 or 8, or: script (4) esc: not now" in " ".join(screen_text(app).split())
        await pilot.press(*"25600", "enter")
        await pilot.pause()
        said = " ".join(screen_text(app).split())
        assert "accumulation must be one of 1, 2, 4, 8, not 25600" in said
        assert "accumulation: 25600" in said


async def test_r_goes_back_to_what_the_script_gave():
    session = controlled_job(with_value(BUCKET, "100"), ACCUMULATION)
    async with opened(session, size=(100, 30)) as (app, pilot):
        await shown(app, pilot, "u", "r", rest_s=SETTLE_S)
        assert sent(session) == ["restore bucket_cap_mb"]
        assert "25 MiB (script)" in await shown(app, pilot)


async def test_the_log_has_the_newest_first_with_who_and_what_became_of_it():
    session = controlled_job()
    async with opened(session, size=(160, 45)) as (app, pilot):
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 40, "25", "50")
        await shown(app, pilot)
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        report(session, session.sent[1], "refused", None, "no more memory", ranks=(0,))
        search = commands.make_setting(BUCKET, 7, search="20261121-210000-abcdef")
        search = replace(search, by="eve@there", at_ns=session.sent[1].at_ns + 1)
        session.say(search)
        obey(session, search, 90, "50", "7")
        lines = (await shown(app, pilot, "7")).splitlines()
    log = [" ".join(line.split()[1:]) for line in lines if line[3:4] == ":" and "bucket" in line]
    assert log == [
        "bucket 50 → 7 search of eve@there changed at step 90",
        "bucket → 100 you not changed: rank 0 refused: no more memory",
        "bucket 25 → 50 you changed at step 40",
    ]


@pytest.mark.parametrize("size", SIZES)
async def test_the_log_of_a_job_before_goes_on_below_that_of_the_present_one(size):
    session = controlled_job()
    async with opened(session, size=size) as (app, pilot):
        await shown(app, pilot, "7", UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 40, "25", "50")
        await shown(app, pilot)
        session.job_key = "job-2"
        session.fleet.apply(welcome(job="job-2", script="/home/me/next.py"))
        session.say(status())
        tell(session, BUCKET)
        await shown(app, pilot)
        said = " ".join((await shown(app, pilot, "pagedown")).split())
        assert "none yet of this job of a job watched before: train.py" in said
        assert "bucket 25 → 50 you changed at step 40" in said
        await shown(app, pilot, "pageup", DOWN, rest_s=SETTLE_S)
        obey(session, session.sent[1], 9, "25", "10")
        await shown(app, pilot)
        said = " ".join((await shown(app, pilot, "pagedown")).split())
        assert "bucket 25 → 10 you changed at step 9 of a job watched before: train.py" in said
        assert said.count("25 → 50 you changed at step 40") == 1


async def test_the_log_has_the_words_of_others_for_who_they_are():
    session = controlled_job()
    command = replace(commands.make_setting(BUCKET, 400), at_ns=T0)  # of this user, from elsewhere
    session.say(command)
    obey(session, command, 40, "25", "400")
    async with opened(session, size=(160, 45)) as (app, pilot):
        text = await shown(app, pilot, "u")
    assert f"25 → 400 {command.by} changed at step 40" in " ".join(text.split())


async def test_a_job_that_obeys_nothing_says_so_where_its_value_stands():
    session = running_job(2)
    for rank in (0, 1):
        session.say(info(rank), KnobFacts(rank, (BUCKET,)))
    async with opened(session, size=(100, 30)) as (app, pilot):
        text = await shown(app, pilot)
        assert "bucket 25 MiB (needs --control)" in text
        assert "[ ]" not in text
        assert "start the job with --control to allow changes" in await shown(app, pilot, UP)
        await pilot.press("b")
        assert not app.screen.query(Input)
        said = " ".join((await shown(app, pilot, "7")).split())
        assert "Cannot be changed: start the job with --control to allow changes." in said
    assert session.sent == []


async def test_a_job_without_knobs_shows_none_and_says_so_when_asked():
    session = running_job(2)
    async with opened(session, size=(100, 30)) as (app, pilot):
        text = await shown(app, pilot)
        assert "bucket" not in text
        assert "[ ]" not in text
        assert "nothing of this job can be changed" in await shown(app, pilot, UP)
        assert "overlaptop.agent.knob()" in await shown(app, pilot, "7")


async def test_nothing_can_be_changed_of_a_job_that_is_over():
    session = controlled_job()
    session.fleet.set_link(LinkState.ENDED, "")
    async with opened(session, size=(100, 30)) as (app, pilot):
        text = await shown(app, pilot)
        assert "bucket 25 MiB" in text
        assert "[ ]" not in text
        assert "the job is over: nothing can be changed" in await shown(app, pilot, UP)


async def test_while_the_picture_is_held_still_a_change_is_still_told():
    session = controlled_job()
    async with opened(session, size=(100, 30)) as (app, pilot):
        await shown(app, pilot, "space", UP, rest_s=SETTLE_S)
        report(session, session.sent[0], "agreed", 40)
        assert "agreed on step 40" in await shown(app, pilot)


async def test_with_readonly_no_key_changes_anything_or_is_offered():
    session = controlled_job()
    async with opened(session, readonly=True, size=(160, 45)) as (app, pilot):
        text = await shown(app, pilot)
        assert "read-only" in text.splitlines()[0]
        assert "bucket 25 MiB (read-only)" in text
        for screen in ("1", "2", "m", "u", "5"):
            await pilot.press(screen)
            before = type(app.screen)
            for key in (UP, DOWN, "b", "a", "w", "c", "r", "enter"):
                await pilot.press(key)
                if key != "enter":  # opens the rank, on the overview
                    assert type(app.screen) is before, key
            foot = (await shown(app, pilot, "1", screen, rest_s=1)).splitlines()[-1]
            for word in ("[ ]", "search", "capture", "workloads", "script's", "exact"):
                assert word not in foot
        text = await shown(app, pilot, "question_mark")
        offered = {command.title for command in app.get_system_commands(app.screen)}
    assert session.sent == []
    for key in APP_KEYS:
        if changes_job(key.action):
            assert key.words not in text
            assert key.action not in offered
    assert "tune" in offered


async def test_read_only_still_shows_what_others_change():
    session = controlled_job()
    command = replace(commands.make_setting(BUCKET, 400), by="eve@there", at_ns=T0)
    session.say(command)
    obey(session, command, 40, "25", "400")
    async with opened(session, readonly=True, size=(160, 45)) as (app, pilot):
        text = await shown(app, pilot)
    assert "changed at step 40" in text
    assert "by eve@there" in text


async def test_commas_and_full_stops_step_through_collectives():
    async with opened(controlled_job(), size=(160, 45)) as (app, pilot):
        await shown(app, pilot)
        await pilot.press("full_stop", "full_stop")
        assert app.dashboard.state.collective == 1
        await pilot.press("comma")
        assert app.dashboard.state.collective == 0
        await pilot.press("2", "full_stop")
        assert app.dashboard.state.collective == 1
        assert app.dashboard.session.sent == []


async def test_there_is_no_prompt_where_there_is_no_job():
    async with opened(FakeSession(link=LinkState.WAITING, job_key=None), size=(100, 30)) as (app, pilot):
        await pilot.press("b", UP, "7", "a")
        assert not app.screen.query(Input)
        assert not isinstance(app.screen, TuneScreen)


HOSTILE = "\x1b]0;pwned\x07\x9b2J\r\n\t\u202e\u200b[bold red]x[/]"


@pytest.mark.parametrize("size", [(160, 45), (100, 30)])
async def test_words_of_a_knob_are_shown_as_words_and_steer_neither_terminal_nor_markup(size):
    words = dict.fromkeys(
        ("value_text", "original_text", "unit", "owner", "about", "code"), f"7{HOSTILE}{{value}}"
    )
    session = controlled_job(replace(BUCKET, value=7, **words))
    async with opened(session, size=size) as (app, pilot):
        for keys in (
            ("1",),
            ("b",),
            ("escape", "u"),
            ("b",),
            ("x", "enter"),
            ("escape", UP),
            ("1",),
            ("a",),
        ):
            lines = (await shown(app, pilot, *keys, rest_s=1)).split("\n")
            assert all(line.isprintable() for line in lines), keys
            assert [cell_len(line) for line in lines] == [size[0]] * size[1], keys
        report(session, session.sent[0], "refused", None, HOSTILE, ranks=(0,))
        for key in ("escape", "u", "1"):
            lines = (await shown(app, pilot, key, rest_s=1)).split("\n")
            assert all(line.isprintable() for line in lines), key
        assert "]0;pwned" in "".join(lines)


@pytest.mark.parametrize("size", [*SIZES, (40, 12), (20, 5), (2, 1)])
async def test_panel_and_tune_fit_every_size_in_ascii(size):
    session = controlled_job(BUCKET, ACCUMULATION)
    async with opened(session, ascii=True, size=size) as (app, pilot):
        run_on(session, 40, 30)
        await shown(app, pilot)
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 70, "25", "50")
        run_on(session, 70, 30, compute=50)
        for key in ("1", "u", "2"):
            text = await shown(app, pilot, key)
            assert text.isascii()
            assert [len(line) for line in text.splitlines()] == [size[0]] * size[1]


async def test_without_colors_a_verdict_has_a_glyph_and_a_word(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    session = job_without_steps()
    async with opened(session, size=(100, 30)) as (app, pilot):
        run_on(session, 0, 140)
        await shown(app, pilot)
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 140, "25", "50")
        run_on(session, 140, 100, compute=66)
        text = await shown(app, pilot)
    assert "▲ " in text
    assert "% longer (" in text
    assert "more than noise" in text
