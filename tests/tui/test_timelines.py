"""The timelines of all ranks on one axis, and the cursor that reads them out."""

import re

from msgspec.structs import replace

from overlaptop.timeline.matching import match
from overlaptop.tui.model.lanes import lanes_of
from overlaptop.tui.timeline.timeline import LABEL, LaneRows
from overlaptop.tui.timelines.aligned import Cursor, aligned, neighbour, under
from overlaptop.tui.timelines.screen import Timelines, read_out
from tests.fleet.builders import MS, detail

from .fakes import line_of, opened, shown, text_of
from .waits import waiting_job


def late_by(rank, ms):
    """Its step begins so much later than that of the others."""
    made = detail(rank)
    return replace(made, start_ns=made.start_ns + ms * MS)


def test_ranks_share_one_axis_and_parts_cover_a_step_once():
    step = aligned({0: detail(0), 1: late_by(1, 30)}, match({}))
    assert step.length_ns == 110 * MS
    assert step.offset_ns(1) == 30 * MS
    for parts in step.parts.values():
        assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
        assert (parts[0].start, parts[-1].end) == (0, 80 * MS)
        keys = "compute hidden compute hidden exposed idle compute"
        assert [part.key for part in parts] == keys.split()


def test_what_is_under_the_cursor_is_told_lane_by_lane():
    step = aligned({1: late_by(1, 0)}, match({}))
    found = under(step, 1, Cursor(41 * MS, 41 * MS, 42 * MS))
    spans = [(each.lane, each.start_ns // MS, each.end_ns // MS) for each in found]
    assert spans == [("backward", 20, 60), ("comm", 35, 45), ("stall", 40, 50)]
    # Of a cell with several in it first what is at the cursor itself.
    for selected, calls in ((None, [1, 0]), (0, [0, 1])):
        cursor = Cursor(36 * MS, 0, 80 * MS, selected)
        assert [each.call for each in under(step, 1, cursor) if each.lane == "comm"] == calls
    moves = ((0, 1), (20, 1), (35, 1), (35, -1), (20, -1))
    assert [neighbour(step, 1, at * MS, way) for at, way in moves] == [0, 1, None, 0, None]


def test_read_out_says_when_a_rank_s_step_begins_and_ends():
    step = aligned({0: detail(0), 1: late_by(1, 30)}, match({}))
    for rank, at, words in ((1, 10, "its step begins at 30.0"), (0, 100, "its step ended at 80.0")):
        lines = read_out(step, rank, Cursor(at * MS, at * MS, (at + 1) * MS), 100, 6, exact=True)
        assert any(words in part.text for part in lines[1])


def test_mark_of_the_selected_collective_cuts_no_name():
    made = detail(1)
    spans = [replace(each, end_ns=70 * MS) for each in made.collectives]
    lanes = lanes_of(replace(made, collectives=tuple(spans)))
    for width in range(20, 90, 7):
        row = LaneRows(lanes, (0, 80 * MS), width, textured=False).names(1)
        assert re.fullmatch(r" *│(allreduce)?( \S+ MiB)? *╰─+╯ *", text_of(row))


async def test_cursor_goes_to_collectives_and_reads_out_their_waits():
    async with opened(waiting_job(), size=(91, 45), ascii=True) as (app, pilot):
        text = await shown(app, pilot, "T")
        # 80 ms over 80 cells, from the eleventh on; rank 2 comes 16 ms after the others.
        waits = "|" + "#" * 9 + ":" * 16 + "=" * 4 + "~" * 16 + "!" * 4 + "#" * 30
        assert line_of(text, "> 0  ")[10:90] == waits
        assert line_of(text, "  2  ")[10:90] == "|" + "#" * 25 + "=" * 4 + "#" * 16 + "!" * 4 + "#" * 30
        text = await shown(app, pilot, "full_stop", "full_stop")
        assert "rank 0  at 30.00 ms" in text
        at = text.index(" comm     30.00 - 50.00 ms  20.0 ms  allreduce 2.00 MiB")
        cost = text[at:].splitlines()[1].split()
        assert " ".join(cost) == "waiting 16.0 ms, transfer 4.00 ms late rank 2 0.79 GB/s hidden 0.0 %"
        text = await shown(app, pilot, "down", "down", "right", "comma")
        assert "rank 2  at 46.00 ms" in text
        assert "waiting 0, transfer 4.00 ms" in text
        text = await shown(app, pilot, "enter")
        assert "zoom 6.67x" in text
        assert "zoom 6" not in await shown(app, pilot, "0")
        assert "zoom 1.5x" in await shown(app, pilot, "plus")
        await pilot.press("0")
        await pilot.click(
            Timelines, offset=(LABEL + 20, text.splitlines().index(line_of(text, "  1  ")) - 1)
        )
        assert "rank 1  at 20.50 ms" in await shown(app, pilot)
