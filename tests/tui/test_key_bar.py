"""The keys at the foot of each screen, at every width."""

import pytest
from msgspec.structs import replace

from .fakes import opened, running_job, shown
from .knobs import ACCUMULATION, BUCKET, controlled_job
from .launchers import FakeLauncher, started_here

WIDTHS = (200, 120, 80, 60)


async def foot(app, pilot):
    return (await shown(app, pilot)).splitlines()[-1]


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("knob", [BUCKET, replace(ACCUMULATION, name="prefetch_backward")])
async def test_foot_of_the_overview_orders_keys_by_use_at_every_width(held, knob):
    session = controlled_job(knob)
    launcher = started_here(session) if held else FakeLauncher()
    async with opened(session, launcher=launcher, size=(250, 20)) as (app, pilot):
        for width in WIDTHS:
            await pilot.resize_terminal(width, 20)
            line = await foot(app, pilot)
            at = [line.index(f" {key} ") for key in ("f", "T", "C", "enter", "W", "?", "q")]
            assert at == sorted(at), width
            assert "…" not in line, width


@pytest.mark.parametrize(
    ("pressed", "keys"),
    [
        ("1", ("f", "T", "C", "enter", "W", "?", "q")),
        ("enter", ("esc", "?", "[ ]", "tab", "↑ ↓", "q")),
        ("m", ("esc", "?", "↑ ↓", "[ ]", "q")),
        ("u", ("?",)),
        ("o", ("enter", "↑ ↓", "w", "?", "q")),
        ("w", ("enter", "esc", "↑ ↓", "tab", "F9", "F1")),
        ("5", ("esc", "c", "?", "q")),
        ("n", ("esc", "↑ ↓", "?", "q")),
        ("c escape", ("?",)),
        ("a escape", ("?",)),
    ],
)
async def test_each_screen_has_its_own_keys_at_its_foot_and_help_at_every_width(pressed, keys):
    session = controlled_job()
    async with opened(session, launcher=started_here(session), size=(60, 24)) as (app, pilot):
        await pilot.press(*pressed.split())
        line = await foot(app, pilot)
        for key in keys:
            assert f" {key} " in line
        help_key = "?" if "?" in keys else "F1"
        for width in (*WIDTHS, 40, 20, 8) if help_key == "?" else WIDTHS:
            await pilot.resize_terminal(width, 24)
            assert help_key in (await foot(app, pilot)).split(), width


@pytest.mark.parametrize(("width", "words"), [(160, "q  quit and end the job  "), (60, "q end job")])
async def test_q_says_that_the_job_ends_where_it_does(width, words):
    session = controlled_job()
    launcher = started_here(session)
    async with opened(session, launcher=launcher, size=(width, 20)) as (app, pilot):
        assert words in await foot(app, pilot)
        launcher.running = ""
        line = await foot(app, pilot)
        assert "end" not in line
        assert "quit" in line


async def test_a_key_that_ends_the_job_is_offered_only_while_one_runs():
    launcher = FakeLauncher()
    async with opened(running_job(), launcher=launcher, size=(160, 24)) as (app, pilot):
        await pilot.press("w")
        assert "F9" not in await foot(app, pilot)
        launcher.running = "ddp"
        assert "F9  end the job" in await foot(app, pilot)


@pytest.mark.parametrize("width", [160, 60])
async def test_a_click_on_a_hint_does_what_it_says(width):
    async with opened(controlled_job(), size=(width, 20)) as (app, pilot):
        for key, screen in ((" f ", "FindingsScreen"), (" T ", "TimelinesScreen")):
            line = await foot(app, pilot)
            await pilot.click(offset=(line.index(key) + 1, 19))
            await pilot.pause()
            assert type(app.screen).__name__ == screen
            await pilot.press("escape")
