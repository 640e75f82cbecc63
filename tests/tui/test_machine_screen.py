"""The Machine view over jobs on machines of several kinds, and the parts that it is made of."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop.tui.machine.gpus import GpuTable
from overlaptop.tui.machine.host import cpu_count, hosts, machine_of
from overlaptop.tui.machine.link_history import MINUTE_S, column_s, columns
from overlaptop.tui.rank.screen import RankScreen
from overlaptop.wire.devices import GpuLink, GpuSite, MachineFacts, Nic, NodeShare, NumaNode, Unknown
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import GB, SWITCHED, T0, S, info, step

from .fakes import (
    HOSTILE,
    SIZES,
    WIDE,
    fills,
    line_of,
    opened,
    running_job,
    screen_of,
    screen_text,
    shown,
    text_of,
)
from .machines import (
    GIB,
    cpu_only,
    device,
    dual_socket,
    grace_hopper,
    h200_node,
    job_of,
    minute_of,
    misplaced,
    numa,
    sample,
    site,
    unbound,
    uuid,
    workstation,
)

MIDDLE, NARROW = SIZES[1:]


async def whole(app, pilot):
    """All that the view says, scrolled to the end."""
    seen = await shown(app, pilot)
    while "more lines: page down" in screen_text(app):
        seen += "\n" + await shown(app, pilot, "pagedown")
    return seen


async def whole_of(session, size=WIDE):
    """The same of a dashboard that opens on it."""
    async with opened(session, size=size) as (app, pilot):
        await pilot.press("m")
        return await whole(app, pilot)


# What it says of a machine


@pytest.mark.parametrize("size", SIZES)
async def test_the_table_and_the_details_tell_all_of_eight_gpus_without_cutting_a_figure(size):
    async with opened(h200_node(), size=size) as (app, pilot):
        text = await shown(app, pilot, "m")
        for words in ("8 × NVIDIA H200", "account   NVLink, over 10 s  ✓ explained"):
            assert words in text
        assert re.search(r"GPU 0  rank 0 +0 +✓ .*281 GB/s +59 %", text)
        if size != NARROW:
            assert "node 0  CPUs 0-47,96-143 (96)  memory 1.00 TiB" in text
            assert "node 1  CPUs 48-95,144-191 (96)" in text
            assert "NVSwitch: each GPU by NVLink 4.0 ×18, 478 GB/s each way" in text
            assert re.search(r"GPU 7  rank 7 +1 .* 1.90 GB/s +3 % +93 %", text)
        if size == WIDE:
            assert "NIC mlx5_4 mlx5_5 mlx5_6 mlx5_7 400 Gb/s" in text
            assert "eth0 25 Gb/s" in text
        text = await whole(app, pilot)
    for words in (
        "NVLink 4.0 ×18 rx", "281 of 478 GB/s", "264 of 478 GB/s", "PCIe gen5 ×16", "1.20 of 63.0 GB/s",
        "tensor cores", "41 %", "DRAM", "38 %", "72.0 of 141 GiB", "618 of 700 W", "1,755 of 1,980 MHz",
        "throttled", "all GPUs on the switch", "NVLink, one minute", "PCIe, one minute",
        "96 CPUs on node 0: 0-47,96-143", "34 threads on node 0", "prefer:0", "mlx5_0 on node 0",
        "account", "10 s", "measured", "unexplained", "bound to its GPU's node",
    ):  # fmt: skip
        assert words in text, words


@pytest.mark.parametrize("size", SIZES)
async def test_a_machine_without_nvlink_shows_pcie_in_its_place(size):
    async with opened(workstation(), size=size) as (app, pilot):
        text = await shown(app, pilot, "m")
        assert re.search(r"GPU 0  rank 0 .* 9.10 GB/s +29 %", text)
        assert ("no NVLink: GPU to GPU over PCIe (PHB: the host bridge)" in text) == (size != NARROW)
        text = await whole(app, pilot)
    # Unknown figures say so where they belong, and all those of one reason are listed together.
    for words in (
        "NVLink none +this GPU has none", "PCIe PHB +GPU 1", "power cap", "tensor cores +unknown",
        "DRAM +unknown", "tensor activity, DRAM activity: the GPU has",
    ):  # fmt: skip
        assert re.search(words, text), words
    assert "NVLink, one minute" not in text


async def test_a_gpus_memory_that_is_a_node_is_told_apart():
    text = await whole_of(grace_hopper(), MIDDLE)
    for words in (
        "node 1  a GPU's memory, 96.0 GiB, no CPUs", "GPU memory +is node 1", "no other GPU here",
        "NVLink +rx unknown",
    ):  # fmt: skip
        assert re.search(words, text), words


@pytest.mark.parametrize("size", SIZES)
async def test_a_machine_without_gpus_shows_its_nodes_and_ranks_and_no_gpu(size):
    text = await whole_of(cpu_only(), size)
    for words in ("node 0  CPUs 0-7 (8)  memory 16.0 GiB", "eth0 speed unknown"):
        assert words in text or size == NARROW
    assert re.search(r"▸ rank 0 +8 CPUs +14 threads", text)
    assert "✓ one node" in text
    assert "NVML is not installed here" in text
    for absent in ("GPU 0", "NVLink", "account"):
        assert absent not in text


async def test_ranks_that_see_a_part_of_the_machine_each_see_it_together():
    session = job_of(2)
    for rank in range(2):
        machine = MachineFacts(
            rank, "gpu-a", (NumaNode(rank, f"{rank * 8}-{rank * 8 + 7}", None),), (), (site(rank, rank),),
            (Unknown("nics", "no /sys/class/net in this container"),),
        )  # fmt: skip
        session.say(info(rank), step(rank, 0), machine, device(rank, rank), numa(rank, rank))
    text = await screen_of(session, "m")
    for words in ("2 NUMA nodes", "GPU 0  rank 0", "GPU 1  rank 1", "NICs: no /sys/class/net in this"):
        assert words in text
    assert len(re.findall(r"CPUs \d+-\d+ \(8\)  memory unknown", text)) == 2


async def test_a_gpu_whose_node_nobody_knows_is_shown_apart():
    session = job_of(1)
    machine = replace(dual_socket(), gpus=(site(0, None),))
    session.say(info(0), step(0, 0), machine, device(0, 0), numa(0, gpu_node=None, state="unknown"))
    text = await screen_of(session, "m")
    assert "node not known" in text
    assert "node unknown" in text
    assert re.search(r"GPU 0  rank 0 +– +\? ", text)


@pytest.mark.parametrize("ended", [False, True])
async def test_without_anything_known_one_line_says_why(ended):
    session = running_job(1)
    session.say(*[RankEnd(0, T0, clean=True)] * ended)
    words = "Rank 0 ended before" if ended else "Rank 0 has not reported its machine yet; with --no-"
    assert words in await screen_of(session, "m", size=MIDDLE)


@pytest.mark.parametrize("size", SIZES)
async def test_words_from_a_machine_are_shown_as_words_and_steer_nothing(size):
    session = job_of(1)
    said = (Unknown(HOSTILE, HOSTILE),)
    session.say(
        info(0, host=HOSTILE),
        step(0, 0),
        MachineFacts(0, HOSTILE, (NumaNode(0, HOSTILE, 1),), (Nic(HOSTILE, 0, None),),
                     (GpuSite(0, uuid(0), HOSTILE, HOSTILE, 0),), said),
        device(0, 0, [GpuLink("pcie", HOSTILE, None, HOSTILE)], nvlink_version=HOSTILE, unknown=said),
        replace(numa(0), nic=HOSTILE, cpu_set=HOSTILE, memory_policy=HOSTILE, reason=HOSTILE,
                advice=HOSTILE, unknown=said),
        sample(0, 0.0, throttle_reasons=(HOSTILE,), unknown=said),
    )  # fmt: skip
    async with opened(session, size=size) as (app, pilot):
        for key in ("2", "1", "m", "pagedown", "pagedown"):
            await shown(app, pilot, key)
            assert fills(app, size), key
        assert "[bold red]x[/]" in screen_text(app)


# GPUs and their links


async def test_gpus_that_the_job_does_not_use_are_there_but_say_nothing():
    text = await screen_of(h200_node(ranks=6), "m")
    assert "6 used by the job" in text
    assert "not used by the job" in line_of(text, "GPU 6 ")
    assert "GB/s" not in line_of(text, "GPU 7 ").partition("GPU 7")[2]


async def test_ranks_that_share_a_gpu_stand_on_one_row_and_are_told_so():
    session = h200_node(2, numas={1: misplaced(1)})
    session.say(device(1, 0, SWITCHED))
    async with opened(session) as (app, pilot):
        await pilot.press("m")
        for rank in (0, 1):
            text = await shown(app, pilot)
            assert re.search(r"▸ GPU 0  ranks 0 1 +0 +✗", text)
            assert f"! shared with rank {1 - rank}: its figures are of all together" in text
            await pilot.press("down")
        assert "not used by the job" in line_of(text, "GPU 1 ")


async def test_direct_nvlinks_are_listed_by_the_gpus_they_lead_to():
    session = job_of(1)
    links = [GpuLink("nvlink", uuid(peer), count, "") for peer, count in ((1, 4), (2, 4), (3, 2))]
    links += [GpuLink("pcie", peer, None, "SYS") for peer in (uuid(4), "GPU-nobody-has-named")]
    session.say(info(0), step(0, 0), dual_socket(), device(0, 0, links), numa(0))
    text = await screen_of(session, "m")
    for words in (
        "NVLink ×4 +GPU 1 2 ", "NVLink ×2 +GPU 3 ", "PCIe SYS +GPU 4, another GPU",
        "NVLink from GPU to GPU",
    ):  # fmt: skip
        assert re.search(words, text), words


async def test_a_rank_on_no_gpu_says_why_once():
    session = cpu_only(1)
    why = "the job computes on no GPU"
    names = ("gpu_uuid", "nvlink_version", "pcie_peak_bytes_per_s", "links")
    none = {"gpu_uuid": "", "gpu_name": "", "pci_bus_id": "", "nvlink_version": ""}
    session.say(
        device(0, 0, **none, unknown=tuple(Unknown(name, why) for name in names)),
        numa(0, gpu_node=None, state="no gpu"),
    )
    text = await screen_of(session, "m")
    assert "rank 0  · no GPU" in text
    assert text.count(why) == 1
    assert f"none: {why}" in text


async def test_a_pcie_link_below_its_best_is_warned_of_only_while_it_is_in_use():
    session = workstation()
    async with opened(session) as (app, pilot):
        assert "slower than" not in await shown(app, pilot, "m")
        text = await shown(app, pilot, "down")
        assert "! in use, and yet slower than the gen4 ×16 that it could be" in text
        session.say(sample(1, 1.0, nvlink=None, pcie=0.01))
        assert "slower than" not in await shown(app, pilot)
    session = h200_node(1)
    session.say(device(0, 0, SWITCHED, pcie_width=8))
    assert "!1.20 GB/s" in line_of(await screen_of(session, "m"), "GPU 0 ")


@pytest.mark.parametrize(
    ("job", "color", "level"), [(h200_node, "hidden", "▅"), (workstation, "copy", "▂")]
)
async def test_the_minute_and_the_bar_of_a_gpu_are_of_the_link_that_the_table_names(job, color, level):
    async with opened(job(), size=(120, 56)) as (app, pilot):
        await shown(app, pilot, "m")
        row = next(line for line in app.screen.query_one(GpuTable)._lines if "GPU 0" in text_of(line))
        minute, bar = (run.text for run in row if run.style.fg == color)
        assert minute.endswith(level)
        assert set(bar) <= {"━", "╸"}


async def test_the_minute_is_drawn_on_a_scale_up_to_the_peak_or_the_highest_seen():
    session = h200_node(1)
    async with opened(session, ascii=True) as (app, pilot):
        text = await shown(app, pilot, "m")
        session.say(device(0, 0, nvlink_peak_bytes_per_s=None))
        without = await shown(app, pilot)
    assert "NVLink, one minute   0 to 478 GB/s, the peak; a column is 1 s" in text
    chart = "NVLink, one minute   0 to"
    at = next(at for at, line in enumerate(text.splitlines()) if chart in line)
    rows = [line[7:67] for line in text.splitlines()[at + 1 :]]
    # 281 of 478 over the last quarter of a minute, half of that at the lowest: a column is never full.
    assert rows[0].strip() == ""
    assert any(row.endswith("#" * 15) for row in rows)
    assert "0 to 281 GB/s, the highest seen: the peak is unknown" in without
    assert re.search(r"NVLink 4.0 x18 rx +281 GB/s", without)


def rx(one):
    return one.nvlink_rx_bytes_per_s


@given(st.integers(1, 400))
def test_a_minute_fits_into_its_columns(width):
    assert column_s(width) * width >= MINUTE_S
    assert len(columns([sample(0)], width, rx)) <= width


def test_a_column_is_the_mean_of_what_is_known_in_it_a_gap_where_nothing_is_and_stays_as_it_is():
    at_s = MINUTE_S - T0 // S % MINUTE_S  # whole minutes begin columns of any width
    told = [
        sample(0, at_s + after_s, nvlink=gb) for after_s, gb in ((0.5, 100), (1, 200), (1.5, None), (8, 50))
    ]
    assert columns(told, 20, rx)[-3:] == [150 * GB, None, 50 * GB]
    assert columns([], 20, rx) == [None] * 20
    samples = [sample(0, number / 2, nvlink=100 + number % 7) for number in range(240)]
    before, after = columns(samples[:200], 20, rx), columns(samples[:206], 20, rx)
    assert after[:-1] == before[1:-1] + after[-2:-1]
    assert None not in after


@pytest.mark.parametrize(
    ("own_gb", "verdict", "meaning", "rest"),
    [
        (150.0, "! 47 % unexplained", "somebody else's traffic, or copies", "131 GB/s +114 GB/s"),
        (270.0, "✓ explained", "4 % of rx", "11.0 GB/s +none"),
        (400.0, "! does not add up", "account for more than the counters saw", "none +none"),
    ],
)
async def test_the_account_says_what_the_collectives_do_not_explain(own_gb, verdict, meaning, rest):
    text = await screen_of(h200_node(own_gb=own_gb), "m")
    assert re.search(r"measured +281 GB/s +264 GB/s", text)
    assert re.search(rf"the job's collectives +{own_gb:.0f} GB/s +{own_gb:.0f} GB/s", text)
    assert verdict in text
    assert meaning in text
    assert re.search(rf"unexplained +{rest}", text)


async def test_an_account_without_named_collectives_is_unknown_and_says_why():
    session = job_of(1)
    session.say(info(0), step(0, 0), dual_socket(), device(0, 0, SWITCHED), numa(0))
    minute_of(session, 0)
    text = await screen_of(session, "m")
    reason = session.fleet.snapshot().ranks[0].traffic.reason
    assert reason[:50] in text
    assert re.search(r"unexplained +unknown +unknown", text)


# NUMA


@pytest.mark.parametrize(
    ("size", "facts", "mark", "words"),
    [
        (WIDE, unbound(1), "~", "unbound"),
        (MIDDLE, misplaced(1), "✗", "on the wrong node"),
        (NARROW, misplaced(1), "✗", "on the wrong node"),
    ],
)
async def test_a_rank_away_from_its_gpu_gets_a_mark_the_reason_and_the_words_to_type(
    size, facts, mark, words
):
    async with opened(h200_node(numas={1: facts}), size=size) as (app, pilot):
        text = await shown(app, pilot, "down", "m")
        assert re.search(rf"GPU 1  rank 1 +0 +{mark} ", text)
        text = await whole(app, pilot)
    assert f"rank 1  {mark} {words}" in text
    assert facts.reason[:30] in text
    # No command is broken over two lines.
    assert "torchrun --numa-binding=node" in text


async def test_on_which_nodes_the_threads_of_the_selected_process_are_is_shown():
    shares = (NodeShare(1, 32), NodeShare(0, 2))
    text = await screen_of(h200_node(numas={0: replace(misplaced(0), threads_by_node=shares)}), "m")
    assert "32 threads on node 1, 2 on node 0" in text


@pytest.mark.parametrize(
    ("cpus", "count"),
    [
        ("", 0), ("0", 1), ("0-3,8", 5), ("0-47,96-143", 96), ("3-0", None), ("all", None),
        ("0-3,", None), ("0-99999999999", None), ("-1", None), ("0x3", None),
    ],
)  # fmt: skip
def test_cpus_of_a_kernels_list_are_counted_and_other_text_is_not(cpus, count):
    assert cpu_count(cpus) == count


# Hosts, keys, and what changes meanwhile


def two_hosts():
    session = h200_node(2, host="gpu-a", session=job_of(4))
    return h200_node(2, host="gpu-b", session=session, first=2)


def test_ranks_see_their_machine_together_and_no_other_hosts():
    ranks = two_hosts().tick().ranks
    assert hosts(ranks) == ["gpu-a", "gpu-b"]
    machine = machine_of(ranks, "gpu-b")
    assert [view.rank for view in machine.ranks] == [2, 3]
    assert [len(node.gpus) for node in machine.nodes] == [4, 4]
    assert machine.gpu_of(ranks[3]).label == "GPU 1"
    assert machine.gpu_of(ranks[0]).ranks == (ranks[2],)  # the same UUID, but of this host's ranks only


def test_gpus_and_adapters_of_no_node_are_on_the_only_one_there_is():
    session, nics = h200_node(1), tuple(replace(nic, numa_node=None) for nic in dual_socket().nics)
    nodes = (NumaNode(0, "0-7", GIB),)
    one = replace(dual_socket(), numa_nodes=nodes, gpus=(site(0, None),), nics=nics)
    session.say(one, numa(0, gpu_node=None))
    (node,) = machine_of(session.tick().ranks, "gpu-a").nodes
    assert (node.number, len(node.gpus), len(node.nics)) == (0, 1, 9)


async def test_arrows_choose_ranks_and_enter_opens_one():
    async with opened(h200_node()) as (app, pilot):
        assert "▸ GPU 2  rank 2" in await shown(app, pilot, "m", "down", "j")
        assert " GPU 2   NVIDIA H200   node 0   0000:3b:00.0" in screen_text(app)
        for keys, rank in (("k", 1), ("tab greater_than_sign shift+tab", 2), ("end tab", 0)):
            await pilot.press(*keys.split())
            assert app.dashboard.state.rank == rank
        await pilot.press("less_than_sign", "enter")
        assert isinstance(app.screen, RankScreen)
        assert "rank 7" in await shown(app, pilot)


async def test_the_selected_rank_stays_in_sight_where_the_table_does_not_fit():
    async with opened(h200_node(), size=NARROW) as (app, pilot):
        assert "▼ more" in await shown(app, pilot, "m")
        for rank in range(8):
            assert f"▸ GPU {rank}  rank {rank}" in await shown(app, pilot)
            await pilot.press("down")
        await pilot.pause()
        assert "▲ more" in screen_text(app)
        assert "8 × NVIDIA H200" in screen_text(app)


async def test_tab_turns_to_the_next_host_and_round():
    async with opened(two_hosts()) as (app, pilot):
        text = await shown(app, pilot, "down", "m")
        assert "host 1 of 2" in text
        assert "rank 2" not in text
        text = await shown(app, pilot, "tab")
        for words in (" gpu-b ", "host 2 of 2", "▸ GPU 0  rank 2"):
            assert words in text
        assert " gpu-a " in await shown(app, pilot, "tab")
        assert " gpu-b " in await shown(app, pilot, "down", "down")


async def test_what_a_rank_that_ended_measured_last_is_not_passed_off_as_now():
    session = h200_node(1)
    session.say(RankEnd(0, T0, clean=True))
    text = await whole_of(session, MIDDLE)
    assert "rank 0 ended: these are its last figures" in text
    assert "unknown: nothing is known of what the links" in text


async def test_new_samples_move_the_figures_and_the_table_is_not_drawn_again_for_nothing(monkeypatch):
    session = h200_node(1)
    async with opened(session) as (app, pilot):
        await shown(app, pilot, "m")
        session.say(sample(0, 0.5, nvlink=100.0))
        assert "100 of 478 GB/s" in await shown(app, pilot)
        drawn = []
        monkeypatch.setattr(GpuTable, "draw", lambda *_: drawn.append(1) or [])
        await shown(app, pilot)
        assert not drawn
        for message in (
            *(sample(0, 1.0), device(0, 0), numa(0, 1), replace(dual_socket(), nics=())),
            RankEnd(0, T0, clean=True),
        ):
            drawn.clear()
            session.say(message)
            await shown(app, pilot)
            assert drawn, message
