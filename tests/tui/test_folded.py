"""The overview of a job with more ranks than rows: a mark a rank."""

from overlaptop.tui.rank.screen import RankScreen
from tests.fleet.builders import sample

from .fakes import line_of, opened, screen_lines, shown, table_ranks
from .large import ABSENT_NODE, LATE, NODE_RANKS, SLOW_NODE, SLOW_PLACE, large_job

RANKS = 256


def marks(app):
    """The lines of marks, without those around them."""
    lines = screen_lines(app)
    first = next(at for at, line in enumerate(lines) if " median " in line) + 1
    return [line[2:].rstrip() for line in lines[first : first + RANKS]][: table_header(lines) - first]


def table_header(lines):
    return next(at for at, line in enumerate(lines) if line.strip().startswith("rank "))


def glyph(app, rank, width):
    """The glyph of a rank's cell, with ASCII marks."""
    line_ranks = 2 * (width - 4) // NODE_RANKS * NODE_RANKS
    return marks(app)[rank // line_ranks][rank % line_ranks // 2]


async def test_marks_show_deviating_ranks_and_groups():
    async with opened(large_job(RANKS), ascii=True) as (app, pilot):
        assert "248 of 256 ranks report" in await shown(app, pilot)
        width = app.size.width
        assert glyph(app, 0, width) == "@"
        assert {glyph(app, rank, width) for rank in (4, 6, 16, 24)} == {"o"}
        assert glyph(app, LATE, width) == "+"
        assert {glyph(app, at, width) for at in range(SLOW_PLACE, 80, NODE_RANKS)} == {"-"}
        in_node = range(NODE_RANKS * SLOW_NODE, NODE_RANKS * (SLOW_NODE + 1))
        assert {glyph(app, rank, width) for rank in in_node} == {"="}
        assert glyph(app, NODE_RANKS * ABSENT_NODE, width) == "?"
        assert glyph(app, 254, width) == "."
        await shown(app, pilot, "right")
        assert glyph(app, 16, width) == "."


async def test_arrows_choose_a_row_or_a_mark_and_enter_opens_it():
    async with opened(large_job(RANKS)) as (app, pilot):
        await shown(app, pilot, "down")
        assert app.dashboard.state.selected.rank == LATE
        await shown(app, pilot, "right")
        assert app.dashboard.state.selected.rank == LATE + 1
        await shown(app, pilot, "end")
        assert app.dashboard.state.selected.rank == RANKS - 1
        assert RANKS - 1 in app.dashboard.session.watched
        await shown(app, pilot, "left", "enter")
        assert isinstance(app.screen, RankScreen)
        assert app.dashboard.state.selected.rank == RANKS - 2


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
