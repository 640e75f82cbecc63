"""The collectives of a step on all ranks: what each cost, in what order, and why one is not attributed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop.report.links import bus_peak_bytes_per_s
from overlaptop.timeline.matching import match
from overlaptop.tui.collectives.rows import grouped, ordered, rows_of
from overlaptop.tui.overview.screen import TimelinesScreen
from overlaptop.wire.messages import CollectiveSpan
from tests.fleet.builders import MS, SWITCHED, detail, info

from .fakes import line_of, opened, shown
from .machines import NVLINK_PEAK, device, h200_node
from .waits import say_step, waiting_job

calls = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), min_size=1, max_size=5)


@given(calls, calls, st.lists(st.integers(0, 80), max_size=6))
def test_parts_of_a_row_add_up_and_groups_count_a_moment_once(a, b, compute):
    ns = sorted(set(compute))[: len(set(compute)) // 2 * 2]
    details = {rank: replace(detail(rank), compute_spans_ns=tuple(ns)) for rank in (0, 1)}
    begun_ns = details[0].start_ns
    issued = {
        rank: [
            CollectiveSpan("allreduce_", 1024, "all", True, begun_ns + start, begun_ns + start + length, at)
            for at, (start, length) in enumerate(own)
        ]
        for rank, own in ((0, a), (1, b))
    }
    rows = rows_of(match(issued), details)
    for row in rows:
        mean_ns = sum(end_ns - start_ns for start_ns, end_ns in row.members[0].spans.values()) / 2
        assert row.hidden_ns + row.exposed_ns == pytest.approx(mean_ns, abs=1)
        if not row.not_attributed:
            assert row.wait_ns + row.transfer_ns == pytest.approx(mean_ns, abs=1)
    [together] = grouped(rows, "op", details)
    moments = [
        {ns - begun_ns for row in rows for ns in range(*row.members[0].spans[rank])} for rank in details
    ]
    in_compute = {at for start, end in zip(ns[::2], ns[1::2], strict=True) for at in range(start, end)}
    hidden_ns = sum(len(each & in_compute) for each in moments) / 2
    exposed_ns = sum(len(each - in_compute) for each in moments) / 2
    assert together.hidden_ns == pytest.approx(hidden_ns, abs=1)
    assert together.exposed_ns == pytest.approx(exposed_ns, abs=1)
    if not together.not_attributed:
        assert together.wait_ns + together.transfer_ns == pytest.approx(hidden_ns + exposed_ns, abs=1)
    for by in ("exposed", "waiting", "start"):
        assert sorted(map(id, ordered(rows, by))) == sorted(map(id, rows))


async def test_collective_that_is_not_attributed_says_why():
    job = waiting_job(ends=lambda rank: 45 if rank == 3 else 50)
    async with opened(job) as (app, pilot):
        text = await shown(app, pilot, "C")
        assert "1 not attributed" in text
        row = line_of(text, "▸")
        assert row.split()[-9:] == ["–", "–", "0.00", "14.75", "–", "–", "the", "ends", "disagree"]
        assert "start▲" in await shown(app, pilot, "s", "s", "s")
        assert "start▼" in await shown(app, pilot, "S")
        assert line_of(await shown(app, pilot, "tab"), "▸").split()[1:3] == ["allreduce", "×2"]
        await pilot.press("shift+tab", "S", "s", "s", "s")
        await pilot.resize_terminal(60, 20)
        assert "not attributed: the ends disagree" in " ".join((await shown(app, pilot)).split())


async def test_enter_shows_the_selected_collective_on_the_timelines():
    session = waiting_job(ranks=2)
    for rank in (0, 1):
        spans = [
            CollectiveSpan("allreduce_", 1 << 20, "all", True, (at + rank) * MS, (at + 2) * MS, at)
            for at in range(40)
        ]
        session.say(replace(detail(rank, 8), collectives=tuple(spans)))
    session.clock.pass_s(2)
    async with opened(session, size=(100, 30)) as (app, pilot):
        assert re.search(r"… \d+ more below", await shown(app, pilot, "C"))
        text = await shown(app, pilot, "end", "enter")
        assert isinstance(app.screen, TimelinesScreen)
        assert re.search(r"▸ +\d+  allreduce +1.00 MiB ", text)


def test_bus_has_the_peak_of_its_slowest_link():
    slower, apart, on_one = (h200_node(2) for _ in range(3))
    slower.say(device(1, 1, SWITCHED, nvlink_peak_bytes_per_s=NVLINK_PEAK // 2))
    apart.say(info(1, host="gpu-b"))
    on_one.say(device(1, 0))
    for job, peak in (
        *((h200_node(2), NVLINK_PEAK), (slower, NVLINK_PEAK // 2), (apart, None), (on_one, None)),
        (waiting_job(ranks=2), None),
    ):
        assert bus_peak_bytes_per_s(job.tick().ranks[:2]) == peak


@pytest.mark.parametrize("keys", [("C", "down"), ("C", "enter"), ("T", "full_stop")])
async def test_cursor_on_collectives_holds_the_step(keys):
    session = waiting_job()
    async with opened(session) as (app, pilot):
        assert "← past step" not in await shown(app, pilot, keys[0], rest_s=2)
        await pilot.press(keys[1])
        say_step(session, 8)
        text = await shown(app, pilot, rest_s=5)
        assert "← past step 7, " in text
        assert re.search(r"(Collectives|rank 0)  step 7 ", text)
        text = await shown(app, pilot, "space", rest_s=2)
        assert "← past step" not in text
        assert re.search(r"(Collectives|rank 0)  step 8 ", text)
