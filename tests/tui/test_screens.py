"""What all screens have in common: keys, help, notices, colours, sizes, and which screen is on top."""

import pytest
from rich.color import Color

from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs import last_end
from overlaptop.jobs.last_end import LastEnd
from overlaptop.launch.request import LaunchRequest
from overlaptop.tui.app import APP_KEYS
from overlaptop.tui.capture.screen import CaptureScreen
from overlaptop.tui.collectives.screen import CollectivesScreen
from overlaptop.tui.draw.themes import PALETTES, PLAIN
from overlaptop.tui.help.glossary import SECTIONS, WORDS
from overlaptop.tui.help.screen import NoticesScreen
from overlaptop.tui.jobs.screen import JobsScreen
from overlaptop.tui.machine.screen import MachineScreen
from overlaptop.tui.model.parts import PARTS
from overlaptop.tui.overview.screen import OverviewScreen, TimelinesScreen
from overlaptop.tui.rank.screen import RankScreen
from overlaptop.tui.tune.screen import TuneScreen
from overlaptop.tui.workloads.screen import WorkloadsScreen
from overlaptop.wire.messages import Notice, RankEnd
from tests.fleet.builders import T0, S, info, status, step, welcome
from tests.fleet.fakes import FakeSession, record

from .fakes import SIZES, colors, fills, line_of, opened, running_job, screen_of, shown
from .knobs import controlled_job
from .launchers import FakeLauncher
from .machines import cpu_only, h200_node, misplaced, unbound
from .waits import waiting_job


async def test_keys_open_screens_whose_keys_all_have_an_action():
    kinds = {
        "1": OverviewScreen, "2": RankScreen, "3": NoticesScreen, "4": JobsScreen, "5": CaptureScreen,
        "6": MachineScreen, "7": TuneScreen, "C": CollectivesScreen, "T": TimelinesScreen,
        "w": WorkloadsScreen,
    }  # fmt: skip
    async with opened(controlled_job(), launcher=FakeLauncher()) as (app, pilot):
        for opens, kind in kinds.items():
            await pilot.press("1", opens)
            assert isinstance(app.screen, kind), opens
            for binding in (*app.BINDINGS, *type(app.screen).BINDINGS):
                name = binding.action.partition("(")[0]
                of_app = binding in app.BINDINGS or name.startswith("app.")
                target = app if of_app else app.screen
                assert hasattr(target, f"action_{name.removeprefix('app.')}"), binding


# Help and notices


async def test_without_a_job_only_keys_that_do_something_are_offered():
    async with opened(FakeSession()) as (app, pilot):
        foot = (await shown(app, pilot)).splitlines()[-1]
        assert "F1 help q quit" in foot
        assert not any(word in foot for word in ("why", "timelines", "collectives", "window", "pause"))
        for key in "uac5TfCW":
            await pilot.press(key)
            (told,) = app._notifications
            assert told.message == "no job yet"
            app.clear_notifications()


async def test_the_command_palette_has_the_actions_of_keys_and_runs_them():
    async with opened(running_job()) as (app, pilot):
        commands = {each.title: each.callback for each in app.get_system_commands(app.screen)}
        assert {"machine", "tune", "next theme"} <= commands.keys()
        assert "next event" not in commands  # it is for recordings
        await commands["machine"]()
        assert isinstance(app.screen, MachineScreen)
        await pilot.press("ctrl+p")
        assert app.screen.query("CommandInput")


async def test_help_lists_every_key_and_word_those_of_its_screen_first():
    async with opened(running_job(), size=(120, 250)) as (app, pilot):
        text = await shown(app, pilot, "u", "question_mark")
        words = " ".join(text.split())
        of_jobs = (key for key in APP_KEYS if app.dashboard.state.offers(key.action))
        for key in (*of_jobs, *(key for keys in SECTIONS.values() for key in keys)):
            assert key.words in words
        for word in (word for _, words in WORDS for word in words):
            assert f"\n  {word} " in text
        keys, here = text.partition(" Everywhere")[0].split(" Words here")
        assert keys.split()[0] == "Tune"
        assert "previous knob" in keys
        assert "\n  knob " in here
        await pilot.resize_terminal(60, 20)
        assert "not known; never zero" in await shown(app, pilot, "end")


# Colours and glyphs


def luminance(name):
    """As WCAG 2 defines it."""
    parts = [part / 255 for part in Color.parse(name).get_truecolor()]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("palette", [each for each in PALETTES.values() if each is not PLAIN])
def test_every_part_of_a_step_stands_out_against_the_screen(palette):
    screen = luminance(palette.colors["screen"])
    for name in (*PARTS, "history"):
        low, high = sorted((screen, luminance(palette.colors[name])))
        assert (high + 0.05) / (low + 0.05) >= 3, name  # as WCAG 2 asks of graphics


async def test_themes_go_round_and_textures_can_be_added():
    async with opened(running_job()) as (app, pilot):
        for textured in (True, False):
            assert ("▓▓ hidden" in await shown(app, pilot, "g")) == textured
        seen = [app.theme]
        for _ in range(len(PALETTES) - 1):
            await pilot.press("t")
            await pilot.pause()
            seen.append(app.theme)
    assert seen[0] == seen[-1]
    assert set(seen) == set(PALETTES) - {PLAIN.name}


async def test_no_color_means_no_color_and_parts_differ_by_glyph(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(h200_node()) as (app, pilot):
        text = await shown(app, pilot)
        for glyphs in ("██ compute only", "▓▓ hidden", "░░ exposed", "▞▞ copy only", "·· idle", "xx stall"):
            assert glyphs in text
        assert {"█", "▓", "·"} <= set(line_of(text, "▸"))
        for key in ("1", "enter", "escape", "question_mark", "escape", *"tg", "slash", "3", "escape", "m"):
            await pilot.press(key)
            await pilot.pause()
            assert all(color.is_default for color in colors(app)), key


async def test_ascii_means_ascii():
    session = h200_node(numas={0: misplaced(0), 1: unbound(1)})
    async with opened(session, ascii=True) as (app, pilot):
        for key in ("1", "2", "3", "4", "question_mark", "m", "pagedown", "C", "T", "u"):
            assert (await shown(app, pilot, key)).isascii(), key


# Sizes


MACHINE = ("1 m end", "pagedown")
EACH = ("1 plus", "enter", "question_mark", "n", "1 o", "u", "a", *MACHINE, "1 w")


@pytest.mark.parametrize(
    ("make", "screens"),
    [
        (lambda: running_job(8), EACH),
        (waiting_job, ("1 C", "T", "1 f")),
        *((each, MACHINE) for each in (h200_node, cpu_only)),
    ],
    ids=["running", "waiting", "h200", "cpu"],
)
async def test_every_screen_fits_every_size(make, screens):
    session = make()
    session.say(Notice(0, T0, "warning", "a long notice that wraps in a narrow terminal and says little"))
    async with opened(session, launcher=FakeLauncher()) as (app, pilot):
        for size in (SIZES[2], (20, 5), (2, 1)):  # test_pages.py shows the usual ones
            await pilot.resize_terminal(*size)
            for keys in screens:
                await shown(app, pilot, *keys.split())
                assert fills(app, size), (size, keys)


# Which job is on the screen


def waiting(**session):
    """No job, or none that was selected."""
    return FakeSession(hub_state=HubState.WAITING, job_key=None, **session)


@pytest.mark.parametrize(
    ("failure", "minutes_ago", "named"), [("SyntaxError: no", 0, True), ("ValueError", 11, False)]
)
async def test_without_a_job_the_last_failed_one_is_named(socket_dir, failure, minutes_ago, named):
    end = RankEnd(1, T0 - minutes_ago * 60 * S, clean=True, failure=failure)
    last_end.write(LastEnd("train.py", end.at_ns, (end,)))
    text = " ".join((await screen_of(waiting(), size=(60, 20))).split())
    assert (f"ago: rank 1 failed: {failure}" in text) == named


async def test_without_a_job_a_workload_can_be_started():
    launcher, session = FakeLauncher(), waiting()
    async with opened(session, launcher=launcher) as (app, pilot):
        await shown(app, pilot)
        assert isinstance(app.screen, JobsScreen)
        await pilot.press("w", "enter", "escape")
        assert launcher.requests == [LaunchRequest("ddp")]
        launcher.comes_up()
        assert "ddp is starting" in await shown(app, pilot)
        launcher.comes_up("job-1")
        session.jobs, session.job_key = (record("job-1"),), "job-1"
        session.fleet.set_hub_state(HubState.LIVE)
        session.say(welcome(), info(0), step(0, 0), status())
        await shown(app, pilot)
        assert "is starting" not in await shown(app, pilot)
        assert isinstance(app.screen, OverviewScreen)


async def test_list_of_jobs_stays_until_one_is_chosen():
    session = waiting(jobs=(record("job-a", "a.py"), record("job-b", "b.py")))
    async with opened(session) as (app, pilot):
        assert "2 jobs on this machine" in await shown(app, pilot)
        await pilot.press("escape")
        assert isinstance(app.screen, JobsScreen)
        await pilot.press("down", "enter")
        assert session.selected == ["job-b"]
        assert isinstance(app.screen, OverviewScreen)
