"""NUMA: nodes, adapters and what is near to what; a rank's placement, its state, and what to type."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.telemetry import numa
from overlaptop.agent.telemetry.files import UnavailableError, format_list, parse_list
from overlaptop.agent.telemetry.numa import GpuPlace, gpu_node
from overlaptop.agent.telemetry.topology import Topology
from overlaptop.wire.devices import Nic, NodeShare, NumaFacts

from .trees import CPUS, GPUS, expand, set_process, watched, write


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


# A rank.


def facts(root: Path, gpu: int, cpus: str, **process) -> NumaFacts:
    """The facts of a process on the machine of two sockets."""
    expand("two-sockets", root)
    set_process(root, cpus, **process)
    return watched(root, GpuPlace(GPUS[gpu]))


def test_a_rank_on_its_gpu_s_node_is_bound(tmp_path: Path) -> None:
    found = facts(tmp_path, 2, "56-111,168-223", threads=[56, 57, 168], policy="prefer:1")
    assert found == NumaFacts(
        rank=3,
        gpu_node=1,
        gpu_memory_node=None,
        nic="mlx5_2",
        nic_node=1,
        cpu_set="56-111,168-223",
        cpu_nodes=(NodeShare(1, 112),),
        threads_by_node=(NodeShare(1, 3),),
        memory_policy="prefer:1",
        state="bound",
        reason="runs on node 1 with its GPU",
        advice="",
    )


def verdict(found: NumaFacts) -> tuple[str, str, str]:
    return found.state, found.reason, found.advice


def test_a_process_that_may_run_anywhere_is_unbound(tmp_path: Path) -> None:
    advice = "torchrun --numa-binding=node (needs torch 2.9 and numactl)"
    expected = ("unbound", "may run on nodes 0-1, its GPU is on node 0", advice)
    found = facts(tmp_path, 0, "0-8191")
    assert (verdict(found), found.cpu_set) == (expected, "0-223")  # without CPUs that are offline


def test_one_node_with_cpus_leaves_nothing_to_choose(tmp_path: Path) -> None:
    set_process(expand("grace-hopper", tmp_path / "grace"), "0-71")
    grace = watched(tmp_path / "grace", GpuPlace("0009:01:00.0", memory_affinity=(0, 1), memory_node=1))
    one_node = ("one node", "all CPUs are on node 0: there is nothing to choose", "")
    assert verdict(grace) == one_node
    assert (grace.gpu_node, grace.gpu_memory_node) == (0, 1)
    recorded = watched(expand("virtual-machine", tmp_path / "recorded"), None)
    assert (verdict(recorded), recorded.unknown) == (one_node, ())


@pytest.mark.parametrize(
    ("affinity", "memory_node", "node"),
    [((1,), None, 1), ((0, 12), 12, 0), ((0, 1), None, None), ((9,), None, None)],
)
def test_memory_affinity_counts_where_firmware_says_nothing(
    affinity: tuple[int, ...], memory_node: int | None, node: int | None, tmp_path: Path
) -> None:
    topology = Topology.read(expand("two-sockets", tmp_path))
    assert gpu_node(topology, GpuPlace("0000:01:00.0", affinity, memory_node)) == node


@pytest.mark.parametrize(
    ("policy", "state", "but"),
    [
        ("bind:0", "wrong node", ", but takes memory from node 0 (bind:0)"),
        ("interleave:0-1", "unbound", ", but takes memory from nodes 0-1 (interleave:0-1)"),
        ("default", "bound", ""),
    ],
)
def test_memory_from_another_node_is_said(policy: str, state: str, but: str, tmp_path: Path) -> None:
    found = facts(tmp_path, 2, "56-111", policy=policy)
    assert (found.state, found.reason) == (state, f"runs on node 1 with its GPU{but}")
    assert bool(found.advice) == bool(but)


def test_what_a_cgroup_withholds_no_command_gives(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/job/cpuset.cpus.effective", "0-55,112-167\n")
    found = facts(tmp_path, 2, "0-55")
    assert found.state == "wrong node"
    assert found.advice == "the job's cgroup has CPUs of node 0 only: have it given 56-111,168-223"


def test_placement_without_the_files_is_unknown_with_reasons(tmp_path: Path) -> None:
    found = watched(tmp_path, GpuPlace("0000:01:00.0"))
    assert (found.state, found.advice) == ("unknown", "")
    assert found.reason.startswith("the machine's NUMA nodes are not known: ")
    reasons = {unknown.name: unknown.reason for unknown in found.unknown}
    assert reasons.keys() == {"gpu_node", "cpu_set", "memory_policy", "threads_by_node"}
    assert all("No such file" in reason for name, reason in reasons.items() if name != "gpu_node")
    assert (found.cpu_set, found.cpu_nodes, found.memory_policy, found.nic) == ("", (), "", "")


def test_a_recorded_machine_with_a_process_that_numactl_bound(tmp_path: Path) -> None:
    free, near, far = (
        watched(expand(f"four-nodes-{how}", tmp_path / how), GpuPlace("0000:81:00.0"), environ={})
        for how in ("unbound", "bound", "wrong")
    )
    reason = "may run on nodes 0-3, its GPU is on node 3"
    assert verdict(free) == ("unbound", reason, "numactl --cpunodebind=3 --preferred=3")
    assert free.cpu_nodes == tuple(NodeShare(node, 2) for node in range(4))
    assert (free.gpu_node, free.nic, free.nic_node) == (3, "eth0", 3)
    assert (near.state, near.advice, near.cpu_set) == ("bound", "", "6-7")
    assert [share.node for share in near.threads_by_node] == [3]
    advice = "numactl --all --cpunodebind=3 --preferred=3"
    assert verdict(far) == ("wrong node", "runs on node 0, its GPU is on node 3", advice)
    assert [each.memory_policy for each in (free, near, far)] == ["default", "prefer:3", "bind:0"]


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000", "cpu.max": "800000 100000"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),
        ("3:cpu:/y\n", {"cpu/y/cpu.cfs_quota_us": "200000", "cpu/y/cpu.cfs_period_us": "100000"}, 2.0),
        ("", {"cpu.max": "150000 100000"}, None),
    ],
)
def test_the_least_limit_of_a_cgroup_s_cpu_time_counts(
    cgroup: str, files: dict[str, str], limit: float | None, tmp_path: Path
) -> None:
    write(tmp_path, "proc/self/cgroup", cgroup)
    for name, content in files.items():
        write(tmp_path, f"sys/fs/cgroup/{name}", f"{content}\n")
    assert numa.cpu_limit(tmp_path) == limit
