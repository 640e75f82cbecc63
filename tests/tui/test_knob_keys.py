"""Knobs from the keyboard, driven through Textual's pilot over a scripted job."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace
from textual.widgets import Input

from overlaptop.fleet.job_session import READONLY
from overlaptop.fleet.knobs import NOT_ALLOWED
from overlaptop.fleet.snapshot import HubState
from overlaptop.tui.capture.screen import CaptureScreen
from overlaptop.tui.machine.screen import MachineScreen
from overlaptop.tui.model.earlier import COMPARED_EVERY_NS
from overlaptop.tui.model.keys import APP_KEYS, changes_job
from overlaptop.tui.model.knob_editor import NOTHING, SETTLE_S, TAKE_BACK
from overlaptop.tui.rank.screen import RankScreen
from overlaptop.tui.tune.screen import TuneScreen
from tests.fleet.builders import status, step, welcome
from tests.fleet.fakes import FakeSession
from tests.fleet.hub import sent

from .fakes import HOSTILE, SIZES, WIDE, fills, line_of, opened, running_job, screen_lines, shown
from .knobs import (
    ACCUMULATION,
    BUCKET,
    by_another,
    controlled_job,
    ended,
    obey,
    report,
    send_knobs,
    uncontrolled,
    with_value,
)

UP, DOWN = "right_square_bracket", "left_square_bracket"


def one_line(text):
    return " ".join(text.split())


def run_on(session, first, steps, *, compute=60.0, hidden=20.0, collectives=3, seed=1, ranks=2):
    """All ranks make so many steps whose length varies by a per cent."""
    draw = random.Random(seed)
    for number in range(first, first + steps):
        compute_ms = compute * (1 + draw.gauss(0, 0.01))
        for rank in range(ranks):
            session.say(step(rank, number, compute=compute_ms, hidden=hidden, collectives=collectives))


def job_without_steps(knob=BUCKET):
    """It has told what can be changed, and is about to make its first step."""
    session = FakeSession(welcome(), status())
    send_knobs(session, knob)
    return session


async def change_after_60(app, pilot, **since):
    """The screen 40 steps after a change by a key."""
    session = app.dashboard.session
    run_on(session, 0, 60)
    await shown(app, pilot)
    await shown(app, pilot, UP, rest_s=SETTLE_S)
    obey(session, session.sent[0], 60, "25", "50")
    run_on(session, 60, 40, seed=2, **since)
    await shown(app, pilot)
    session.clock.pass_s(COMPARED_EVERY_NS / 1e9)
    return await shown(app, pilot)


# From keys to a change


@pytest.mark.parametrize("size", SIZES)
async def test_keys_show_the_target_at_once_and_send_it_when_they_rest(size):
    session = controlled_job()
    async with opened(session, size=size) as (app, pilot):
        text = await shown(app, pilot)
        assert "bucket 25 MiB [ ]" in text
        assert size[0] <= 100 or "[] knob" in text.splitlines()[-1]
        text = await shown(app, pilot, "space", UP, UP)  # a key resumes a paused screen
        assert text.count("bucket 25 → 100 MiB") == 2  # the totals, and the line below them
        assert TAKE_BACK in text
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
    async with opened(session) as (app, pilot):
        await pilot.press(key, DOWN)
        assert isinstance(app.screen, kind)
        assert f"bucket 25 → 10 MiB  {TAKE_BACK}" in (await shown(app, pilot)).splitlines()[-2]
        await shown(app, pilot, rest_s=SETTLE_S)
        obey(session, session.sent[0], 40, "25", "10")
        assert "bucket 25 → 10 MiB  changed at step 40" in (await shown(app, pilot)).splitlines()[-2]
        assert "changed at step 40" not in (await shown(app, pilot, rest_s=60)).splitlines()[-2]


async def test_a_failure_stays_on_the_screen_in_words_until_the_next_key():
    session = controlled_job()
    async with opened(session, size=SIZES[2]) as (app, pilot):
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        why = "this DDP was compiled, and compiled code keeps the buckets that it was compiled with"
        report(session, session.sent[0], "refused", None, why, ranks=(1,))
        text = one_line(await shown(app, pilot, rest_s=300))
        assert "not changed: rank 1 refused: this DDP was compiled" in text
        assert "compiled with" in text
        assert "not changed" not in await shown(app, pilot, UP)


async def test_b_takes_an_exact_value_or_the_word_script_or_says_what_is_wrong_with_it():
    session = controlled_job(with_value(BUCKET, "100"))
    async with opened(session, size=(100, 30)) as (app, pilot):

        async def type_in(*keys):
            await pilot.press(*keys)
            await pilot.pause()
            return "".join(screen_lines(app)[-2:])

        foot = await type_in("b")
        assert foot.startswith(" bucket: 100")
        assert "1 to 10000 MiB, or: script (25)" in foot
        await type_in("escape")
        assert session.sent == []
        await type_in("b")
        foot = await type_in(*"25600", "enter")  # in place of what stood there
        assert "bucket_cap_mb must be from 1 to 10000, not 25600" in foot
        assert session.sent == []
        await type_in("backspace", "backspace", "enter")
        assert sent(session) == ["set bucket_cap_mb 256"]
        assert not app.screen.query(Input)
        obey(session, session.sent[0], 40, "100", "256")
        await type_in("b")
        await type_in(*"script", "enter")
        assert sent(session)[1:] == ["restore bucket_cap_mb"]
        assert "bucket 256 → 25 MiB (script)" in await shown(app, pilot)


# What a change brought


@pytest.mark.parametrize(("size", "ranks"), [(WIDE, 2), (SIZES[1], 4), (SIZES[2], 4)])
async def test_what_a_change_brought_moves_nothing_above_it(size, ranks):
    def row_of(text, words):
        return next(at for at, line in enumerate(text.splitlines()) if all(word in line for word in words))

    session = controlled_job(ranks=ranks)
    async with opened(session, size=size) as (app, pilot):
        before = await shown(app, pilot)
        pending = await shown(app, pilot, UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 40, "25", "50", ranks=ranks)
        run_on(session, 40, 40, ranks=ranks)
        after = await shown(app, pilot)
    assert "25 MiB → 50 MiB" in after or "bucket 25 → 50 MiB" in after
    for words in (("rank", "overlap", "step"), ("compute", "hidden"), ("step 39", "rank 0")):
        assert len({row_of(text, words) for text in (before, pending, after)}) == 1, words


# Tune


async def test_in_tune_keys_mean_the_knob_under_the_cursor_and_it_stays_selected():
    session = controlled_job(BUCKET, ACCUMULATION)
    async with opened(session, size=(100, 30)) as (app, pilot):
        await shown(app, pilot, "u", "down", UP, rest_s=SETTLE_S)
        assert sent(session) == ["set accumulation 8"]
        obey(session, session.sent[0], 40, "4", "8", ACCUMULATION)
        send_knobs(session, BUCKET, with_value(ACCUMULATION, "8"))
        assert "accumulation 8 [ ]" in await shown(app, pilot, "escape")
        assert "bucket 25 MiB [ ]" in await shown(app, pilot, "u", "up", "enter", "escape")
        lines = (await shown(app, pilot, "u")).splitlines()
        row = next(at for at, line in enumerate(lines) if "accumulation" in line)
        await pilot.click(offset=(5, row), times=2)
        assert "accumulation 8 [ ]" in await shown(app, pilot, "escape")


async def test_r_goes_back_to_what_the_script_gave_and_the_line_of_code_is_whole_where_it_is_narrow():
    session = controlled_job(with_value(BUCKET, "400"), ACCUMULATION)
    async with opened(session, size=(40, 20)) as (app, pilot):
        lines = await shown(app, pilot, "u")
        assert BUCKET.code.replace("{value}", "400") in "".join(line.strip() for line in lines.splitlines())
        assert "25 MiB (script)" in await shown(app, pilot, "r", rest_s=SETTLE_S)
    assert sent(session) == ["restore bucket_cap_mb"]


async def test_the_log_has_the_newest_first_with_who_and_what_became_of_it():
    session = controlled_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 40, "25", "50")
        await shown(app, pilot)
        await shown(app, pilot, UP, rest_s=SETTLE_S)
        report(session, session.sent[1], "refused", None, "no more memory", ranks=(0,))
        later_ns = session.sent[1].at_ns + 1
        obey(session, by_another(session, 7, by="eve@there", at_ns=later_ns), 90, "50", "7")
        lines = (await shown(app, pilot, "7")).splitlines()
    log = [" ".join(line.split()[1:]) for line in lines if line[4:5] == ":" and "bucket" in line]
    assert log == [
        "bucket 50 → 7 MiB eve@there changed at step 90",
        "bucket → 100 MiB you not changed: rank 0 refused: no more memory",
        "bucket 25 → 50 MiB you changed at step 40",
    ]


# Where nothing can be changed


@pytest.mark.parametrize(
    ("made", "stands", "in_tune"),
    [
        (
            uncontrolled,
            "bucket 25 MiB (needs --control)",
            f"Cannot be changed: {NOT_ALLOWED}.",
        ),
        (ended, "bucket 25 MiB", ""),
        (lambda: running_job(2), NOTHING, "overlaptop.agent.knob()"),
    ],
    ids=["without control", "over", "without knobs"],
)
async def test_a_job_of_which_nothing_can_be_changed_offers_no_key_and_no_prompt(made, stands, in_tune):
    async with opened(made(), size=SIZES[1]) as (app, pilot):
        assert "[ ]" not in await shown(app, pilot)
        assert stands in await shown(app, pilot, UP)
        why = line_of(await shown(app, pilot), "✗")
        assert why not in await shown(app, pilot, "d")
        assert why in await shown(app, pilot, UP)
        await pilot.press("b")
        assert not app.screen.query(Input)
        overview = await shown(app, pilot)
        tune = await shown(app, pilot, "7")
        assert in_tune in one_line(tune)
        for text in (overview, tune):
            for words in ("[] knob", "script's", "enter select"):
                assert words not in text.splitlines()[-1]


async def test_with_readonly_no_key_changes_anything_or_is_offered_and_anothers_change_is_told():
    session = controlled_job()
    obey(session, by_another(session, by="eve@there\x1b[2J, pid 7"), 40, "25", "25")
    async with opened(session, readonly=True) as (app, pilot):
        text = await shown(app, pilot)
        assert "changed at step 40" in text
        assert "by eve@there?[2J, pid 7" in text
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
            for word in ("[ ]", "try", "capture", "workloads", "script's", "exact"):
                assert word not in foot
        text = await shown(app, pilot, "question_mark")
        offered = {command.title for command in app.get_system_commands(app.screen)}
    assert session.sent == []
    for key in APP_KEYS:
        if changes_job(key.action):
            assert key.words not in text
            assert key.action not in offered
    assert "tune" in offered


@pytest.mark.parametrize(("screen", "own"), [("1", ()), ("u", ("r", "enter"))])
async def test_with_readonly_keys_that_would_change_the_job_say_once_why_not_and_no_others_do(screen, own):
    async with opened(controlled_job(), readonly=True) as (app, pilot):
        await pilot.press("N", "t", "slash", "a", "escape", screen)
        assert not app._notifications
        for key in (UP, DOWN, "b", "a", "A", "x", "c", "w", *own):
            await pilot.press(key, key)
            (told,) = app._notifications
            assert told.message == READONLY
            app.clear_notifications()


async def test_there_is_no_prompt_where_there_is_no_job():
    async with opened(FakeSession(hub_state=HubState.WAITING, job_key=None), size=(100, 30)) as (
        app,
        pilot,
    ):
        await pilot.press("b", UP, "7", "a")
        assert not app.screen.query(Input)
        assert not isinstance(app.screen, TuneScreen)


# Words from elsewhere, and every size


@pytest.mark.parametrize("size", SIZES[:2])
async def test_words_of_a_knob_are_shown_as_words_and_steer_neither_terminal_nor_markup(size):
    words = dict.fromkeys(
        ("value_text", "original_text", "unit", "owner", "about", "code"), f"7{HOSTILE}{{value}}"
    )
    session = controlled_job(replace(BUCKET, value=7, **words))
    async with opened(session, size=size) as (app, pilot):
        every = ("1", "b", "escape u", "b", "x enter", f"escape {UP}", "1", "a", "escape", "u", "1")
        for number, keys in enumerate(every):
            if number == 8:
                report(session, session.sent[0], "refused", None, HOSTILE, ranks=(0,))
            text = await shown(app, pilot, *keys.split(), rest_s=1)
            assert fills(app, size), keys
        assert "]0;pwned" in text
