"""NUMA nodes, adapters, and what is near to what, on machines of many shapes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.telemetry.files import UnavailableError, format_list, parse_list
from overlaptop.agent.telemetry.topology import Topology
from overlaptop.wire.devices import Nic

from .trees import CPUS, GPUS, expand, write


def test_devices_lie_on_nodes_beside_their_adapters(tmp_path: Path) -> None:
    topology = Topology.read(expand("two-sockets", tmp_path))
    assert topology.unknown == ()
    assert topology.cpus_by_node == {node: parse_list(cpus) for node, cpus in CPUS.items()}
    assert [topology.node_of_pci(gpu) for gpu in GPUS] == [0, 0, 1, 1]
    nics = [topology.nic_near(gpu) for gpu in GPUS]
    assert nics == [Nic(f"mlx5_{number}", number // 2, 400_000_000_000) for number in range(4)]
    # Each is listed once, although it has an Ethernet face, too.
    assert topology.nics == (*nics, Nic("eth0", 0, 25_000_000_000))
    for no_address in ("", "0000:fe:1f.7", "0000:11:00.0/.."):
        assert topology.node_of_pci(no_address) is topology.nic_near(no_address) is None


def test_the_only_node_with_cpus_has_all_devices(tmp_path: Path) -> None:
    topology = Topology.read(expand("grace-hopper", tmp_path))
    assert topology.cpus_by_node == {0: frozenset(range(72))}
    assert topology.node_of_pci("0000:fe:1f.7") == 0


@pytest.mark.parametrize(
    ("nodes", "nearest"),
    [
        ((0, 0, 0), "mlx5_0"),
        ((0, 1, 0), "eth0"),
        ((0, 1, -1), "mlx5_0"),
        ((-1, 1, 0), None),
        ((0, -1, -1), None),
    ],
)
def test_node_decides_without_a_common_bridge(
    nodes: tuple[int, int, int], nearest: str | None, tmp_path: Path
) -> None:
    expand("separate-bridges", tmp_path)
    for path, node in zip(("00/0000:01", "40/0000:41", "80/0000:81"), nodes, strict=True):
        write(tmp_path, f"sys/devices/pci0000:{path}:00.0/numa_node", f"{node}\n")
    near = Topology.read(tmp_path).nic_near("0000:01:00.0")
    assert (near and near.name) == nearest


@given(st.frozensets(st.integers(0, 200), max_size=60))
def test_lists_are_read_back_in_as_few_ranges_as_can_be(cpus: frozenset[int]) -> None:
    text = format_list(cpus)
    assert parse_list(text) == parse_list(f"{text}\n") == cpus
    ends = [int(number) for number in text.replace("-", ",").split(",") if number]
    assert ends == sorted(ends)
    assert text.count(",") == max(0, sum(cpu - 1 not in cpus for cpu in cpus) - 1)


@pytest.mark.parametrize(
    "text", ["x", "3-1", "-1", "1-", "0-99999999", "0-65536", "1 2", "0-3:2/4", "9" * 50, "²"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UnavailableError, match="is no range"):
        parse_list(text)
