"""The overview over snapshots of a scripted job: what it says, of which step, and in how much space."""

import re

from overlaptop.fleet.snapshot import HubState
from overlaptop.text import clock
from overlaptop.tui.overview.rank_table import RankTable
from overlaptop.tui.rank.screen import RankScreen
from overlaptop.wire.messages import RESTARTED, Notice, RankEnd
from tests.fleet.builders import T0, S, detail, info, status, step, unmeasured, welcome
from tests.fleet.fakes import FakeSession

from .fakes import SIZES, line_of, opened, row_of, running_job, shown, table_ranks
from .knobs import BUCKET, controlled_job, send_knobs, with_value
from .waits import STEPS, say_step, waiting_job


async def test_bounds_are_marked_once_and_the_source_is_named():
    session = running_job(2)
    async with opened(session) as (app, pilot):
        assert not (await shown(app, pilot)).splitlines()[1].strip()
        session.say(*(info(rank, exact=False, source_reason="CUPTI is taken") for rank in (0, 1)))
        session.say(Notice(0, T0, "warning", f"{RESTARTED} once"))
        for size in SIZES:
            await pilot.resize_terminal(*size)
            text = await shown(app, pilot)
            assert f"torchrun restarted the job at {clock(T0)}" in text.splitlines()[1]
            assert re.findall(r"[≤≥≈][\d.]+", text) == ["≤86.7"]


# Of which steps and moment


async def test_w_chooses_the_window_of_all_but_the_first_line():
    session = waiting_job(late_ms=8)
    for number in range(STEPS, STEPS + 6):
        session.tick()
        say_step(session, number, late=1, late_ms=8)
    async with opened(session) as (app, pilot):
        for of in ("last 20 s (14 steps)", "last 60 s (14 steps)", "last 10 steps", "step 13"):
            text = await shown(app, pilot)
            assert f" {of}, mean of 4 ranks W" in text
            assert "ranks 1 and 2 are late in turn, in 24 of 24" in text
            await pilot.press("W")
        assert "exposed 18.0 ms = waiting 6.0 + transfer 12.0 " in text
        assert "last 20 s" in await shown(app, pilot)


async def test_rows_totals_and_timeline_are_of_one_recent_step():
    session = running_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot, *"WWW")
        for rest_s, number, drawn, parts in ((0, 40, 40, {"comm": 54, "hidden": 0}), (0.5, 41, 40, {})):
            session.say(*(step(rank, number, **parts) for rank in range(4)), detail(0, number))
            text = await shown(app, pilot, rest_s=rest_s)
            assert f"rank 0  step {drawn}" in text
            assert f"step {drawn}, mean of 4 ranks" in text
            assert f"step {drawn} " in text.splitlines()[0]
            assert row_of(text, 0).partition("%")[2].split()[0] == "54.0"
        assert "step 41, mean of 4 ranks" in await shown(app, pilot, rest_s=0.6)
        session.say(*(step(rank, number) for number in range(42, 200) for rank in range(4)))
        session.say(*(unmeasured(rank, 200, ms=70) for rank in range(4)))
        assert re.search(r"step 199 +80\.0 ms ", (await shown(app, pilot)).splitlines()[0])


async def test_pause_holds_one_moment_until_a_change_is_requested():
    session = controlled_job()
    async with opened(session) as (app, pilot):
        assert "bucket 25 MiB" in await shown(app, pilot)
        await pilot.press("space")
        session.clock.pass_s(7)
        session.say(step(0, 40), step(1, 40))
        send_knobs(session, with_value(BUCKET, "50"))
        text = await shown(app, pilot)
        for words in ("paused since", "(7 s)", "step 39", "bucket 25 MiB"):
            assert words in text
        text = await shown(app, pilot, "right_square_bracket")
        assert "paused" not in text
        assert "step 40" in text
        assert "bucket 50 →" in text


async def test_only_changed_lines_are_drawn_and_a_lost_job_fades():
    session = running_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        table = app.screen.query_one(RankTable)
        before = list(table._strips)
        session.say(step(2, 40))
        app.dashboard.latest = session.tick()
        app.show()
        pairs = enumerate(zip(before, table._strips, strict=True))
        assert [at for at, (old, new) in pairs if old is not new] == [3]
        assert not any(run.style.faded for run in table._lines[1])
        session.fleet.set_hub_state(HubState.LOST, "")
        await shown(app, pilot)
        assert all(run.style.faded for run in table._lines[1])


# Jobs that begin, end, or stand still


async def test_before_the_first_step_the_screen_says_what_is_awaited():
    before = {"source": "none", "detail_every": 0, "torch_version": "", "backend": "", "device": ""}
    loaded = before | {"torch_version": "2.13.0"}
    session = FakeSession(welcome(), status())
    async with opened(session, size=SIZES[2]) as (app, pilot):
        for said, words in (
            ((), "its ranks: 0 of 2 are there"),
            ((info(0, **before),), "its ranks: 1 of 2 are there"),
            ((info(1, **before),), "torch to load on 2 of 2 ranks"),
            ((info(0, **loaded),), "torch to load on 1 of 2 ranks"),
            ((info(1, **loaded),), "the first step to end"),
            ((info(0), info(1)), "the first whole step"),
        ):
            session.say(*said)
            text = await shown(app, pilot)
            assert "starting" in text
            assert words in text
        session.say(step(0, 0))
        assert "starting" not in await shown(app, pilot)


async def test_every_view_says_why_no_step_is_measured():
    why = "steps with recv_ on gloo are left out: its end is hidden"
    told = [info(rank, exact=False, source="host", source_reason=why) for rank in (0, 1)]
    session = FakeSession(welcome(), status(), *told)
    session.say(*(unmeasured(rank, number) for rank in (0, 1) for number in range(9)))
    async with opened(session) as (app, pilot):
        assert f"overlap is not known: {why}" in await shown(app, pilot)
        for key, words in (
            ("1", "no timeline:"), ("2", "no timeline:"), ("C", "no collective to show:"),
            ("T", "no timeline:"), ("f", "No findings:"),
        ):  # fmt: skip
            assert f"{words} {why}" in await shown(app, pilot, key)
        session.say(step(0, 9), step(1, 9), detail(0, 9))
        for key in "12CTf":
            assert "are left out" not in (await shown(app, pilot, key)).split("\n", 2)[2]


async def test_paused_screen_says_that_the_job_has_failed():
    async with opened(waiting_job(), size=SIZES[2]) as (app, pilot):
        await shown(app, pilot, "space")
        app.dashboard.session.say(RankEnd(1, T0 + S, clean=True, failure="ValueError: no"))
        assert "■ paused · rank 1 failed" in await shown(app, pilot)
        await pilot.press("left_curly_bracket")
        assert "ago · rank 1 failed" in await shown(app, pilot)


# Order, filter, mouse


async def test_filter_keeps_previous_result_while_invalid():
    async with opened(running_job()) as (app, pilot):
        await shown(app, pilot, "slash", *"1-3")
        assert table_ranks(app) == [1, 2, 3]
        text = await shown(app, pilot, "enter", "slash", *"ste")
        assert "no rank matches ste" in text
        assert table_ranks(app) == [1, 2, 3]
        fault = "step>: expected e.g. overlap<80 or step>50ms"
        for keys in ("p>", ["enter"]):
            assert fault in await shown(app, pilot, *keys)
            assert app.screen.prompt.words == "step>"
            assert table_ranks(app) == [1, 2, 3]
        text = await shown(app, pilot, *"80", "space", *"ms", "enter")
        assert "/step>80 ms  1 of 4 ranks" in text
        assert app.screen.prompt is None
        for keys in (("escape",), ("slash", *"1-2", "escape")):
            await shown(app, pilot, *keys)
            assert table_ranks(app) == [0, 1, 2, 3]


async def test_keys_and_clicks_sort_select_and_open():
    async with opened(running_job()) as (app, pilot):
        assert "overlap▲" in await shown(app, pilot, "s")
        assert table_ranks(app) == [3, 2, 1, 0]
        await shown(app, pilot, "S")
        assert table_ranks(app) == [0, 1, 2, 3]
        await pilot.press("r", *"sssss")
        assert app.dashboard.state.sort_key == "rank"
        header = line_of(await shown(app, pilot), "exposed ms")
        await pilot.click(RankTable, offset=(10, 3))
        assert app.dashboard.state.rank == 2
        await pilot.click(RankTable, offset=(header.index("exposed ms") + 2, 0))
        assert (app.dashboard.state.sort_key, app.dashboard.state.reverse) == ("exposed", True)
        await pilot.click(RankTable, offset=(10, 3), times=2)
        assert isinstance(app.screen, RankScreen)


# Columns and rows in little space


async def test_small_screens_show_ranks_first_and_the_selected_one():
    async with opened(running_job(ranks=16)) as (app, pilot):
        for size, rows in ((SIZES[2], 6), ((20, 5), 2)):
            await pilot.resize_terminal(*size)
            await shown(app, pilot)
            assert len(table_ranks(app)) >= rows
            for keys, rank in ((("end",), 15), (("pageup", "pageup", "home"), 0)):
                await shown(app, pilot, *keys)
                assert rank in table_ranks(app)
