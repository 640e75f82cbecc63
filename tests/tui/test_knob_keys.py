"""Knobs from the keyboard, driven through Textual's pilot over a scripted job."""

import pytest
from textual.widgets import Input

from overlaptop.fleet.job_session import READONLY
from overlaptop.fleet.knobs import NOT_ALLOWED
from overlaptop.tui.app import APP_KEYS
from overlaptop.tui.machine.screen import MachineScreen
from overlaptop.tui.model.keys import CHANGE_JOB
from overlaptop.tui.model.knob_editor import NOTHING, SETTLE_S, TAKE_BACK
from tests.fleet.builders import step
from tests.fleet.hub import sent

from .fakes import SIZES, WIDE, line_of, opened, running_job, screen_lines, shown
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


# From keys to a change


@pytest.mark.parametrize("size", SIZES[::2])
async def test_keys_show_the_target_and_send_it_when_they_rest(size):
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
        obey(session, session.sent[0], 40, "25", "100")
        text = await shown(app, pilot)
        assert "bucket 100 MiB [ ]" in text
        assert "25 → 100 MiB" in text or "25 MiB → 100 MiB" in text


async def test_keys_work_on_other_screens_with_progress_at_the_foot():
    session = controlled_job()
    async with opened(session) as (app, pilot):
        assert f"bucket 25 → 10 MiB  {TAKE_BACK}" in (await shown(app, pilot, "m", DOWN)).splitlines()[-2]
        assert isinstance(app.screen, MachineScreen)
        await shown(app, pilot, rest_s=SETTLE_S)
        obey(session, session.sent[0], 40, "25", "10")
        assert "changed at step 40" in (await shown(app, pilot)).splitlines()[-2]
        assert "changed at step 40" not in (await shown(app, pilot, rest_s=60)).splitlines()[-2]


async def test_b_takes_an_exact_value_or_script_or_says_what_is_wrong():
    session = controlled_job(with_value(BUCKET, "100"))
    async with opened(session, size=(100, 30)) as (app, pilot):

        async def type_in(*keys):
            await pilot.press(*keys)
            await pilot.pause()
            return "".join(screen_lines(app)[-2:])

        foot = await type_in("b")
        assert foot.startswith(" bucket: 100")
        assert "1 to 10000 MiB, or: script (25)" in foot
        foot = await type_in(*"25600", "enter")  # in place of what stood there
        assert "bucket_cap_mb must be from 1 to 10000, not 25600" in foot
        assert session.sent == []
        await type_in("backspace", "backspace", "enter")
        assert sent(session) == ["set bucket_cap_mb 256"]
        obey(session, session.sent[0], 40, "100", "256")
        await type_in("b", *"script", "enter")
        assert sent(session)[1:] == ["restore bucket_cap_mb"]
        assert "bucket 256 → 25 MiB (script)" in await shown(app, pilot)


# What a change brought


@pytest.mark.parametrize(("size", "ranks"), [(WIDE, 2), (SIZES[2], 4)])
async def test_result_of_a_change_moves_nothing_above_it(size, ranks):
    def row_of(text, words):
        return next(at for at, line in enumerate(text.splitlines()) if all(word in line for word in words))

    session = controlled_job(ranks=ranks)
    async with opened(session, size=size) as (app, pilot):
        before = await shown(app, pilot)
        pending = await shown(app, pilot, UP, rest_s=SETTLE_S)
        obey(session, session.sent[0], 40, "25", "50", ranks=ranks)
        session.say(*(step(rank, number) for number in range(40, 80) for rank in range(ranks)))
        after = await shown(app, pilot)
    assert "25 MiB → 50 MiB" in after or "bucket 25 → 50 MiB" in after
    for words in (("rank", "overlap", "step"), ("compute", "hidden"), ("step 39", "rank 0")):
        assert len({row_of(text, words) for text in (before, pending, after)}) == 1, words


# Tune


async def test_in_tune_keys_change_the_knob_at_the_cursor():
    session = controlled_job(BUCKET, ACCUMULATION)
    async with opened(session, size=(100, 30)) as (app, pilot):
        assert "to make it permanent" not in await shown(app, pilot, "u")  # it is the script's value
        await shown(app, pilot, "down", UP, rest_s=SETTLE_S)
        assert sent(session) == ["set accumulation 8"]
        obey(session, session.sent[0], 40, "4", "8", ACCUMULATION)
        send_knobs(session, BUCKET, with_value(ACCUMULATION, "8"))
        assert "accumulation 8 [ ]" in await shown(app, pilot, "escape")
        assert "bucket 25 MiB [ ]" in await shown(app, pilot, "u", "up", "enter", "escape")
        lines = (await shown(app, pilot, "u")).splitlines()
        row = next(at for at, line in enumerate(lines) if "accumulation" in line)
        await pilot.click(offset=(5, row), times=2)
        assert "accumulation 8 [ ]" in await shown(app, pilot, "escape")
        await shown(app, pilot, "u", "r", rest_s=SETTLE_S)
        assert sent(session)[1:] == ["restore accumulation"]


async def test_log_of_changes_has_the_newest_first():
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
            (" needs --control bucket_cap_mb", f"Cannot be changed: {NOT_ALLOWED}."),
        ),
        (ended, "bucket 25 MiB", ()),
        (lambda: running_job(2), NOTHING, ("overlaptop.agent.knob()",)),
    ],
)
async def test_job_that_cannot_be_changed_offers_no_key(made, stands, in_tune):
    async with opened(made(), size=SIZES[1]) as (app, pilot):
        assert "[ ]" not in await shown(app, pilot)
        assert stands in await shown(app, pilot, UP)
        why = line_of(await shown(app, pilot), "✗")
        assert why not in await shown(app, pilot, "d")
        assert why in await shown(app, pilot, UP)
        await pilot.press("b")
        assert not app.screen.query(Input)
        for key in ("escape", "7"):
            text = await shown(app, pilot, key)
            for words in ("[] knob", "script's", "enter select"):
                assert words not in text.splitlines()[-1]
        assert all(words in " ".join(text.split()) for words in in_tune)


async def test_readonly_dashboard_changes_nothing_and_says_so_once():
    session = controlled_job()
    obey(session, by_another(session, by="eve@there\x1b[2J, pid 7"), 40, "25", "25")
    async with opened(session, readonly=True) as (app, pilot):
        text = await shown(app, pilot)
        assert "changed at step 40" in text
        assert "by eve@there?[2J, pid 7" in text
        assert "read-only" in text.splitlines()[0]
        assert "bucket 25 MiB (read-only)" in text
        for screen in ("1", "u"):
            await pilot.press(screen)
            before = type(app.screen)
            for key in (UP, DOWN, "b", "a", "A", "x", "c", "w"):
                await pilot.press(key, key)
                assert type(app.screen) is before, key
                (told,) = app._notifications
                assert told.message == READONLY
                app.clear_notifications()
            foot = (await shown(app, pilot, "1", screen, rest_s=1)).splitlines()[-1]
            for word in ("[ ]", "try", "capture", "workloads", "script's", "exact"):
                assert word not in foot
        text = await shown(app, pilot, "question_mark")
    assert session.sent == []
    for key in APP_KEYS:
        if key.action in CHANGE_JOB:
            assert key.words not in text
