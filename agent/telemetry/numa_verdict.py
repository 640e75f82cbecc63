"""Whether a rank's CPUs and memory are where its GPU is, in a sentence, and what to type if not."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from overlaptop.agent.telemetry.files import format_list
from overlaptop.agent.telemetry.process import GIB, MemoryPolicy
from overlaptop.agent.telemetry.topology import Topology

BIND = "-m overlaptop.agent --numa bind"
TORCHRUN = "torchrun --numa-binding=node"
MAX_TORCHRUN_BYTES = 1 << 20
MUCH_BYTES = GIB >> 2
"""Of a smaller process it does not matter where it lies; most of it is libraries that others use too."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What can be typed to start the job: which words its launcher and this machine know."""

    by_torchrun: bool
    torchrun_binds: bool
    """The installed torchrun has --numa-binding, and numactl, without which that refuses to work."""

    @classmethod
    def of_this_process(cls, environ: Mapping[str, str] = os.environ) -> LaunchOptions:
        """Find it out, without importing torch."""
        return cls(
            by_torchrun="TORCHELASTIC_RUN_ID" in environ,
            torchrun_binds=_torchrun_has_numa_binding() and shutil.which("numactl") is not None,
        )


@functools.cache
def _torchrun_has_numa_binding() -> bool:
    """Whether this torch's launcher knows the option; it came with torch 2.9."""
    try:
        torch = importlib.util.find_spec("torch")
        if torch is None or torch.origin is None:
            return False
        with (Path(torch.origin).parent / "distributed/run.py").open("rb") as source:
            return b'"--numa-binding"' in source.read(MAX_TORCHRUN_BYTES)
    except (OSError, ValueError, ImportError):
        return False


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a verdict is made from; None: not known."""

    topology: Topology
    has_gpu: bool
    gpu_node: int | None
    gpu_memory_node: int | None
    cpus: frozenset[int] | None
    cgroup_cpus: frozenset[int] | None
    policy: MemoryPolicy | None
    memory_by_node: Mapping[int, int]
    launch: LaunchOptions


def judge(situation: Situation) -> tuple[str, str, str]:
    """Say how a rank is bound: the state, reason and advice of NumaFacts.

    Its CPUs count, and a memory policy that names nodes.
    """
    topology, node = situation.topology, situation.gpu_node
    if not topology.cpus_by_node:
        return "unknown", f"the machine's NUMA nodes are not known: {topology.why_no_nodes}", ""
    if topology.only_node is not None:
        return "one node", f"all CPUs are on node {topology.only_node}: there is nothing to choose", ""
    if not situation.has_gpu:
        return "no gpu", "the rank computes on no GPU that it could be near to", ""
    if node is None:
        return "unknown", "nothing tells on which node the rank's GPU is", ""
    if situation.cpus is None:
        return "unknown", "nothing tells which CPUs the process may use", ""
    nodes = {number for number, cpus in topology.cpus_by_node.items() if cpus & situation.cpus}
    if not nodes:
        return "unknown", "the CPUs that the process may use are on no node that is known", ""
    if node not in nodes:
        reason = f"runs on {_nodes(nodes)}, its GPU is on node {node}"
        return "wrong node", reason, _move(situation, node, nodes)
    if nodes != {node}:
        near = " of the right socket" if _on_one_socket(topology, nodes) else ""
        reason = f"may run on {_nodes(nodes)}{near}, its GPU is on node {node}"
        return "unbound", reason, _bind(situation, node)
    return _judge_memory(situation, node)


def _judge_memory(situation: Situation, node: int) -> tuple[str, str, str]:
    """The CPUs are right; is the memory?"""
    where = f"runs on node {node} with its GPU"
    policy = situation.policy
    wanted = policy.nodes - {situation.gpu_memory_node} if policy is not None else frozenset()
    if policy is not None and wanted - {node}:
        state = "unbound" if node in wanted else "wrong node"
        advice = _numactl(situation.topology, node)  # no binding of CPUs undoes a policy
        if situation.launch.by_torchrun:
            advice = f"start torchrun without the memory policy {policy.text}"
        return state, f"{where}, but takes memory from {_nodes(wanted)} ({policy.text})", advice
    away = _memory_away(situation, node)
    if away:
        # It was there before the process was bound, or another process had it first.
        return "bound", f"{where}, but {away}", _bind(situation, node)
    return "bound", where, ""


def _memory_away(situation: Situation, gpu_node: int) -> str:
    """``3.1 of 4.0 GiB of its memory are on node 0``; empty: most of it is near."""
    gpu_memory = {situation.gpu_memory_node}
    gpu_memory |= {node.node for node in situation.topology.nodes if node.is_gpu_memory}
    held = {node: amount for node, amount in situation.memory_by_node.items() if node not in gpu_memory}
    total = sum(held.values())
    away = total - held.get(gpu_node, 0)
    if total < MUCH_BYTES or 2 * away <= total:
        return ""
    others = _nodes(held.keys() - {gpu_node})
    return f"{away / GIB:.1f} of {total / GIB:.1f} GiB of its memory are on {others}"


def _bind(situation: Situation, node: int) -> str:
    """What to type so that the rank gets the CPUs and the memory of `node`, where it may have them."""
    launch = situation.launch
    if launch.by_torchrun:
        return f"{TORCHRUN}, or {BIND}" if launch.torchrun_binds else f"{BIND} (here: node {node})"
    return f"{_numactl(situation.topology, node)}, or {BIND}"


def _move(situation: Situation, node: int, now: Collection[int]) -> str:
    """What to type where the process may use no CPU of `node`: what narrows it lies outside of it."""
    cpus = situation.topology.cpus_by_node.get(node)
    if cpus is None:
        return ""
    if situation.cgroup_cpus is not None and not situation.cgroup_cpus & cpus:
        return f"the job's cgroup has CPUs of {_nodes(now)} only: have it given {format_list(cpus)}"
    return _numactl(situation.topology, node, "--all ")


def _numactl(topology: Topology, node: int, more: str = "") -> str:
    if any(each.node == node and each.memory_bytes == 0 for each in topology.nodes):
        # numactl knows no node without memory by its number
        return f"numactl {more}--physcpubind={format_list(topology.cpus_by_node.get(node, ()))}"
    return f"numactl {more}--cpunodebind={node} --preferred={node}"


def _on_one_socket(topology: Topology, nodes: Collection[int]) -> bool:
    sockets = {topology.socket_by_node.get(node) for node in nodes}
    return len(sockets) == 1 and None not in sockets


def _nodes(numbers: Collection[int]) -> str:
    """``node 1``, ``nodes 0-3``."""
    return f"node{'s' * (len(numbers) > 1)} {format_list(numbers)}"
