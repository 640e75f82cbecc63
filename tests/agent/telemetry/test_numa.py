"""What a rank is told of its NUMA placement: the state, the sentence, and what to type."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch.torch_version import TorchVersion

from overlaptop.agent.telemetry import numa
from overlaptop.agent.telemetry.numa import GpuPlace, gpu_node
from overlaptop.agent.telemetry.topology import Topology
from overlaptop.wire.devices import NodeShare, NumaFacts

from .trees import (
    GRACE_HOPPER,
    NPS4,
    TORCHRUN,
    TWO_SOCKETS,
    Device,
    Machine,
    Process,
    expand,
    lay_out,
    watched,
)


@pytest.fixture(autouse=True)
def knows_all_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's torchrun has the option and numactl is there, unless a test says otherwise."""
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.0a0+50eac8"))
    monkeypatch.setattr(numa.shutil, "which", lambda name: f"/usr/bin/{name}")


def facts(
    machine: Machine,
    running: Process,
    root: Path,
    gpu: int | None = 0,
    *,
    memory_node: int | None = None,
    memory_affinity: tuple[int, ...] = (),
    environ: Mapping[str, str] = TORCHRUN,
) -> NumaFacts:
    lay_out(machine, running, root)
    place = None if gpu is None else GpuPlace(machine.gpus[gpu].address, memory_affinity, memory_node)
    return watched(root, place, environ)


def test_a_rank_on_its_gpu_s_node_is_bound(tmp_path: Path) -> None:
    found = facts(
        TWO_SOCKETS, Process("56-111,168-223", threads=[56, 57, 168], policy="prefer:1"), tmp_path, gpu=5
    )
    assert found == NumaFacts(
        rank=3,
        gpu_node=1,
        gpu_memory_node=None,
        nic="mlx5_5",
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


BIND = "torchrun --numa-binding=node"


def unbound(nodes: str, node: int) -> tuple[str, str, str]:
    return "unbound", f"may run on nodes {nodes}, its GPU is on node {node}", BIND


def wrong(nodes: str, node: int) -> tuple[str, str, str]:
    advice = f"numactl --all --cpunodebind={node} --preferred={node}"
    return "wrong node", f"runs on {nodes}, its GPU is on node {node}", advice


@pytest.mark.parametrize(
    ("machine", "gpu", "cpus", "expected"),
    [
        (TWO_SOCKETS, 0, "0-223", unbound("0-1", 0)),
        (TWO_SOCKETS, 0, "3", ("bound", "runs on node 0 with its GPU", "")),
        (TWO_SOCKETS, 7, "0-55", wrong("node 0", 1)),
        (NPS4, 0, "0-63,128-191", unbound("0-3 of the right socket", 3)),
        (NPS4, 0, "0-47", wrong("nodes 0-2", 3)),
    ],
)
def test_the_cpus_decide(
    machine: Machine, gpu: int, cpus: str, expected: tuple[str, str, str], tmp_path: Path
) -> None:
    assert verdict(facts(machine, Process(cpus), tmp_path, gpu)) == expected


def test_one_node_with_cpus_leaves_nothing_to_choose(tmp_path: Path) -> None:
    found = facts(GRACE_HOPPER, Process("0-71"), tmp_path, memory_node=1, memory_affinity=(0, 1))
    assert verdict(found) == ("one node", "all CPUs are on node 0: there is nothing to choose", "")
    assert (found.gpu_node, found.gpu_memory_node) == (0, 1)
    recorded = watched(expand("virtual-machine", tmp_path / "recorded"), None)
    assert verdict(recorded) == ("one node", "all CPUs are on node 0: there is nothing to choose", "")
    assert recorded.unknown == ()


UNPLACED = Machine(nodes=TWO_SOCKETS.nodes, gpus=[Device(("pci0000:00", "0000:01:00.0"), -1)])
"""By its firmware."""


@pytest.mark.parametrize(
    ("affinity", "memory_node", "node"),
    [((1,), None, 1), ((0, 12), 12, 0), ((0, 1), None, None), ((9,), None, None)],
)
def test_memory_affinity_counts_where_firmware_says_nothing(
    affinity: tuple[int, ...], memory_node: int | None, node: int | None, tmp_path: Path
) -> None:
    topology = Topology.read(lay_out(UNPLACED, Process("0"), tmp_path))
    assert gpu_node(topology, GpuPlace("0000:01:00.0", affinity, memory_node)) == node


def test_a_rank_without_a_gpu_has_nothing_to_be_near_to(tmp_path: Path) -> None:
    found = facts(TWO_SOCKETS, Process("0-223"), tmp_path, None)
    assert verdict(found) == ("no gpu", "the rank computes on no GPU that it could be near to", "")
    assert found.cpu_nodes == (NodeShare(0, 112), NodeShare(1, 112))


@pytest.mark.parametrize(
    ("policy", "state", "but"),
    [
        ("bind:0", "wrong node", "takes memory from node 0 (bind:0)"),
        ("interleave:0-1", "unbound", "takes memory from nodes 0-1 (interleave:0-1)"),
        ("default", "bound", ""),
    ],
)
def test_memory_from_another_node_is_said(policy: str, state: str, but: str, tmp_path: Path) -> None:
    found = facts(TWO_SOCKETS, Process("56-111", policy=policy), tmp_path, 4)
    reason = "runs on node 1 with its GPU" + f", but {but}" * bool(but)
    assert (found.state, found.reason, bool(found.advice)) == (state, reason, bool(but))


def test_only_what_works_is_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = facts(TWO_SOCKETS, Process("0-223"), tmp_path / "alone", 4, environ={})
    assert alone.advice == "numactl --cpunodebind=1 --preferred=1"
    lacking = ((numa.shutil, "which", lambda _: None), (torch, "__version__", TorchVersion("2.8.0+cu128")))
    for owner, name, value in lacking:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            found = facts(TWO_SOCKETS, Process("0-223"), tmp_path / name, 4)
        assert found.advice == f"{BIND} (needs torch 2.9 and numactl)"


def test_what_a_cgroup_withholds_no_command_gives(tmp_path: Path) -> None:
    found = facts(TWO_SOCKETS, Process("0-55", cgroup_cpus="0-55,112-167"), tmp_path, 4)
    assert found.state == "wrong node"
    assert found.advice == "the job's cgroup has CPUs of node 0 only: have it given 56-111,168-223"


def test_placement_without_the_files_is_unknown_with_reasons(tmp_path: Path) -> None:
    found = watched(tmp_path, GpuPlace("0000:01:00.0"))
    assert found.state == "unknown"
    assert found.reason.startswith("the machine's NUMA nodes are not known: ")
    assert found.advice == ""
    names = {unknown.name for unknown in found.unknown}
    assert names == {"gpu_node", "cpu_set", "memory_policy", "threads_by_node"}
    assert all("No such file" in each.reason for each in found.unknown if each.name != "gpu_node")
    assert (found.cpu_set, found.cpu_nodes, found.memory_policy, found.nic) == ("", (), "", "")


def test_a_recorded_machine_with_a_process_that_numactl_bound(tmp_path: Path) -> None:
    free, near, far = (
        watched(expand(f"four-nodes-{how}", tmp_path / how), GpuPlace("0000:81:00.0"), environ={})
        for how in ("unbound", "bound", "wrong")
    )
    assert free.reason == "may run on nodes 0-3, its GPU is on node 3"
    assert free.advice.startswith("numactl --cpunodebind=3 --preferred=3")
    assert free.cpu_nodes == tuple(NodeShare(node, 2) for node in range(4))
    assert (free.gpu_node, free.nic, free.nic_node) == (3, "eth0", 3)
    assert (near.state, near.advice, near.cpu_set) == ("bound", "", "6-7")
    assert [share.node for share in near.threads_by_node] == [3]
    assert verdict(far) == wrong("node 0", 3)
    assert [each.memory_policy for each in (free, near, far)] == ["default", "prefer:3", "bind:0"]
