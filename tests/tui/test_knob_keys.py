"""Knobs from the keyboard, driven through Textual's pilot over a scripted job."""

import pytest

from overlaptop.fleet.job_session import READONLY
from overlaptop.fleet.knobs import NOT_ALLOWED
from overlaptop.tui.app import APP_KEYS
from overlaptop.tui.model.keys import CHANGE_JOB
from overlaptop.tui.model.knob_editor import NOTHING, SETTLE_S, TAKE_BACK
from tests.fleet.builders import info, step
from tests.fleet.hub import sent

from .fakes import SIZES, line_of, opened, running_job, screen_lines, shown
from .knobs import ACCUMULATION, BUCKET, by_another, controlled_job, obey, send_knobs, with_value

UP, DOWN = "right_square_bracket", "left_square_bracket"


# From keys to a change


async def test_keys_work_on_other_screens_with_progress_at_the_foot():
    session = controlled_job()
    async with opened(session) as (app, pilot):
        assert f"bucket 25 → 10 MiB  {TAKE_BACK}" in (await shown(app, pilot, "m", DOWN)).splitlines()[-2]
        assert session.sent == []
        await shown(app, pilot, rest_s=SETTLE_S)
        obey(session, session.sent[0], 40, "25", "10")
        for rest_s, is_news in ((0, True), (60, False)):
            assert ("changed at step 40" in await shown(app, pilot, rest_s=rest_s)) is is_news


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


async def test_result_of_a_change_moves_nothing_above_it():
    session = controlled_job()
    async with opened(session, size=SIZES[2]) as (app, pilot):
        pages = [await shown(app, pilot), await shown(app, pilot, UP, rest_s=SETTLE_S)]
        obey(session, session.sent[0], 40, "25", "50")
        session.say(*(step(rank, number) for number in range(40, 80) for rank in range(2)))
        pages.append(await shown(app, pilot))
    assert "bucket 25 → 50 MiB" in pages[-1]
    for words in ("rank ", "compute", "rank 0"):
        assert len({page.splitlines().index(line_of(page, words)) for page in pages}) == 1, words


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


# Where nothing can be changed


def uncontrolled():
    """A job that was started without --control."""
    session = controlled_job()
    session.say(info(0), info(1))
    return session


@pytest.mark.parametrize(
    ("made", "stands", "in_tune"),
    [
        (uncontrolled, "bucket 25 MiB (needs --control)", f"Cannot be changed: {NOT_ALLOWED}."),
        (lambda: running_job(2), NOTHING, "overlaptop.agent.knob()"),
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
        assert app.screen.prompt is None
        text = await shown(app, pilot, "7")
        assert not any(words in text.splitlines()[-1] for words in ("[] knob", "script's", "enter select"))
        assert in_tune in " ".join(text.split())


async def test_readonly_dashboard_changes_nothing_and_says_so_once():
    session = controlled_job()
    obey(session, by_another(session, by="eve@there\x1b[2J, pid 7"), 40, "25", "25")
    async with opened(session, readonly=True) as (app, pilot):
        text = await shown(app, pilot)
        assert "changed at step 40" in text
        assert "by eve@there?[2J, pid 7" in text
        assert "read-only" in text.splitlines()[0]
        assert "bucket 25 MiB (read-only)" in text
        for key in (UP, DOWN, "b", "a", "A", "x", "c", "w"):
            before = type(app.screen)
            await pilot.press(key, key)
            assert type(app.screen) is before, key
            (told,) = app._notifications
            assert told.message == READONLY
            app.clear_notifications()
        foot = (await shown(app, pilot)).splitlines()[-1]
        assert not any(word in foot for word in ("[ ]", "try", "capture", "workloads"))
        text = await shown(app, pilot, "question_mark")
    assert session.sent == []
    for key in APP_KEYS:
        if key.action in CHANGE_JOB:
            assert key.words not in text
