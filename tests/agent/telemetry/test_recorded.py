"""Machines of several nodes, as a kernel showed them to processes that were bound well, badly or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlaptop.agent.telemetry.numa import GpuPlace
from overlaptop.agent.telemetry.topology import Topology
from overlaptop.wire.devices import NodeShare, NumaFacts

from .trees import expand, watched

GPU_OF_LAST_NODE = {"two": "0000:41:00.0", "four": "0000:81:00.0"}
NODES = {"two": 2, "four": 4}
several = pytest.mark.parametrize("nodes", ["two", "four"])


def facts(nodes: str, how: str, root: Path) -> NumaFacts:
    """Of a rank whose GPU is on the last node."""
    expand(f"{nodes}-nodes-{how}", root)
    return watched(root, GpuPlace(GPU_OF_LAST_NODE[nodes], (), None), environ={})


@several
def test_unbound(tmp_path: Path, nodes: str) -> None:
    found, last = facts(nodes, "unbound", tmp_path), NODES[nodes] - 1
    assert found.state == "unbound"
    assert found.reason == f"may run on nodes 0-{last}, its GPU is on node {last}"
    assert found.advice.startswith(f"numactl --cpunodebind={last} --preferred={last}")
    assert found.cpu_nodes == tuple(NodeShare(node, 2) for node in range(last + 1))
    assert (found.gpu_node, found.nic, found.nic_node) == (last, "eth0", last)
    assert found.memory_policy == "default"


@several
def test_bound_as_numactl_binds(tmp_path: Path, nodes: str) -> None:
    found, last = facts(nodes, "bound", tmp_path), NODES[nodes] - 1
    assert (found.state, found.advice) == ("bound", "")
    assert found.cpu_set == f"{2 * last}-{2 * last + 1}"
    assert found.memory_policy == f"prefer:{last}"
    assert [share.node for share in found.threads_by_node] == [last]
    held = {share.node: share.amount for share in found.memory_by_node}
    assert held[last] > 0


@several
def test_bound_to_the_wrong_node(tmp_path: Path, nodes: str) -> None:
    found, last = facts(nodes, "wrong", tmp_path), NODES[nodes] - 1
    assert found.state == "wrong node"
    assert found.reason == f"runs on node 0, its GPU is on node {last}"
    assert found.advice == f"numactl --all --cpunodebind={last} --preferred={last}"
    assert (found.cpu_set, found.memory_policy) == ("0-1", "bind:0")


@several
def test_each_node_s_gpu_and_adapter_are_told_apart(tmp_path: Path, nodes: str) -> None:
    topology = Topology.read(expand(f"{nodes}-nodes-unbound", tmp_path))
    assert [node.cpus for node in topology.nodes] == [f"{2 * n}-{2 * n + 1}" for n in range(NODES[nodes])]
    for node in range(NODES[nodes]):
        gpu = f"0000:{2 * (node + 1)}1:00.0"
        near = topology.nic_near(gpu)
        assert topology.node_of_pci(gpu) == node
        assert near is not None
        assert near.numa_node == node
