"""The overview of a job with more ranks than rows: a mark a rank."""

from overlaptop.tui.rank.screen import RankScreen
from tests.fleet.builders import sample

from .fakes import line_of, opened, shown, table_ranks
from .large import LATE, large_job

RANKS = 256


async def test_arrows_choose_a_row_or_a_mark_and_enter_opens_it():
    async with opened(large_job(RANKS)) as (app, pilot):
        for key, rank in (("down", LATE), ("right", LATE + 1), ("end", RANKS - 1), ("left", RANKS - 2)):
            await shown(app, pilot, key)
            assert app.dashboard.state.selected.rank == rank
            assert rank in app.dashboard.session.watched
        await pilot.press("enter")
        assert isinstance(app.screen, RankScreen)


async def test_m_chooses_a_known_quantity():
    session = large_job(RANKS)
    async with opened(session) as (app, pilot):
        before = await shown(app, pilot)
        assert "exposed median 10.0 ms" in line_of(before, " median ")
        names = [line_of(await shown(app, pilot, "M"), " median ").split()[0] for _ in range(4)]
        assert names == ["overlap", "compute", "step", "exposed"]
        session.say(*(sample(rank, sm_clock_hz=(1400 + rank % 2) * 10**6) for rank in range(RANKS)))
        for _ in range(4):
            await shown(app, pilot, "M")
        assert "clock median 1400 MHz" in line_of(await shown(app, pilot), " median ")


async def test_a_click_selects_a_mark_and_another_one_its_neighbour():
    async with opened(large_job(RANKS)) as (app, pilot):
        await shown(app, pilot)
        table = app.screen.query_one("RankTable")
        for rank in (40, 41, 40):
            await pilot.click(table, offset=(2 + 20, 1))
            assert app.dashboard.state.selected.rank == rank


async def test_sorting_and_filters_show_rows_again():
    async with opened(large_job(RANKS)) as (app, pilot):
        await shown(app, pilot)
        assert "M next" not in await shown(app, pilot, "s")
        await shown(app, pilot, "slash", *"136-139", "enter")
        assert set(table_ranks(app)) == {136, 137, 138, 139}
