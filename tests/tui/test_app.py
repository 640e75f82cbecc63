"""The dashboard, driven through Textual's pilot over snapshots of a scripted job."""

import re

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.color import Color
from textual.events import MouseScrollUp
from textual.widgets import Input

from overlaptop.fleet.snapshot import LinkState
from overlaptop.launch.request import LaunchRequest
from overlaptop.report.order import Filter, FilterError
from overlaptop.tui.app import OverlaptopApp
from overlaptop.tui.draw.themes import PALETTES, PLAIN
from overlaptop.tui.help.screen import HelpPage, HelpScreen, NoticesScreen
from overlaptop.tui.jobs.screen import JobsScreen
from overlaptop.tui.keys import (
    APP_KEYS,
    LIST_KEYS,
    MACHINE_KEYS,
    OVERVIEW_KEYS,
    RANK_KEYS,
    SEARCH_KEYS,
    TIMELINE_KEYS,
    TUNE_KEYS,
    WORKLOADS_KEYS,
)
from overlaptop.tui.machine.screen import MachineScreen
from overlaptop.tui.options import TuiOptions
from overlaptop.tui.overview.rank_table import RankTable
from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.tui.rank.screen import RankScreen
from overlaptop.tui.search.screen import SearchScreen
from overlaptop.tui.state import HOLD_S
from overlaptop.tui.timeline.collectives import Collectives
from overlaptop.tui.timeline.history_chart import HistoryChart
from overlaptop.tui.timeline.parts import PARTS
from overlaptop.tui.timeline.timeline import Timeline
from overlaptop.tui.tune.screen import TuneScreen
from overlaptop.wire.messages import AGENT_DISABLED, CollectiveSpan, Notice, RankEnd
from tests.fleet.builders import T0, detail, info, status, step, unmeasured, welcome

from .fakes import (
    MS,
    WIDE,
    FakeSession,
    app_of,
    opened,
    running_job,
    screen_lines,
    screen_text,
    shown,
    table_ranks,
)
from .launchers import FakeLauncher, record
from .machines import cpu_only


async def test_the_overview_says_what_the_job_is_and_how_it_overlaps():
    async with opened(running_job()) as (app, pilot):
        text = await shown(app, pilot)
    for words in (
        "/home/me/train.py", "4 ranks", "2 hosts", "NVIDIA H200", "nccl 2.28.9", "kernels", "step 39",
        "● live",
        "overlap 73.3 %", "exposed 8.00 ms", "stall 1.50 ms", "idle 10.0 ms",
        "collectives in every step",
    ):  # fmt: skip
        assert words in text


async def test_launch_lead_and_named_collectives_are_shown_where_the_source_sees_them():
    session = running_job(1)
    async with opened(session) as (app, pilot):
        assert "lead" not in await shown(app, pilot)
        named = step(0, 40, launch_lead_ns=47 * MS, comm_kernels_ns=30 * MS, matched_ns=15 * MS)
        session.say(named, detail(0, 40))
        assert "lead 47.0 ms" in await shown(app, pilot)
        session.clock.pass_s(2)
        session.say(step(0, 41, launch_lead_ns=0), detail(0, 41))
        assert "launch-bound" in await shown(app, pilot)
        text = await shown(app, pilot, "enter")
    assert "launch-bound" in text
    assert "named 50.0 %" in text


async def test_each_rank_has_a_row_with_its_figures():
    async with opened(running_job()) as (app, pilot):
        await shown(app, pilot)
        assert table_ranks(app) == [0, 1, 2, 3]
        row = next(line for line in screen_lines(app) if line.split()[:1] == ["3"])
    assert row[row.index("53.3 %") :].split()[:6] == ["53.3", "%", "14.00", "3.00", "10.00", "84.00"]


async def test_the_timeline_shows_phases_lanes_stall_and_collectives():
    async with opened(running_job()) as (app, pilot):
        text = await shown(app, pilot)
    for words in ("forward", "backward", "optimizer", " compute ", " comm ", "│allreduce 25.0 MiB", "0 ms"):
        assert words in text


async def test_lanes_are_drawn_to_scale():
    async with opened(running_job(), ascii=True, size=(91, 45)) as (app, pilot):
        await shown(app, pilot)
        lines = screen_lines(app)
    # 80 ms over 80 cells, from the eleventh on: compute to 40, a stall to 50, compute to 80.
    compute = next(line for line in lines if line.startswith(" compute "))[10:90]
    comm = next(line for line in lines if line.startswith(" comm "))[10:90]
    assert compute == "#" * 40 + "x" * 10 + "#" * 30
    assert comm == " " * 20 + "=" * 10 + " " * 5 + "=" * 5 + "!" * 5 + " " * 35


async def test_the_chosen_ranks_timeline_is_asked_for():
    session = running_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        assert session.watched == {0}
        await pilot.press("down", "j")
        assert session.watched == {2}
        await pilot.press("k")
        assert session.watched == {1}
        await pilot.press("end")
        assert session.watched == {3}
        await pilot.press("home")
        assert session.watched == {0}


async def test_enter_opens_the_rank_and_escape_comes_back():
    async with opened(running_job()) as (app, pilot):
        await pilot.press("down", "enter")
        assert isinstance(app.screen, RankScreen)
        text = await shown(app, pilot)
        for words in (
            "rank 1",
            "host node0",
            "pid 1001",
            "torch 2.13.0",
            "compute only",
            "step time",
            "overlap",
        ):
            assert words in text
        assert "allgather_base" in text
        assert "rank 2" in await shown(app, pilot, "tab")
        await pilot.press("shift+tab", "escape")
        assert isinstance(app.screen, OverviewScreen)
        assert app.dashboard.state.rank == 1


async def test_pause_holds_the_picture_while_data_is_kept():
    session = running_job()
    async with opened(session) as (app, pilot):
        assert "step 39" in await shown(app, pilot)
        await pilot.press("space")
        session.clock.pass_s(7)
        for rank in range(4):
            session.say(step(rank, 40))
        text = await shown(app, pilot)
        assert "paused since" in text
        assert "(7 s)" in text
        assert "step 39" in text
        text = await shown(app, pilot, "p")
        assert "paused" not in text
        assert "step 40" in text
        assert len(app.dashboard.state.snapshot.ranks[0].history) == 41


async def test_sorting_goes_through_the_columns_and_back():
    async with opened(running_job()) as (app, pilot):
        await pilot.press("s")
        assert app.dashboard.state.sort_key == "overlap"
        await shown(app, pilot)
        assert table_ranks(app) == [3, 2, 1, 0]
        assert "overlap▲" in screen_text(app)
        await shown(app, pilot, "S")
        assert table_ranks(app) == [0, 1, 2, 3]
        await pilot.press("r", "s", "s", "s", "s", "s")
        assert app.dashboard.state.sort_key == "rank"


@pytest.mark.parametrize(("size", "least"), [(WIDE, 6), ((100, 30), 6), ((60, 20), 4)])
async def test_the_column_that_is_sorted_by_keeps_its_name_and_unit(size, least):
    async with opened(running_job(), size=size) as (app, pilot):
        seen = 0
        for key in ("rank", "overlap", "exposed ms", "stall ms", "idle ms", "step ms"):
            header = next(line for line in (await shown(app, pilot)).splitlines() if "╷0 ms ─" in line)
            seen += f"{key}▲" in header or f"{key}▼" in header
            await pilot.press("s")
    assert seen == least


async def test_a_filter_works_while_it_is_typed_and_escape_drops_it():
    async with opened(running_job()) as (app, pilot):
        await shown(app, pilot, "slash", *"overlap<70")
        assert table_ranks(app) == [2, 3]
        text = await shown(app, pilot, "enter")
        assert "2 of 4 ranks" in text
        assert not app.screen.query(Input)
        await shown(app, pilot, "escape")
        assert table_ranks(app) == [0, 1, 2, 3]
        await shown(app, pilot, "slash", *"1-2", "escape")
        assert table_ranks(app) == [0, 1, 2, 3]


async def test_a_filter_that_means_nothing_says_so_and_keeps_the_last_that_did():
    async with opened(running_job()) as (app, pilot):
        assert "not one of overlap" in await shown(app, pilot, "slash", *"nothing<1")


async def test_a_filter_without_a_match_says_so():
    async with opened(running_job()) as (app, pilot):
        assert "no rank matches 9" in await shown(app, pilot, "slash", *"9", "enter")


async def test_zoom_pan_and_reset():
    async with opened(running_job()) as (app, pilot):
        await pilot.press("plus", "z")
        assert app.dashboard.state.viewport.zoom == pytest.approx(2.25)
        assert "zoom 2.25×" in await shown(app, pilot)
        left = app.dashboard.state.viewport.left
        await pilot.press("right", "l")
        assert app.dashboard.state.viewport.left > left
        await pilot.press("left", "h", "h")
        assert app.dashboard.state.viewport.left < left
        await pilot.press("minus")
        assert app.dashboard.state.viewport.zoom == pytest.approx(1.5)
        await pilot.press("0")
        assert app.dashboard.state.viewport.zoom == 1


async def test_a_collective_can_be_chosen_and_zoomed_to():
    async with opened(running_job()) as (app, pilot):
        await pilot.press("enter", "down", "down")
        assert app.dashboard.state.collective == 1
        await pilot.press("enter")
        # 35 to 45 of 80 ms with as much on each side.
        assert app.dashboard.state.viewport.bounds_ns(80) == (pytest.approx(25), pytest.approx(55))
        assert "╰" in await shown(app, pilot)


async def test_the_zoom_to_a_collective_follows_it_from_step_to_step():
    session = running_job()
    app = app_of(session)

    def next_step(number, *starts_ms, size=25 << 20):
        spans = [CollectiveSpan("allreduce_", size, "0", True, at * MS, (at + 10) * MS) for at in starts_ms]
        return replace(detail(0, number), collectives=tuple(spans))

    async def bounds_ms(pilot, *messages):
        session.say(*messages)
        session.clock.pass_s(HOLD_S)
        await shown(app, pilot)
        state = app.dashboard.state
        return [round(at) for at in state.viewport.bounds_ns(state.lanes.detail.step_ns / MS)]

    async with app.run_test(size=WIDE) as pilot:
        await bounds_ms(pilot, next_step(40, 20, 40))
        await pilot.press("enter", "end", "down", "down", "enter")
        assert await bounds_ms(pilot) == [30, 60]
        assert await bounds_ms(pilot, next_step(41, 10, 30)) == [20, 50]
        assert "╰" in screen_text(app)
        # One of another kind comes before it: it is still the second of its own.
        other = replace(next_step(42, 5, size=4).collectives[0], op="broadcast")
        more = next_step(42, 15, 48)
        more = replace(more, collectives=(other, *more.collectives))
        assert await bounds_ms(pilot, more) == [38, 68]
        assert app.dashboard.state.collective == 2
        # A step without it leaves the window where it is; the next one with it does not.
        assert await bounds_ms(pilot, next_step(43, 15)) == [38, 68]
        assert app.dashboard.state.collective is None
        await pilot.press("plus")
        assert await bounds_ms(pilot, next_step(44, 0, 40)) == [35, 55]
        # Who looks elsewhere stays there.
        await pilot.press("left")
        assert await bounds_ms(pilot, next_step(45, 0, 60)) == [31, 51]


def with_collectives(*ops, number=40):
    spans = (
        CollectiveSpan(op, 4 << 20, "0 default_pg", True, at * MS, (at + 1) * MS)
        for at, op in enumerate(ops)
    )
    return replace(detail(0, number), collectives=tuple(spans))


@pytest.mark.parametrize("size", [(160, 45), (100, 30)])
async def test_the_name_of_a_collective_takes_the_room_that_there_is(size):
    op = "_reduce_scatter_base_coalesced"
    session = running_job()
    session.say(with_collectives("allreduce_", op))
    async with opened(session, size=size) as (app, pilot):
        text = await shown(app, pilot)
    assert f"1  {op.strip('_')}  " in text


async def test_a_list_of_collectives_that_does_not_fit_says_how_many_more_there_are():
    session = running_job()
    session.say(with_collectives(*["allreduce_"] * 40))
    async with opened(session, size=(100, 30)) as (app, pilot):
        await pilot.press("2")

        async def listed():
            """The numbers that are in sight, and the words below them."""
            lines = (await shown(app, pilot)).splitlines()
            first = next(at for at, line in enumerate(lines) if line.split()[:2] == ["#", "op"]) + 1
            rows = [line.replace("▸", " ").split() for line in lines[first:]]
            numbers = [int(row[0]) for row in rows if row[1:2] == ["allreduce"]]
            return numbers, rows[len(numbers)]

        numbers, below = await listed()
        assert below == ["…", str(40 - len(numbers)), "more"]
        await pilot.press("down", *["pagedown"] * 2)
        numbers, below = await listed()
        assert numbers[-1] == app.dashboard.state.collective == 20
        assert below == ["…", "19", "more"]
        await pilot.press(*["pagedown"] * 2)
        numbers, below = await listed()
        assert numbers[-1] == 39
        assert below[:1] != ["…"]


async def test_what_says_nothing_in_this_job_makes_room():
    session = cpu_only()
    async with opened(session, size=(100, 30)) as (app, pilot):
        text = await shown(app, pilot)
        assert "dropped" not in text
        assert "stall " not in text.replace("██ stall", "")
        assert text.index("speed-up ") < text.index("idle not seen")
        assert "dropped" not in await shown(app, pilot, "2")
        session.say(status(dropped=3))
        assert "dropped 3" in await shown(app, pilot, "1")


def contrast(color, background):
    """As WCAG 2 defines it, from 1 to 21."""

    def luminance(name):
        parts = [part / 255 for part in Color.parse(name).get_truecolor()]
        red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(color), luminance(background)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", [each for each in PALETTES.values() if each is not PLAIN])
def test_every_part_of_a_step_stands_out_against_the_screen(palette):
    for name in (*PARTS, "history"):
        # What WCAG 2 asks of graphics.
        assert contrast(palette.colors[name], palette.colors["screen"]) >= 3, name


async def test_the_list_of_collectives_can_be_hidden_and_shown():
    async with opened(running_job()) as (app, pilot):
        assert "allgather_base  " in await shown(app, pilot)
        assert "allgather_base  " not in await shown(app, pilot, "v")
        assert "allgather_base  " in await shown(app, pilot, "v", "full_stop")
        assert app.dashboard.state.collective == 0


async def test_help_lists_every_key_and_the_words():
    async with opened(running_job(), size=(120, 200)) as (app, pilot):
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        text = await shown(app, pilot)
        for key in (
            *APP_KEYS, *OVERVIEW_KEYS, *TIMELINE_KEYS, *RANK_KEYS, *MACHINE_KEYS, *TUNE_KEYS, *SEARCH_KEYS,
            *WORKLOADS_KEYS,
        ):  # fmt: skip
            assert key.words in text
        for word in (
            "hidden",
            "exposed",
            "compute only",
            "idle",
            "stall",
            "speed-up",
            "attainable",
            "source",
        ):
            assert f"\n  {word} " in text
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)


@pytest.mark.parametrize(
    ("running", "words"),
    [
        (None, "quit; the job goes on"),
        ("", "quit; the job goes on"),
        ("ddp", "quit; ddp, started here, ends; other jobs go on"),
    ],
)
async def test_help_says_whether_a_job_ends_with_the_dashboard(running, words):
    launcher = None if running is None else FakeLauncher()
    if running:
        launcher.running = running
    async with opened(running_job(), launcher=launcher, size=(160, 200)) as (app, pilot):
        assert words in await shown(app, pilot, "question_mark")


async def test_help_scrolls_where_it_does_not_fit():
    async with opened(running_job(), size=(60, 20)) as (app, pilot):
        text = await shown(app, pilot, "f1", "end")
        assert "not known; never zero" in text
        assert "Overview" in await shown(app, pilot, "home")


@pytest.mark.parametrize("size", [WIDE, (60, 20)])
@pytest.mark.parametrize(
    ("keys", "title", "key", "word"),
    [
        ("1", "Overview", "drop the filter", "overlap"),
        ("2", "A rank's screen", "next collective", "named"),
        ("m", "Machine", "to the node before", "unexplained"),
        ("u", "Tune", "previous knob", "knob"),
        ("a", "Search", "leave; the search goes on", "★"),
        ("n", "Notices", "ten up", None),
        ("o", "Jobs", "ten up", None),
    ],
)
async def test_help_opens_on_the_keys_and_words_of_the_screen_that_it_was_asked_on(
    size, keys, title, key, word
):
    async with opened(running_job(), size=size) as (app, pilot):
        await pilot.press(*keys, "f1")
        assert isinstance(app.screen, HelpScreen)
        lines = screen_lines(app)
        assert lines[0].strip() == title
        page = app.screen.query_one(HelpPage).lines(size[0])
        said = ["".join(run.text for run in line) for line in page]
        (at,) = (at for at, line in enumerate(said) if key in line and at < said.index(" Everywhere"))
        if word is not None:
            here = said.index(" Words here")
            assert at < here < said.index(" Everywhere")
            assert any(line.startswith(f"  {word} ") for line in said[here : said.index(" Everywhere")])


async def test_every_bound_key_has_an_action():
    app = app_of(running_job())
    async with app.run_test(size=WIDE):
        for keys, owner in (
            (APP_KEYS, app),
            ((*OVERVIEW_KEYS, *TIMELINE_KEYS), OverviewScreen),
            ((*RANK_KEYS, *TIMELINE_KEYS), RankScreen),
            (LIST_KEYS, JobsScreen),
            (MACHINE_KEYS, MachineScreen),
            (TUNE_KEYS, TuneScreen),
            (SEARCH_KEYS, SearchScreen),
        ):
            for key in keys:
                name = key.action.partition("(")[0]
                target = app if name.startswith("app.") else owner
                assert hasattr(target, f"action_{name.removeprefix('app.')}"), key


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_q_and_ctrl_c_quit(key):
    async with opened(running_job()) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
    assert not app.is_running
    assert (app.return_code or 0) == 0


async def test_notices_are_counted_and_listed_newest_first():
    session = running_job()
    session.say(
        Notice(2, T0, "info", "joined the group"),
        Notice(3, T0, "info", "joined the group"),
        Notice(3, T0 + 1, "error", "CUPTI is held by nsys"),
    )
    async with opened(session) as (app, pilot):
        assert "2 notices (n)" in await shown(app, pilot)
        await pilot.press("n")
        assert isinstance(app.screen, NoticesScreen)
        text = await shown(app, pilot)
        assert re.search(r"ranks 2-3 +info +joined the group", text)
        assert text.index("CUPTI is held by nsys") < text.index("joined the group")
        await pilot.press("n")
        assert isinstance(app.screen, OverviewScreen)


async def test_digits_turn_to_views():
    async with opened(running_job()) as (app, pilot):
        for key, kind in (
            ("2", RankScreen),
            ("3", NoticesScreen),
            ("4", JobsScreen),
            ("6", MachineScreen),
            ("1", OverviewScreen),
        ):
            await pilot.press(key)
            assert isinstance(app.screen, kind), key


async def test_themes_go_round_and_come_back():
    async with opened(running_job()) as (app, pilot):
        seen = [app.theme]
        for _ in range(len(PALETTES) - 1):
            await pilot.press("t")
            await pilot.pause()
            seen.append(app.theme)
        assert seen[0] == seen[-1]
        assert set(seen) == set(PALETTES) - {PLAIN.name}


async def test_the_command_palette_offers_the_keys_actions():
    app = app_of(running_job())
    async with app.run_test(size=WIDE):
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert {"quit", "help", "pause", "notices"} <= set(titles)


async def test_an_unknown_theme_is_refused():
    with pytest.raises(ValueError, match="no theme 'pink'"):
        app_of(running_job(), theme="pink")


async def test_a_click_chooses_a_rank_and_a_double_click_opens_it():
    async with opened(running_job()) as (app, pilot):
        await shown(app, pilot)
        await pilot.click(RankTable, offset=(10, 3))
        assert app.dashboard.state.rank == 2
        await pilot.click(RankTable, offset=(10, 3), times=2)
        assert isinstance(app.screen, RankScreen)


async def test_a_click_on_a_header_sorts():
    async with opened(running_job()) as (app, pilot):
        await shown(app, pilot)
        header = next(line for line in screen_lines(app) if "exposed ms" in line)
        await pilot.click(RankTable, offset=(header.index("exposed ms") + 2, 0))
        assert (app.dashboard.state.sort_key, app.dashboard.state.reverse) == ("exposed", True)


async def test_the_wheel_zooms_the_timeline():
    async with opened(running_job()) as (app, pilot):
        await shown(app, pilot)
        timeline = app.screen.query_one(Timeline)
        await pilot._post_mouse_events([MouseScrollUp], timeline, offset=(40, 3))
        assert app.dashboard.state.viewport.zoom > 1


async def test_where_compute_is_an_upper_bound_the_figures_say_so():
    async with opened(running_job(exact=False)) as (app, pilot):
        text = await shown(app, pilot)
    for words in ("overlap ≤73.3 %", "exposed ≥8.00 ms", "idle not seen", "speed-up ≤", "upper bound"):
        assert words in text


async def test_each_row_of_the_table_says_whether_its_own_figures_are_bounds():
    session = running_job(2)
    session.say(info(1, exact=False))
    async with opened(session) as (app, pilot):
        lines = (await shown(app, pilot)).splitlines()
        header = next(at for at, line in enumerate(lines) if line.strip().startswith("rank"))
        exact, bounds = lines[header + 1 : header + 3]
        assert "≤" not in exact
        assert "≥" not in exact
        assert "≤80.0 %" in bounds
        assert "≥6.0" in bounds
        assert "overlap ≤80.0 %" in await shown(app, pilot, "down", "enter")


def starting(rank, **changes):
    """A rank as its agent tells of it before torch is loaded."""
    before = {
        "source": "none", "source_reason": "torch is not loaded yet", "detail_every": 0,
        "torch_version": "", "backend": "", "device": "", "compute_exact": False,
    }  # fmt: skip
    return info(rank, **(before | changes))


@pytest.mark.parametrize("size", [WIDE, (100, 30), (60, 20)])
async def test_before_the_first_step_the_screen_says_calmly_what_the_job_waits_for(size):
    session = FakeSession(welcome(), status())
    async with opened(session, size=size) as (app, pilot):

        async def waits_for(words):
            text = await shown(app, pilot)
            assert "starting" in text
            assert words in text
            for alarm in ("phases only", "not loaded yet", " none ", "upper bound"):
                assert alarm not in text

        await waits_for("its ranks: 0 of 2 are there")
        session.say(starting(0))
        await waits_for("its ranks: 1 of 2 are there")
        session.say(starting(1))
        await waits_for("torch to load on 2 of 2 ranks")
        session.say(starting(0, torch_version="2.13.0"))
        await waits_for("torch to load on 1 of 2 ranks")
        said = {
            "torch_version": "2.13.0",
            "source_reason": "no step seen yet: an optimizer's step ends one",
        }
        for rank in (0, 1):
            session.say(starting(rank, **said))
        await waits_for("the first step to end")
        for rank in (0, 1):
            session.say(info(rank))
        await waits_for("the first whole step")
        session.say(step(0, 0))
        assert "starting" not in await shown(app, pilot)


async def test_a_job_whose_agents_gave_up_does_not_start_for_ever():
    session = FakeSession(welcome(world_size=1), status())
    session.say(starting(0, source_reason=AGENT_DISABLED))
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot)
        assert "waiting for torch" not in text
        assert AGENT_DISABLED in text


async def test_the_source_is_named_once_and_its_reason_where_there_is_one():
    session = running_job(2)
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        first, second = screen_lines(app)[:2]
        assert "kernels" in first
        assert not second.strip()
        for rank in (0, 1):
            session.say(info(rank, exact=False, source_reason="CUPTI is taken"))
        await shown(app, pilot)
        first, second = screen_lines(app)[:2]
        assert "events" in first
        assert second.startswith(" events: CUPTI is taken   compute is an upper bound")


@pytest.mark.parametrize("size", [WIDE, (100, 30), (60, 20)])
async def test_what_is_wrong_with_a_filter_is_said_in_full(size):
    async with opened(running_job(), size=size) as (app, pilot):
        for words in ("overlapp<80", "exposed>3parsecs", "nvlink>3ms"):
            with pytest.raises(FilterError) as refused:
                Filter.parse(words)
            await pilot.press("slash")
            app.screen.query_one(Input).value = words
            await pilot.pause()
            text = await shown(app, pilot)
            assert str(refused.value) in " ".join(text.split())
            assert f"filter /{words}" in text
            assert str(refused.value)[:12] not in await shown(app, pilot, "escape")


async def test_what_was_not_measured_is_a_dash_and_never_zero():
    session = FakeSession(welcome(), status(), info(0, detail_every=0), unmeasured(0, 0))
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot)
        row = next(line for line in screen_lines(app) if line.split()[:2] == ["▸", "0"])
    assert "overlap –" in text
    assert "exposed –" in text
    assert "phases only" in row
    assert row.split().count("–") == 4
    assert "no timeline: this agent measures phases only" in text


async def test_a_rank_that_was_never_seen_says_so():
    session = FakeSession(welcome(world_size=2), status(), info(0), step(0, 0))
    async with opened(session) as (app, pilot):
        assert "◌ not seen yet" in await shown(app, pilot)


async def test_stale_and_ended_ranks_say_so():
    session = running_job()
    async with opened(session) as (app, pilot):
        session.clock.pass_s(60)
        session.say(RankEnd(1, T0, True))
        text = await shown(app, pilot)
    assert text.count("○ no step since") == 3
    assert "■ ended" in text


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (LinkState.STALE, "○ stale since"),
        (LinkState.LOST, "○ lost since"),
        (LinkState.ENDED, "■ ended since"),
    ],
)
async def test_the_header_says_how_the_line_is_and_since_when(link, words):
    session = running_job()
    async with opened(session) as (app, pilot):
        session.fleet.set_link(link, "why it is so")
        session.clock.pass_s(14)
        text = await shown(app, pilot)
    assert words in text
    assert "(14 s)" in text
    assert "why it is so" in text


async def test_the_last_picture_of_a_lost_job_is_pale():
    session = running_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        table = app.screen.query_one(RankTable)
        assert not any(run.style.faded for run in table._lines[1])
        session.fleet.set_link(LinkState.LOST, "")
        await shown(app, pilot)
        assert all(run.style.faded for run in table._lines[1])


async def test_a_timeline_stands_still_for_a_second():
    session = running_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        session.say(detail(0, 76))
        assert "rank 0  step 76" in await shown(app, pilot)
        session.clock.pass_s(0.5)
        session.say(detail(0, 77))
        assert "rank 0  step 76" in await shown(app, pilot)
        session.clock.pass_s(0.6)
        assert "rank 0  step 77" in await shown(app, pilot)


async def test_an_old_timeline_of_a_rank_that_one_turns_to_gives_way_to_the_first_news():
    session = running_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        assert "rank 1  step 39" in await shown(app, pilot, "down")
        session.say(detail(1, 90))
        assert "rank 1  step 90" in await shown(app, pilot)


async def test_only_lines_that_changed_are_drawn_again():
    session = running_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        table = app.screen.query_one(RankTable)
        before = list(table._strips)
        session.say(step(2, 40))
        app.dashboard.latest = session.tick()
        app.show()
        redrawn = [
            at for at, (old, new) in enumerate(zip(before, table._strips, strict=True)) if old is not new
        ]
    assert redrawn == [3]


def places(text, *words):
    """Column of each of these words on the line of totals."""
    line = next(line for line in text.splitlines() if line.startswith(" overlap "))
    return [line.index(word) for word in words]


async def test_what_stands_beside_a_figure_does_not_move_when_the_figure_changes():
    session = FakeSession(welcome(), status(), info(0, exact=False), step(0, 0, hidden=30))
    app = app_of(session)
    names = ("exposed", "stall", "idle", "speed-up", "collectives")
    async with app.run_test(size=WIDE) as pilot:
        before = places(text := await shown(app, pilot), *names)
        assert "≤100.0 %" in text
        for number, hidden in enumerate((1, 29.9, 0.02), 1):
            session.say(step(0, number, hidden=hidden, stall=hidden))
            assert places(await shown(app, pilot), *names) == before


async def test_the_bars_scale_does_not_follow_each_step():
    session = FakeSession(welcome(world_size=1), status(), info(0))
    async with opened(session) as (app, pilot):
        headers = set()
        for number, idle in enumerate((17.5, 13, 16, 14.2)):
            session.say(step(0, number, idle=idle))
            await shown(app, pilot)
            headers.add(next(line for line in screen_lines(app) if "╷0 ms ─" in line))
    assert len(headers) == 1


async def test_a_ranks_screen_speaks_of_one_step():
    session = running_job()
    session.say(step(0, 40, comm=30, hidden=3), step(0, 41, comm=30, hidden=0))
    session.say(detail(0, 40))
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot, "enter")
    assert " step 40  overlap 10.0 %" in text
    assert " rank 0  step 40 " in text


@pytest.mark.parametrize("width", range(60, 161, 20))
async def test_no_figure_is_cut(width):
    session = running_job()
    many = [
        CollectiveSpan("allreduce_", 25 << 20, "tp", True, at * MS, (at + 3) * MS) for at in range(0, 76, 5)
    ]
    session.say(replace(detail(0, 39), collectives=tuple(many)))
    async with opened(session, size=(width, 45)) as (app, pilot):
        text = await shown(app, pilot)
        names = next(line for line in screen_lines(app) if line.lstrip().startswith("│"))
        assert set(names.replace("│", " ").split()) <= {"allreduce", "25.0", "MiB"}
        assert names.count("25.0") == names.count("MiB")
        text += await shown(app, pilot, "enter")
    for line in text.splitlines():
        if line.startswith(" step time"):
            assert re.search(r"(step time|\d steps|\d ms)$", line.rstrip())


async def test_on_a_tall_screen_the_history_takes_what_the_collectives_leave():
    async with opened(running_job()) as (app, pilot):
        for key in ("1", "2"):
            await shown(app, pilot, key)
            await shown(app, pilot)
            listed, chart = app.screen.query_one(Collectives), app.screen.query_one(HistoryChart)
            assert listed.size.height >= 1 + 2
            assert chart.region.y == listed.region.bottom + 1
            assert chart.size.height >= 12


@pytest.mark.parametrize(
    ("every", "words"),
    [
        ((1, 1), "collectives in every step"),
        ((2, 2), "collectives in every 2nd step"),
        ((1, 2), "collectives in every 2nd step, on some ranks"),
        ((0, 0), "phases only"),
    ],
)
async def test_how_often_collectives_are_measured_is_said(every, words):
    session = FakeSession(welcome(), status())
    for rank, n in enumerate(every):
        session.say(info(rank, detail_every=n), step(rank, 0))
    async with opened(session) as (app, pilot):
        assert f"{words} " in await shown(app, pilot)


@pytest.mark.parametrize("size", [(160, 45), (100, 30), (60, 20), (40, 12), (20, 5), (10, 3), (2, 1)])
async def test_every_screen_fits_every_size(size):
    session = running_job(ranks=8)
    session.say(Notice(0, T0, "warning", "a long notice that wraps in a narrow terminal and says little"))
    async with opened(session, size=size) as (app, pilot):
        for keys in (
            (),
            ("enter",),
            ("escape", "question_mark"),
            ("escape", "n"),
            ("escape", "o"),
            ("1", "plus"),
        ):
            await shown(app, pilot, *keys)
            lines = screen_lines(app)
            assert len(lines) == size[1]
            assert all(len(line) == size[0] for line in lines)


@pytest.mark.parametrize(("size", "rows"), [((160, 45), 8), ((100, 30), 8), ((60, 20), 7), ((20, 5), 2)])
async def test_ranks_come_first_where_there_is_little_room(size, rows):
    async with opened(running_job(ranks=8), size=size) as (app, pilot):
        await shown(app, pilot)
        assert len(table_ranks(app)) >= rows


async def test_the_chosen_rank_stays_in_sight():
    async with opened(running_job(ranks=64), size=(80, 20)) as (app, pilot):
        await shown(app, pilot, "end")
        assert 63 in table_ranks(app)
        await shown(app, pilot, "pageup", "pageup", "home")
        assert 0 in table_ranks(app)


async def test_a_resize_lays_out_again():
    async with opened(running_job(), size=(60, 20)) as (app, pilot):
        assert "idle ms" not in await shown(app, pilot)
        await pilot.resize_terminal(160, 45)
        await pilot.pause()
        assert "idle ms" in await shown(app, pilot)


async def test_no_color_means_no_color_and_parts_differ_by_glyph(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(running_job()) as (app, pilot):
        text = await shown(app, pilot)
        for glyphs in ("██ compute only", "▓▓ hidden", "░░ exposed", "▞▞ copy only", "·· idle", "xx stall"):
            assert glyphs in text
        row = next(line for line in screen_lines(app) if line.split()[:2] == ["▸", "0"])
        assert {"█", "▓", "·"} <= set(row)
        for strip in app.screen._compositor.render_strips():
            for segment in strip:
                for color in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                    assert color is None or color.is_default
        for keys in (
            "enter",
            "escape",
            "question_mark",
            "escape",
            "t",
            "g",
            "slash",
            "3",
            "escape",
            "ctrl+p",
        ):
            await pilot.press(keys)
            await pilot.pause()


async def test_ascii_means_ascii():
    async with opened(running_job(exact=False), ascii=True) as (app, pilot):
        for key in ("1", "2", "3", "4", "question_mark"):
            assert (await shown(app, pilot, key)).isascii(), key


async def test_textures_can_be_turned_on_beside_colors():
    async with opened(running_job()) as (app, pilot):
        assert "▓▓ hidden" not in await shown(app, pilot)
        assert "▓▓ hidden" in await shown(app, pilot, "g")
        assert "▓▓ hidden" not in await shown(app, pilot, "g")


HOSTILE = "\x1b]0;pwned\x07\x9b2J\r\n\t\u202e\u200b[bold red]x[/]"


def hostile_job():
    """A job that says this wherever a message has room for words."""
    session = FakeSession(replace(welcome(), script=HOSTILE, host=HOSTILE), status())
    words = dict.fromkeys(
        ("host", "script", "device", "backend", "source_reason", "torch_version"), HOSTILE
    )
    session.say(info(0, **words), step(0, 39), Notice(0, T0, "error", HOSTILE))
    collective = CollectiveSpan(HOSTILE, 1 << 20, HOSTILE, True, 0, 10_000_000)
    session.say(replace(detail(0, 39), collectives=(collective,)))
    session.jobs = (replace(record("job-1", HOSTILE), host=HOSTILE, cwd=HOSTILE),)
    session.fleet.set_link(LinkState.LIVE, f"joining {HOSTILE}")
    return session


@pytest.mark.parametrize("size", [WIDE, (100, 30)])
async def test_words_from_a_machine_are_shown_as_words_and_steer_neither_terminal_nor_markup(size):
    async with opened(hostile_job(), size=size) as (app, pilot):
        for key in ("1", "2", "3", "4", "6"):
            await shown(app, pilot, key)
            lines = screen_lines(app)
            assert all(line.isprintable() for line in lines), key
            assert "]0;pwned" in "".join(lines), key
            assert [cell_len(line) for line in lines] == [size[0]] * size[1]
        assert "[bold red]x[/]" in screen_text(app)


async def test_a_filter_is_not_markup():
    async with opened(running_job()) as (app, pilot):
        assert "[red]<1: expected" in await shown(app, pilot, "slash", *"[red]<1")
        assert "no rank matches [red]" in await shown(app, pilot, "escape", "slash", *"[red]", "enter")


async def test_without_a_job_workloads_are_offered_and_started():
    launcher = FakeLauncher()
    session = FakeSession(link=LinkState.WAITING, job_key=None)
    async with opened(session, launcher=launcher) as (app, pilot):
        text = await shown(app, pilot)
        assert isinstance(app.screen, JobsScreen)
        assert "waiting for a job" in text
        assert "ddp" in text
        assert "-m overlaptop.agent" in text
        await pilot.press("enter")
        await app.workers.wait_for_complete()
        assert launcher.orders == [LaunchRequest("ddp")]


async def test_a_workload_that_cannot_start_says_why():
    session = FakeSession(link=LinkState.WAITING, job_key=None)
    async with opened(session, launcher=FakeLauncher(torch=False)) as (app, pilot):
        await shown(app, pilot)
        await pilot.press("enter")
        await app.workers.wait_for_complete()
        assert "ddp cannot be started: torch is not installed here" in await shown(app, pilot)


async def test_the_launchers_message_is_shown_until_its_job_is_there():
    launcher = FakeLauncher()
    launcher.start(launcher.plan(LaunchRequest("ddp")))
    launcher.comes_up()
    session = FakeSession(link=LinkState.WAITING, job_key=None)
    async with opened(session, launcher=launcher) as (app, pilot):
        assert "ddp is starting" in await shown(app, pilot)
        launcher.comes_up("job-1")
        session.jobs = (record("job-1"),)
        session.job_key = "job-1"
        session.fleet.set_link(LinkState.LIVE)
        session.say(welcome(), info(0), step(0, 0), status())
        await shown(app, pilot)
        text = await shown(app, pilot)
        assert isinstance(app.screen, OverviewScreen)
        assert "is starting" not in text


async def test_a_job_that_starts_by_itself_comes_on_the_screen():
    session = FakeSession(link=LinkState.WAITING, job_key=None)
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        assert isinstance(app.screen, JobsScreen)
        session.job_key = "job-1"
        session.fleet.set_link(LinkState.LIVE)
        session.say(welcome(), info(0), step(0, 0), status())
        await shown(app, pilot)
        assert isinstance(app.screen, OverviewScreen)


async def test_of_several_jobs_one_is_chosen_from_a_list():
    session = FakeSession(
        link=LinkState.WAITING, jobs=(record("job-a", "a.py"), record("job-b", "b.py")), job_key=None
    )
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot)
        assert "2 jobs on this machine" in text
        assert "a.py" in text
        assert "b.py" in text
        await pilot.press("down", "enter")
        assert session.selected == ["job-b"]
        assert isinstance(app.screen, OverviewScreen)


async def test_the_list_of_jobs_stays_until_the_user_leaves_it():
    session = running_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot, "o")
        assert isinstance(app.screen, JobsScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)


async def test_drawing_is_seldom_although_reading_is_not():
    drawn = []

    class Counting(OverlaptopApp):
        def show(self):
            drawn.append(session.ticks)
            super().show()

    session = running_job()
    async with Counting(session, TuiOptions(refresh_hz=2)).run_test(size=WIDE) as pilot:
        while len(drawn) < 4:
            await pilot.pause(0.05)
    # However slow this machine is, more than one reading falls between two drawings.
    assert session.ticks > len(drawn)


async def test_a_job_whose_hub_still_tells_its_history_is_not_called_live():
    session = FakeSession(welcome(), info(0), info(1), step(0), step(1))
    async with opened(session) as (app, pilot):
        assert "◌ reading history" in (await shown(app, pilot)).splitlines()[0]
        session.say(status())
        assert "● live" in (await shown(app, pilot)).splitlines()[0]
