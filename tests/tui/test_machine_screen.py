"""The Machine view, driven through Textual's pilot over jobs on machines of several kinds."""

import re

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from overlaptop.fleet.snapshot import LinkState
from overlaptop.tui.machine.map import MachineMap
from overlaptop.tui.machine.screen import MachineScreen
from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.tui.rank.screen import RankScreen
from overlaptop.wire.devices import GpuLink, GpuSite, MachineFacts, Nic, NumaNode, Unknown
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import T0, info, step

from .fakes import app_of, opened, running_job, screen_lines, screen_text, shown, table_ranks
from .machines import (
    GB,
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
    virtual_pair,
    workstation,
)

WIDE, MIDDLE, NARROW = (160, 45), (100, 30), (60, 20)
SIZES = (WIDE, MIDDLE, NARROW)


async def whole(app, pilot):
    """All that the view says, scrolled to the end."""
    seen = await shown(app, pilot)
    while "more lines: page down" in screen_text(app):
        seen += "\n" + await shown(app, pilot, "pagedown")
    return seen


def gpu_row(app, label):
    return next(line for line in screen_lines(app) if f"{label} " in line)


@pytest.mark.parametrize("size", SIZES)
async def test_the_map_shows_nodes_with_their_gpus_and_rates(size):
    async with opened(h200_node(), size=size) as (app, pilot):
        text = await shown(app, pilot, "m")
        assert isinstance(app.screen, MachineScreen)
        assert "8 × NVIDIA H200" in text
        assert "node 0  CPUs 0-47,96-143 (96)  memory 1.00 TiB" in text
        assert "node 1  CPUs 48-95,144-191 (96)" in text
        assert re.search(r"GPU 0  rank 0 +✓ .*281 GB/s +59 %", gpu_row(app, "GPU 0"))
        if size != NARROW:
            assert "mlx5_4 mlx5_5 mlx5_6 mlx5_7 400 Gb/s" in text
            assert "eth0 25 Gb/s" in text
            assert "NVSwitch: each GPU by NVLink 4.0 ×18, 478 GB/s each way" in text
            assert re.search(r"GPU 7  rank 7 .* 1.90 GB/s +3 % +93 %", text)


@pytest.mark.parametrize("size", SIZES)
async def test_the_details_tell_all_of_the_chosen_gpu_without_cutting_a_figure(size):
    async with opened(h200_node(), size=size) as (app, pilot):
        await pilot.press("m")
        text = await whole(app, pilot)
    for words in (
        "NVLink 4.0 ×18 rx", "281 of 478 GB/s", "264 of 478 GB/s", "PCIe gen5 ×16", "1.20 of 63.0 GB/s",
        "tensor cores", "41 %", "DRAM", "38 %", "72.0 of 141 GiB", "618 of 700 W", "1,755 of 1,980 MHz",
        "throttled", "all GPUs on the switch", "NVLink, one minute", "PCIe, one minute",
        "96 CPUs on node 0: 0-47,96-143", "34 threads on node 0", "prefer:0", "mlx5_0 on node 0",
        "account", "10 s", "measured", "unexplained", "bound to its GPU's node",
    ):  # fmt: skip
        assert words in text, words


@pytest.mark.parametrize("key", ["m", "6"])
async def test_a_key_opens_the_view_and_the_same_key_closes_it(key):
    async with opened(h200_node(), size=MIDDLE) as (app, pilot):
        await pilot.press(key)
        assert isinstance(app.screen, MachineScreen)
        await pilot.press(key)
        assert isinstance(app.screen, OverviewScreen)
        await pilot.press("2", key, "escape")
        assert isinstance(app.screen, OverviewScreen)


async def test_arrows_choose_ranks_and_enter_opens_one():
    async with opened(h200_node()) as (app, pilot):
        assert "▸ GPU 2  rank 2" in await shown(app, pilot, "m", "down", "j")
        assert " GPU 2   NVIDIA H200   node 0   0000:3b:00.0" in screen_text(app)
        await pilot.press("right")
        assert app.dashboard.state.rank == 6
        assert "▸ GPU 6  rank 6" in await shown(app, pilot)
        await pilot.press("right")
        assert app.dashboard.state.rank == 6
        await pilot.press("h", "k")
        assert app.dashboard.state.rank == 1
        await pilot.press("tab", "greater_than_sign", "shift+tab")
        assert app.dashboard.state.rank == 2
        await pilot.press("end", "tab")
        assert app.dashboard.state.rank == 0
        await pilot.press("less_than_sign", "enter")
        assert isinstance(app.screen, RankScreen)
        assert "rank 7" in await shown(app, pilot)


async def test_the_chosen_rank_stays_in_sight_where_the_map_does_not_fit():
    async with opened(h200_node(), size=NARROW) as (app, pilot):
        assert "▼ more" in await shown(app, pilot, "m")
        for rank in range(8):
            assert f"▸ GPU {rank}  rank {rank}" in await shown(app, pilot)
            await pilot.press("down")
        assert "▲ more" in screen_text(app)
        assert "8 × NVIDIA H200" in screen_text(app)


async def test_tab_turns_to_the_next_host_and_round():
    session = h200_node(2, host="gpu-a", session=job_of(4))
    h200_node(2, host="gpu-b", session=session, first=2)
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot, "down", "m")
        assert "host 1 of 2" in text
        assert "rank 2" not in text
        text = await shown(app, pilot, "tab")
        assert app.dashboard.state.rank == 2
        assert " gpu-b " in text
        assert "host 2 of 2" in text
        assert "▸ GPU 0  rank 2" in text
        await pilot.press("tab")
        assert app.dashboard.state.rank == 0
        assert " gpu-b " in await shown(app, pilot, "down", "down")


async def test_gpus_that_the_job_does_not_use_are_there_but_say_nothing():
    async with opened(h200_node(ranks=6)) as (app, pilot):
        text = await shown(app, pilot, "m")
        assert "6 used by the job" in text
        assert "not used by the job" in gpu_row(app, "GPU 6")
        assert "GB/s" not in gpu_row(app, "GPU 7").partition("GPU 7")[2]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("facts", "mark", "words"),
    [
        (misplaced(1), "✗", "on the wrong node"),
        (unbound(1), "~", "unbound"),
    ],
)
async def test_a_rank_away_from_its_gpu_gets_a_mark_the_reason_and_the_words_to_type(
    size, facts, mark, words
):
    async with opened(h200_node(numas={1: facts}), size=size) as (app, pilot):
        assert re.search(rf"GPU 1  rank 1 +{mark} ", (await shown(app, pilot, "down", "m")))
        text = await whole(app, pilot)
        assert f"rank 1  {mark} {words}" in text
        assert facts.reason[:30] in text
        assert "torchrun --numa-binding=node" in text


async def test_what_numa_bind_did_is_said():
    facts = replace(numa(0), bound="bound to node 0 before the script started")
    async with opened(h200_node(1, numas={0: facts})) as (app, pilot):
        assert re.search("--numa bind +bound to node 0 before the script", await shown(app, pilot, "m"))


async def test_the_parts_of_the_chosen_process_are_shown_on_the_nodes_where_they_are():
    async with opened(h200_node(numas={0: misplaced(0)})) as (app, pilot):
        line = next(line for line in (await shown(app, pilot, "m")).splitlines() if "rank 0 here" in line)
    left, right = line.split("│  │")
    assert "rank 0 here: 12.0 MiB" in left
    assert "CPUs" not in left
    assert "rank 0 here: 96 CPUs · 34 threads · 3.00 GiB" in right


@pytest.mark.parametrize(
    ("own_gb", "words", "share", "rest"),
    [
        (
            150.0,
            ["! 47 % unexplained", "somebody else's traffic, or copies of the job's own"],
            "47 % of rx",
            "131 GB/s +114 GB/s",
        ),
        (270.0, ["✓ explained"], "4 % of rx", "11.0 GB/s +none"),
        (400.0, ["! does not add up", "account for more than the counters saw"], "", "none +none"),
    ],
)
async def test_the_account_says_what_the_collectives_do_not_explain(own_gb, words, share, rest):
    async with opened(h200_node(own_gb=own_gb)) as (app, pilot):
        text = await shown(app, pilot, "m")
    assert re.search(r"measured +281 GB/s +264 GB/s", text)
    assert re.search(rf"the job's collectives +{own_gb:.0f} GB/s +{own_gb:.0f} GB/s", text)
    assert all(each in text for each in words)
    assert share in text
    assert re.search(rf"unexplained +{rest}", text)


@pytest.mark.parametrize("size", SIZES)
async def test_the_verdict_on_the_account_is_in_sight_without_scrolling(size):
    async with opened(h200_node(own_gb=150.0), size=size) as (app, pilot):
        assert "account   NVLink, over 10 s  ! 47 % unexplained" in await shown(app, pilot, "m")


@pytest.mark.parametrize("size", SIZES)
async def test_a_command_to_mend_the_place_is_not_broken_over_two_lines(size):
    async with opened(h200_node(numas={0: misplaced(0)}), size=size) as (app, pilot):
        await pilot.press("m")
        text = await whole(app, pilot)
    assert "torchrun --numa-binding=node" in text
    assert "-m overlaptop.agent --numa bind" in text


async def test_what_a_rank_that_ended_measured_last_is_not_passed_off_as_now():
    session = h200_node(2)
    async with opened(session) as (app, pilot):
        assert "ended" not in await shown(app, pilot, "m")
        session.say(RankEnd(0, T0, clean=True))
        assert "rank 0 ended: these are its last figures" in await shown(app, pilot)
        assert "ended: these" not in await shown(app, pilot, "down")


async def test_where_nothing_is_known_of_the_links_the_sentence_is_not_cut():
    session = h200_node(1)
    session.say(RankEnd(0, T0, clean=True))
    async with opened(session, size=MIDDLE) as (app, pilot):
        text = await shown(app, pilot, "m")
    assert re.search(r"account +\n(.*\n)? .*unknown: nothing is known of what the links", text)
    assert "carried" in text


async def test_boxes_below_one_another_do_not_take_the_room_of_the_details():
    async with opened(h200_node(), size=(120, 36)) as (app, pilot):
        text = await shown(app, pilot, "m")
        assert "╭" not in text
        assert re.search(r"unexplained +11.0 GB/s +none", text)
    async with app_of(h200_node()).run_test(size=(120, 56)) as pilot:
        await pilot.press("m")
        assert "╭ node 0" in await shown(pilot.app, pilot)


async def test_two_passed_through_gpus_of_a_virtual_machine():
    async with opened(virtual_pair()) as (app, pilot):
        text = await shown(app, pilot, "m")
    for words in (
        "2 × NVIDIA H200", "eth0 speed unknown", "478 GB/s each way", "31.0 of 478 GB/s", "509 of 700 W",
        "power cap", "✓ explained", "0000:00:06.0", "nearest NIC eth0, node unknown",
    ):  # fmt: skip
        assert words in text, words
    assert re.search(r"PCIe PHB +GPU 1", text)
    assert re.search(r"GPU 0  rank 0 +✓ .*31.0 GB/s +6 % +0.01 GB/s +<1 % +60 % +72.0 GiB +509 W", text)


async def test_an_account_without_named_collectives_is_unknown_and_says_why():
    session = job_of(1)
    session.say(info(0), step(0, 0), dual_socket(), device(0, 0), numa(0))
    session.say(replace(device(0, 0, [GpuLink("nvswitch", "", 18, "")])))
    minute_of(session, 0)
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot, "m")
    reason = session.fleet.snapshot().ranks[0].traffic.reason
    assert reason
    assert reason[:50] in text
    assert re.search(r"unexplained +unknown +unknown", text)


@pytest.mark.parametrize("size", SIZES)
async def test_a_machine_without_nvlink_shows_pcie_in_its_place(size):
    async with opened(workstation(), size=size) as (app, pilot):
        assert re.search(r"GPU 0  rank 0 .* 9.10 GB/s +29 %", await shown(app, pilot, "m"))
        if size != NARROW:
            assert "no NVLink: GPU to GPU over PCIe (PHB: the host bridge)" in screen_text(app)
        text = await whole(app, pilot)
    assert re.search(r"NVLink none +this GPU has none", text)
    assert re.search(r"PCIe PHB +GPU 1", text)
    assert "power cap" in text
    assert "NVLink, one minute" not in text
    # Unknown figures say so where they belong, and all those of one reason are listed together.
    assert re.search(r"tensor cores +unknown", text)
    assert re.search(r"DRAM +unknown", text)
    assert "tensor activity, DRAM activity: the GPU has" in text


async def test_a_pcie_link_below_its_best_is_warned_of_only_while_it_is_in_use():
    session = workstation()
    async with opened(session) as (app, pilot):
        assert "slower than" not in await shown(app, pilot, "m")
        text = await shown(app, pilot, "down")
        assert "! in use, and yet slower than the gen4 ×16 that it could be" in text
        session.say(sample(1, 1.0, nvlink=None, pcie=0.01))
        assert "slower than" not in await shown(app, pilot)


@pytest.mark.parametrize("size", SIZES)
async def test_a_gpus_memory_that_is_a_node_is_told_apart(size):
    async with opened(grace_hopper(), size=size) as (app, pilot):
        assert "node 1  a GPU's memory, 96.0 GiB, no CPUs" in await shown(app, pilot, "m")
        text = await whole(app, pilot)
    assert re.search("GPU memory +is node 1", text)
    assert "no other GPU here" in text
    assert re.search(r"NVLink +rx unknown", text)


@pytest.mark.parametrize("size", SIZES)
async def test_a_machine_without_gpus_shows_its_nodes_and_ranks_and_no_gpu(size):
    async with opened(cpu_only(), size=size) as (app, pilot):
        await pilot.press("m")
        text = await whole(app, pilot)
    assert "node 0  CPUs 0-7 (8)  memory 16.0 GiB" in text
    assert re.search(r"▸ rank 0 +8 CPUs +14 threads +1.00 GiB", text)
    assert "✓ one node" in text
    assert "NVML is not installed here" in text
    assert "GPU 0" not in text
    assert "NVLink" not in text
    assert "account" not in text


async def test_a_rank_on_no_gpu_says_why_once():
    session = cpu_only(1)
    why = "the job computes on no GPU"
    names = ("gpu_uuid", "nvlink_version", "pcie_peak_bytes_per_s", "links")
    session.say(
        replace(
            device(0, 0), gpu_uuid="", gpu_name="", pci_bus_id="", nvlink_version="",
            unknown=tuple(Unknown(name, why) for name in names),
        )
    )  # fmt: skip
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot, "m")
    assert text.count(why) == 1
    assert f"none: {why}" in text


async def test_ranks_that_share_a_gpu_stand_on_one_row_and_are_told_so():
    session = h200_node(2)
    session.say(replace(device(1, 0, [GpuLink("nvswitch", "", 18, "")])))
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot, "m")
        assert "▸ GPU 0  ranks 0 1" in text
        assert "! shared with rank 1: its figures are of all together" in text
        assert "not used by the job" in gpu_row(app, "GPU 1")
        await pilot.press("down")
        assert app.dashboard.state.rank == 1
        assert "! shared with rank 0" in await shown(app, pilot)
        assert "▸ GPU 0  ranks 0 1" in screen_text(app)


async def test_direct_nvlinks_are_listed_by_the_gpus_they_lead_to():
    session = job_of(1)
    links = [
        GpuLink("nvlink", uuid(1), 4, ""), GpuLink("nvlink", uuid(2), 4, ""),
        GpuLink("nvlink", uuid(3), 2, ""), GpuLink("pcie", uuid(4), None, "SYS"),
        GpuLink("pcie", "GPU-nobody-has-named", None, "SYS"),
    ]  # fmt: skip
    session.say(info(0), step(0, 0), dual_socket(), device(0, 0, links), numa(0))
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot, "m")
    assert re.search(r"NVLink ×4 +GPU 1 2 ", text)
    assert re.search(r"NVLink ×2 +GPU 3 ", text)
    assert re.search(r"PCIe SYS +GPU 4, another GPU", text)
    assert "NVLink from GPU to GPU" in text


async def test_ranks_that_see_a_part_of_the_machine_each_see_it_together():
    session = job_of(2)
    for rank in range(2):
        machine = MachineFacts(
            rank, "gpu-a", (NumaNode(rank, f"{rank * 8}-{rank * 8 + 7}", None),), (), (site(rank, rank),),
            (Unknown("nics", "no /sys/class/net in this container"),),
        )  # fmt: skip
        session.say(info(rank), step(rank, 0), machine, device(rank, rank), numa(rank, rank))
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot, "m")
    assert "2 NUMA nodes" in text
    assert len(re.findall(r"CPUs \d+-\d+ \(8\)  memory unknown", text)) == 2
    assert "GPU 0  rank 0" in text
    assert "GPU 1  rank 1" in text
    assert "NICs: no /sys/class/net in this container" in text


async def test_a_gpu_whose_node_nobody_knows_is_shown_apart():
    session = job_of(1)
    machine = replace(dual_socket(), gpus=(site(0, None),))
    session.say(
        info(0), step(0, 0), machine, device(0, 0), replace(numa(0), gpu_node=None, state="unknown")
    )
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot, "m")
    assert "node not known" in text
    assert re.search(r"GPU 0  rank 0 +\? ", text)
    assert "node unknown" in text


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda session: None, "Rank 0 has not reported its machine yet; with --no-telemetry"),
        (lambda session: session.say(RankEnd(0, T0, clean=True)), "Rank 0 ended before"),
    ],
)
async def test_without_anything_known_one_line_says_why(prepare, words):
    session = running_job(1)
    prepare(session)
    async with opened(session, size=MIDDLE) as (app, pilot):
        assert words in await shown(app, pilot, "m")


async def test_new_samples_move_the_figures_and_a_pause_holds_them():
    session = h200_node(1)
    async with opened(session) as (app, pilot):
        await shown(app, pilot, "m")
        session.say(sample(0, 0.5, nvlink=100.0))
        assert "100 of 478 GB/s" in await shown(app, pilot)
        await pilot.press("space")
        session.say(sample(0, 1.0, nvlink=200.0))
        text = await shown(app, pilot)
        assert "paused since" in text
        assert "100 of 478 GB/s" in text
        assert "200 of 478 GB/s" in await shown(app, pilot, "space")


async def test_the_map_is_not_drawn_again_for_nothing(monkeypatch):
    async with opened(h200_node()) as (app, pilot):
        await shown(app, pilot, "m")
        drawn = []
        monkeypatch.setattr(MachineMap, "draw", lambda *_: drawn.append(1) or [])
        await shown(app, pilot)
        assert not drawn
        app.dashboard.session.say(sample(0, 0.5))
        await shown(app, pilot)
        assert drawn


async def test_the_minute_is_drawn_on_a_scale_up_to_the_peak():
    async with opened(h200_node(1), ascii=True) as (app, pilot):
        text = await shown(app, pilot, "m")
    assert "NVLink, one minute   0 to 478 GB/s, the peak; a column is 1 s" in text
    at = next(at for at, line in enumerate(text.splitlines()) if "NVLink, one minute" in line)
    rows = [line[7:67] for line in text.splitlines()[at + 1 :]]
    # 281 of 478 over the last quarter of a minute, half of that at the lowest: a column is never full.
    assert rows[0].strip() == ""
    assert any(row.endswith("#" * 15) for row in rows)


async def test_a_link_whose_peak_is_unknown_is_drawn_up_to_the_highest_seen():
    session = h200_node(1)
    session.say(device(0, 0, nvlink_peak_bytes_per_s=None))
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot, "m")
    assert "0 to 281 GB/s, the highest seen: the peak is unknown" in text
    assert re.search(r"NVLink 4.0 ×18 rx +281 GB/s", text)


async def test_a_lost_job_goes_pale_and_keeps_its_figures():
    session = h200_node(1)
    async with opened(session) as (app, pilot):
        before = await shown(app, pilot, "m")
        bright = styles(app)
        session.fleet.set_link(LinkState.LOST, "the hub is gone")
        after = await shown(app, pilot)
        assert [line for line in before.splitlines() if "GPU 0" in line] == [
            line for line in after.splitlines() if "GPU 0" in line
        ]
        assert styles(app) != bright


def styles(app):
    strips = app.screen._compositor.render_strips()
    return {segment.style.color for strip in strips[3:-1] for segment in strip if segment.style}


@pytest.mark.parametrize("make", [h200_node, workstation, grace_hopper, cpu_only])
async def test_it_fits_every_size(make):
    async with opened(make()) as (app, pilot):
        await pilot.press("m")
        for size in (*SIZES, (140, 24), (70, 36), (40, 12), (20, 5), (10, 3), (2, 1)):
            await pilot.resize_terminal(*size)
            await shown(app, pilot, "home")
            await shown(app, pilot, "pagedown")
            assert [cell_len(line) for line in screen_lines(app)] == [size[0]] * size[1]


@pytest.mark.parametrize("size", SIZES)
async def test_ascii_means_ascii(size):
    async with opened(h200_node(numas={0: misplaced(0), 1: unbound(1)}), ascii=True, size=size) as (
        app,
        pilot,
    ):
        for keys in (("1",), ("m",), ("pagedown", "pagedown")):
            assert (await shown(app, pilot, *keys)).isascii()
        assert re.search(r"GPU 0  rank 0 +! ", screen_text(app))


async def test_no_color_means_no_color_and_the_account_is_told_by_glyphs(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(h200_node(own_gb=140.5)) as (app, pilot):
        assert "▓" * 30 + "░" * 30 in await shown(app, pilot, "m")
        for strip in app.screen._compositor.render_strips():
            for segment in strip:
                for color in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                    assert color is None or color.is_default


HOSTILE = "\x1b]0;pwned\x07\x9b2J\r\n\t\u202e\u200b[bold red]x[/]"


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
                advice=HOSTILE, bound=HOSTILE, unknown=said),
        sample(0, 0.0, throttle_reasons=(HOSTILE,), unknown=said),
    )  # fmt: skip
    async with opened(session, size=size) as (app, pilot):
        for key in ("m", "pagedown", "pagedown", "2", "1"):
            await shown(app, pilot, key)
            lines = screen_lines(app)
            assert all(line.isprintable() for line in lines), key
            assert [cell_len(line) for line in lines] == [size[0]] * size[1]
        assert "[bold red]x[/]" in await shown(app, pilot, "m")
        if size == WIDE:  # every line of the box ends where the box does
            edges = [line.rstrip()[-1] for line in screen_lines(app) if line[1:2] in "╭│╰" and line.strip()]
            assert edges
            assert set(edges) <= set("╮│╯")


async def test_the_overview_has_columns_for_links_and_numa():
    session = h200_node(3, numas={1: misplaced(1), 2: unbound(2)})
    session.say(sample(0, 0.5, nvlink=None, pcie=None))
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        at = next(at for at, line in enumerate(screen_lines(app)) if "NVLink" in line)
        rows = screen_lines(app)[at + 1 :]
        assert re.search(r" –  +– +0 ✓ ", rows[0])
        assert re.search(r"277 GB/s  58 %  1.30 GB/s   2 %     0 ✗ ", rows[1])
        assert re.search(r"273 GB/s  57 %  1.40 GB/s   2 %     0 ~ ", rows[2])
        # The worst first, and what is unknown last.
        await pilot.press(*"sssss", "s")
        assert app.dashboard.state.sort_key == "nvlink"
        await shown(app, pilot)
        assert table_ranks(app) == [1, 2, 0]
        await pilot.press("s", "s")
        assert app.dashboard.state.sort_key == "numa"
        assert "NUMA▼" in await shown(app, pilot)
        assert table_ranks(app) == [1, 2, 0]
        await pilot.press("s")
        assert app.dashboard.state.sort_key == "rank"
        await shown(app, pilot, "slash", *"misplaced", "enter")
        assert table_ranks(app) == [1]


@pytest.mark.parametrize(("make", "sorts"), [(cpu_only, 4), (lambda: running_job(2), 6)])
async def test_a_job_without_gpus_has_no_columns_for_them(make, sorts):
    async with opened(make()) as (app, pilot):
        text = await shown(app, pilot)
        assert "NVLink" not in text
        assert "NUMA" not in text
        await pilot.press(*"s" * sorts)
        assert app.dashboard.state.sort_key == "rank"


async def test_a_gpu_without_nvlink_has_none_where_others_have_rates():
    session = h200_node(2)
    session.say(device(1, 1, nvlink_count=0))
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot)
    assert re.search(r"\n +1 .* none  1.30 GB/s", text)


@pytest.mark.parametrize("size", [WIDE, MIDDLE])
async def test_the_ranks_screen_has_its_links_and_its_node(size):
    async with opened(h200_node(2, numas={0: misplaced(0)}), size=size) as (app, pilot):
        text = await shown(app, pilot, "2")
    assert "NVLink 281 GB/s  59 %" in text
    assert "PCIe 1.20 GB/s 2 %" in text
    assert "NUMA 0 ✗ wrong node" in text


def test_rates_of_the_fakes_are_what_the_sentences_above_take_them_for():
    assert sample(0).nvlink_rx_bytes_per_s == 281 * GB
    assert sample(0).at_ns == T0
