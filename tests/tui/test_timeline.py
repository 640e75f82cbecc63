"""The timeline, its collectives and the history; and the timelines of all ranks on one axis."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from textual.events import MouseScrollUp

from overlaptop.tui.model.lanes import TimelineStep
from overlaptop.tui.model.state import HOLD_S
from overlaptop.tui.model.viewport import MAX_ZOOM, WHOLE_STEP
from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.tui.rank.screen import RankScreen
from overlaptop.tui.timeline.collectives import Collectives
from overlaptop.tui.timeline.timeline import Timeline
from overlaptop.wire.messages import CollectiveSpan
from tests.fleet.builders import MS, detail

from .fakes import line_of, opened, running_job, screen_text, shown
from .waits import waiting_job


def step_with(number, *starts_ms, op="allreduce_", size=25 << 20):
    """A detailed step of rank 0 with collectives that begin at these times."""
    spans = (CollectiveSpan(op, size, "0 pg", True, at * MS, (at + 10) * MS) for at in starts_ms)
    return replace(detail(0, number), collectives=tuple(spans))


async def test_rank_s_screen_opens_on_the_selected_rank():
    session = running_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        await pilot.press("end", "k", "home", "j", "enter")
        assert session.watched == {0, 1, 2, 3}
        assert isinstance(app.screen, RankScreen)
        assert "rank 2" in await shown(app, pilot, "tab")
        await pilot.press("shift+tab", "escape")
        assert isinstance(app.screen, OverviewScreen)
        assert app.dashboard.state.rank == 1


# Zoom and pan


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("zoom"), st.floats(0.1, 10), st.floats(0, 1)),
            st.tuples(st.just("pan"), st.floats(-3, 3), st.just(0.0)),
        )
    )
)
def test_a_viewport_never_leaves_the_step(moves):
    viewport = WHOLE_STEP
    for kind, amount, anchor in moves:
        before = viewport
        viewport = viewport.zoomed(amount, anchor) if kind == "zoom" else viewport.panned(amount)
        if kind == "zoom" and 0 < viewport.left < 1 - viewport.width:  # what is under the pointer stays
            at = before.left + anchor * before.width
            assert viewport.left + anchor * viewport.width == pytest.approx(at)
        assert 1 <= viewport.zoom <= MAX_ZOOM
        assert 0 <= viewport.left <= viewport.left + viewport.width <= 1 + 1e-9


async def test_keys_and_the_wheel_zoom_pan_and_reset():
    async with opened(running_job()) as (app, pilot):
        state = app.dashboard.state
        assert "zoom 2.25×" in await shown(app, pilot, "plus", "z")
        left = state.viewport.left
        await pilot.press("right", "l")
        assert state.viewport.left > left
        await pilot.press("left", "h", "h", "minus")
        assert state.viewport.left < left
        assert state.viewport.zoom == pytest.approx(1.5)
        await pilot.press("0")
        assert state.viewport == WHOLE_STEP
        await pilot._post_mouse_events([MouseScrollUp], app.screen.query_one(Timeline), offset=(40, 3))
        assert state.viewport.zoom > 1


async def test_selected_collective_stays_selected_from_step_to_step():
    session = running_job()
    session.say(step_with(40, 20, 40))
    async with opened(session) as (app, pilot):
        state = app.dashboard.state
        await shown(app, pilot)
        await pilot.press("enter", "end", "down", "down", "enter")
        assert state.collective == 1
        bounds = state.viewport.bounds_ns(state.lanes.detail.step_ns)
        assert [round(at_ns / MS) for at_ns in bounds] == [30, 60]  # as much again on each side
        assert "╰" in screen_text(app)
        # One of another kind comes before it: it is still the second of its own.
        more, other = step_with(42, 15, 48), step_with(42, 5, op="broadcast", size=4)
        session.say(replace(more, collectives=other.collectives + more.collectives))
        await shown(app, pilot, rest_s=HOLD_S)
        assert state.collective == 2
        session.say(step_with(43, 15))
        await shown(app, pilot, rest_s=HOLD_S)
        assert state.collective is None


# The list of collectives, and the history below it


async def test_list_of_collectives_scrolls_selects_and_hides():
    session = running_job()
    session.say(step_with(40, *range(40)))
    async with opened(session, size=(100, 30)) as (app, pilot):
        assert "more below" in await shown(app, pilot)
        assert "more below" not in await shown(app, pilot, "v")  # the history is in its place
        await shown(app, pilot, "v", "full_stop", "full_stop", "comma")
        assert app.dashboard.state.collective == 0
        await pilot.click(Collectives, offset=(10, 2))
        assert app.dashboard.state.collective == 1
        text = await shown(app, pilot, "2", *["pagedown"] * 4)
        assert re.search(r"^▸ +39 +allreduce ", text, re.MULTILINE)
        assert "more below" not in text


# All ranks on one axis


def test_ranks_share_one_axis_and_parts_cover_a_step_once():
    late = replace(detail(1), start_ns=detail(1).start_ns + 30 * MS)
    step = TimelineStep(0, {0: detail(0), 1: late})
    assert (step.length_ns, step.offset_ns(1)) == (110 * MS, 30 * MS)
    for rank in step.details:
        parts = step.parts(rank)
        assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
        assert (parts[0].start, parts[-1].end) == (0, 80 * MS)
        keys = "compute hidden compute hidden exposed idle compute"
        assert [part.key for part in parts] == keys.split()


async def test_timelines_say_what_the_selected_collective_cost():
    async with opened(waiting_job(), size=(91, 45), ascii=True) as (app, pilot):
        text = await shown(app, pilot, "T")
        # 80 ms over 80 cells, from the eleventh on; rank 2 comes 16 ms after the others.
        waits = "#" * 10 + ":" * 16 + "=" * 4 + "~" * 16 + "!" * 4 + "#" * 30
        assert line_of(text, ">      0  ")[10:90] == waits
        assert "● live" not in await shown(app, pilot, "full_stop", "full_stop")  # it holds the step
        text = await shown(app, pilot, "down", "down")
        cost = line_of(text, ">    1  allreduce").split()
        assert cost[3:] == ["2.00", "MiB", "4.00", "0.00", "2", "0.0", "%"]
        for key, zoom in (("enter", "zoom 6.67x"), ("0", ""), ("plus", "zoom 1.5x"), ("0", "")):
            assert "".join(re.findall(r"zoom [\d.]+x", await shown(app, pilot, key))) == zoom
