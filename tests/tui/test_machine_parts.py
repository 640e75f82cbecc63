"""What the Machine view is made of: hosts, columns of a minute, words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop.text import bit_rate, gigabytes_per_s, rate, whole_percent
from overlaptop.tui.machine.host import cpu_count, hosts, machine_of
from overlaptop.tui.machine.link_history import MINUTE_S, column_s, columns
from overlaptop.tui.machine.numa import by_node, on_node
from overlaptop.wire.devices import NodeShare, NumaNode
from tests.fleet.builders import T0, S

from .machines import GB, GIB, dual_socket, h200_node, job_of, numa, sample, site


def rx(one):
    return one.nvlink_rx_bytes_per_s


@pytest.mark.parametrize(
    ("cpus", "count"),
    [
        ("", 0), ("0", 1), ("0-3", 4), ("0-3,8", 5), ("0-47,96-143", 96), ("3-0", None), ("all", None),
        ("0-3,", None), ("0-99999999999", None), ("-1", None), ("0x3", None),
    ],
)  # fmt: skip
def test_cpus_of_a_kernels_list_are_counted_and_other_text_is_not(cpus, count):
    assert cpu_count(cpus) == count


@given(st.integers(1, 400))
def test_a_minute_fits_into_its_columns(width):
    assert column_s(width) * width >= MINUTE_S
    assert len(columns([sample(0)], width, rx)) <= width


def test_a_finished_column_never_changes_again():
    samples = [sample(0, at_s / 2, nvlink=100 + at_s % 7) for at_s in range(240)]
    before, after = columns(samples[:200], 20, rx), columns(samples[:206], 20, rx)
    assert after[:-1] == before[1:-1] + after[-2:-1]
    assert None not in after


def test_a_column_is_the_mean_of_what_is_known_in_it_and_a_gap_where_nothing_is():
    at_s = MINUTE_S - T0 // S % MINUTE_S  # whole minutes begin columns of any width
    told = [
        sample(0, at_s + 0.5, nvlink=100), sample(0, at_s + 1.0, nvlink=200),
        sample(0, at_s + 1.5, nvlink=None), sample(0, at_s + 8.0, nvlink=50),
    ]  # fmt: skip
    assert columns(told, 20, rx)[-3:] == [150 * GB, None, 50 * GB]
    assert columns([], 20, rx) == [None] * 20


def test_ranks_see_their_machine_together_and_no_other_hosts():
    session = h200_node(2, host="gpu-a", session=job_of(4))
    h200_node(2, host="gpu-b", session=session, first=2)
    ranks = session.tick().ranks
    assert hosts(ranks) == ["gpu-a", "gpu-b"]
    machine = machine_of(ranks, "gpu-b")
    assert [view.rank for view in machine.ranks] == [2, 3]
    assert [len(node.gpus) for node in machine.nodes] == [4, 4]
    assert machine.gpu_of(ranks[3]).label == "GPU 1"
    assert machine.gpu_of(ranks[0]).ranks == (ranks[2],)  # the same UUID, but of this host's ranks only


def test_gpus_and_adapters_of_no_node_are_on_the_only_one_there_is():
    session = h200_node(1)
    one = replace(
        dual_socket(), numa_nodes=(NumaNode(0, "0-7", GIB),), gpus=(site(0, None),),
        nics=tuple(replace(nic, numa_node=None) for nic in dual_socket().nics),
    )  # fmt: skip
    session.say(one, replace(numa(0), gpu_node=None))
    (node,) = machine_of(session.tick().ranks, "gpu-a").nodes
    assert node.number == 0
    assert len(node.gpus) == 1
    assert len(node.nics) == 9


def test_what_is_on_a_node_is_said_without_what_is_not():
    facts = numa(0, cpu_nodes=(NodeShare(0, 1),), threads_by_node=(NodeShare(0, 2), NodeShare(1, 0)))
    assert on_node(facts, 0) == ["1 CPU", "2 threads", "3.00 GiB"]
    assert on_node(facts, 1) == ["12.0 MiB"]
    assert on_node(facts, 5) == []
    assert by_node((NodeShare(1, 2), NodeShare(0, 34)), "thread") == "34 threads on node 0, 2 on node 1"
    assert by_node((NodeShare(0, 0), NodeShare(1, GIB))) == "1.00 GiB on node 1"
    assert by_node(()) == ""


@pytest.mark.parametrize(
    ("bytes_per_s", "words"),
    [
        (None, "–"), (0, "0"), (1, "<0.01"), (10**7, "0.01"), (1_200_000_000, "1.20"),
        (28_100_000_000, "28.1"), (281_000_000_000, "281"), (1_800_000_000_000, "1800"),
    ],
)  # fmt: skip
def test_rates_have_one_unit_and_three_digits(bytes_per_s, words):
    assert gigabytes_per_s(bytes_per_s) == words
    assert rate(bytes_per_s) == (words if bytes_per_s is None else f"{words} GB/s")


def test_shares_and_speeds_in_words():
    assert [whole_percent(share) for share in (None, 0.0, 0.001, 0.594, 1.0)] == [
        "–", "0 %", "<1 %", "59 %", "100 %"
    ]  # fmt: skip
    assert [bit_rate(speed) for speed in (None, 10**8, 25 * 10**9, 400 * 10**9, 16 * 10**11)] == [
        "–", "100 Mb/s", "25 Gb/s", "400 Gb/s", "1600 Gb/s"
    ]  # fmt: skip
