"""The Machine view over jobs on machines of several kinds, and the parts that it is made of."""

import re

import pytest
from msgspec.structs import replace

from overlaptop.tui.rank.screen import RankScreen
from overlaptop.wire.devices import MachineFacts, NumaNode, Unknown
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import SWITCHED, T0, info, step

from .fakes import SIZES, line_of, opened, running_job, screen_of, screen_text, shown
from .machines import (
    device,
    dual_socket,
    h200_node,
    job_of,
    minute_of,
    misplaced,
    numa,
    sample,
    site,
    workstation,
)

# What it says of a machine


def in_containers():
    """Each rank sees its own GPU and node only."""
    session = job_of(2)
    for rank in range(2):
        cpus = NumaNode(rank, f"{rank * 8}-{rank * 8 + 7}", None)
        unknown = Unknown("nics", "no /sys/class/net in this container")
        machine = MachineFacts(rank, "gpu-a", (cpus,), (), (site(rank, rank),), (unknown,))
        session.say(info(rank), step(rank, 0), machine, device(rank, rank), numa(rank, rank))
    return session


def without_peak():
    session = h200_node(1)
    session.say(device(0, 0, nvlink_peak_bytes_per_s=None))
    return session


def between_nodes(own_gb):
    """The collectives account for that many of 31 GB/s of the adapter."""
    session = h200_node(1)
    session.say(info(0, local_world_size=1))
    last = step(0, 40, start_ns=T0, comm=30, hidden=28, link_tx_bytes=0, link_rx_bytes=0)
    moved = own_gb * last.step_ns
    session.say(replace(last, nic_tx_bytes=moved, nic_rx_bytes=moved))
    return session


def without_collectives():
    session = job_of(1)
    session.say(info(0), step(0, 0), dual_socket(), device(0, 0, SWITCHED), numa(0))
    minute_of(session, 0)
    return session


def ended():
    session = h200_node(1)
    session.say(RankEnd(0, T0, clean=True))
    return session


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (in_containers, ["GPU 0   rank 0", "GPU 1   rank 1", "NICs: no /sys/class/net in this"]),
        (without_peak, [r"NVLink 4.0 ×18 +rx +281 GB/s +– +– .*▇▇"]),  # on a scale up to the highest rate
        (lambda: h200_node(own_gb=150), [r"rx .*150 GB/s +131 GB/s", "! 47 % of rx unexplained"]),
        (lambda: h200_node(own_gb=400), [r"rx .*400 GB/s +none", "! does not add up"]),
        (lambda: between_nodes(30), ["NIC over 10 s: ✓ explained"]),
        (lambda: between_nodes(20), ["NIC over 10 s: 3. % of rx unexplained"]),
        (lambda: between_nodes(40), ["NIC over 10 s: less than"]),
        (without_collectives, ["NVLink over 10 s: unknown  some of its collectives are of a kind"]),
        (ended, ["rank 0 ended: these are its last figures", "traffic of the job's collectives: unknown"]),
    ],
)
async def test_machine_is_as_its_ranks_report(session, words):
    text = await screen_of(session(), "m")
    for each in words:
        assert re.search(each, text), each


async def test_without_anything_known_one_line_says_why():
    session = running_job(1)
    async with opened(session) as (app, pilot):
        assert "Rank 0 has not reported its machine yet; with --no-" in await shown(app, pilot, "m")
        session.say(RankEnd(0, T0, clean=True))
        assert "Rank 0 ended before" in await shown(app, pilot)


async def test_ranks_that_share_a_gpu_are_on_one_row_and_told_so():
    session = h200_node(2, numas={1: misplaced(1)})
    session.say(device(1, 0, SWITCHED))
    async with opened(session) as (app, pilot):
        await pilot.press("m")
        for rank in (0, 1):
            text = await shown(app, pilot)
            assert re.search(r"▸ GPU 0   ranks 0 1 +0 +✗", text)
            assert f"! shared with rank {1 - rank}: its figures cover all of them" in text
            await pilot.press("down")
        assert "unused" in line_of(text, "GPU 1 ")
        assert "GB/s" not in line_of(text, "GPU 2 ").partition("GPU 2")[2]


async def test_slow_pcie_link_is_a_warning_while_in_use():
    session = workstation()
    async with opened(session) as (app, pilot):
        assert "PCIe is slower" not in await shown(app, pilot, "m")
        assert "! PCIe is slower than its gen4 ×16 although in use" in await shown(app, pilot, "down")
        session.say(sample(1, 1.0, nvlink=None, pcie=0.01))
        assert "PCIe is slower" not in await shown(app, pilot)


# Keys


async def test_arrows_and_clicks_choose_ranks_and_enter_opens_one():
    async with opened(h200_node(), size=SIZES[2]) as (app, pilot):
        assert "… 2 more below" in await shown(app, pilot, "m")
        assert "▸ GPU 7   rank 7" in await shown(app, pilot, "end")  # in sight
        assert "▸ GPU 2   rank 2" in await shown(app, pilot, "home", "down", "j")
        for keys, rank in (("k", 1), ("tab greater_than_sign shift+tab", 2), ("end tab", 0)):
            await pilot.press(*keys.split())
            assert app.dashboard.state.rank == rank
        at = next(y for y, line in enumerate(screen_text(app).splitlines()) if "GPU 3 " in line)
        await pilot.click(offset=(5, at))
        await pilot.press("enter")
        assert isinstance(app.screen, RankScreen)
        assert "rank 3" in await shown(app, pilot)


async def test_tab_turns_to_the_next_host_and_round():
    session = h200_node(2, host="gpu-a", session=job_of(4))
    async with opened(h200_node(2, host="gpu-b", session=session, first=2)) as (app, pilot):
        text = await shown(app, pilot, "down", "m")
        assert "host 1 of 2" in text
        assert "rank 2" not in text
        text = await shown(app, pilot, "tab")
        assert "host 2 of 2" in text
        assert "▸ GPU 0   rank 2" in text
        assert " gpu-a " in await shown(app, pilot, "tab")
