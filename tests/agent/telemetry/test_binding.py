"""``--numa bind``, for real: in processes of their own, on CPUs that this machine has."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from overlaptop.agent.options import AgentOptions, parse
from overlaptop.agent.telemetry.binding import gpus_of_rank
from overlaptop.agent.telemetry.files import UnavailableError
from overlaptop.wire.devices import GpuSite

from .trees import Device, Machine, Node, Process, lay_out

CPUS = sorted(os.sched_getaffinity(0))
BINDS = """
import json, os, sys, threading
from dataclasses import replace
from pathlib import Path
from overlaptop.agent.telemetry import binding, process
from overlaptop.wire.devices import GpuSite

root, environ, allowed = json.loads(sys.argv[1])
os.sched_setaffinity(0, allowed)
def gpus(topology):
    return [
        GpuSite(n, f"GPU-{n}", "H200", f"0000:0{n}:00.0", topology.node_of_pci(f"0000:0{n}:00.0"))
        for n in range(2)
    ]
said = binding.bind(environ, Path(root), gpus)
assert said == binding.outcome
inherited = []
thread = threading.Thread(target=lambda: inherited.extend(os.sched_getaffinity(0)))
thread.start(); thread.join()
print(json.dumps([said, sorted(os.sched_getaffinity(0)), sorted(inherited),
                  process.memory_policy(Path("/")).text if os.path.exists("/proc/self/numa_maps") else ""]))
"""


def machine(first: str, others: str, *nodes: int) -> Machine:
    return Machine(
        nodes={0: Node(first), 1: Node(others)},
        gpus=[Device(("pci0000:00", f"0000:0{number}:00.0"), node) for number, node in enumerate(nodes)],
    )


def bound(root: Path, allowed: list[int] = CPUS, **environ: str) -> tuple[str, list[int], str, str]:
    """What was said, the CPUs and the memory policy afterwards, and what went to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", BINDS, json.dumps([str(root), environ, allowed])],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, cpus, inherited, policy = json.loads(done.stdout)
    assert cpus == inherited, "later threads are bound as well"
    return said, cpus, policy, done.stderr


def may_set_a_policy() -> bool:
    """Whether the kernel lets us, asked by setting the policy that we have; some containers forbid it."""
    number = {"x86_64": 238, "aarch64": 237}.get(platform.machine())
    return number is not None and ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, None, 0) == 0


two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
FIRST, OTHERS = str(CPUS[0]), ",".join(map(str, CPUS[1:]))


@two_cpus
def test_a_node_that_this_machine_lacks_gives_cpus_but_no_memory(tmp_path: Path) -> None:
    lay_out(machine(FIRST, OTHERS, 1, 0), Process("0"), tmp_path)
    (tmp_path / "sys/devices/system/node/node1").rename(tmp_path / "sys/devices/system/node/node900")
    (tmp_path / "sys/devices/pci0000:00/0000:00:00.0/numa_node").write_text("900\n")
    said, cpus, policy, _ = bound(tmp_path, LOCAL_RANK="0")
    assert cpus == CPUS[1:]
    assert said.startswith("bound to node 900: CPUs ")
    assert "; memory follows the CPUs (set_mempolicy: " in said
    assert policy in ("default", "")


BOUND = f"bound to node 0: CPUs {FIRST}"
NO_LOCAL_RANK = "no LOCAL_RANK says which GPU is this process's, and they are on several nodes"
NO_CPU = "the process may use none of the CPUs of node 1, where its GPU is"
UNCHANGED = f"was on node 0 already: CPUs {FIRST}"


@two_cpus
@pytest.mark.parametrize(
    ("nodes", "allowed", "local_rank", "outcome", "cpus"),
    [
        ((1, 0), CPUS, "1", BOUND, CPUS[:1]),
        ((0, 0), CPUS, "", BOUND, CPUS[:1]),
        ((0, 1), CPUS[:1], "0", UNCHANGED, CPUS[:1]),
        ((0, 1), CPUS, "", NO_LOCAL_RANK, CPUS),
        ((0, 1), CPUS, "2", "local rank 2 has none of the 2 visible GPUs", CPUS),
        ((-1, 1), CPUS, "0", "neither sysfs nor NVML names one node for 0000:00:00.0", CPUS),
        ((1, 1), CPUS[:1], "0", NO_CPU, CPUS[:1]),
    ],
)  # fmt: skip
def test_a_rank_gets_cpus_and_memory_of_its_gpu_s_node_or_nothing_changes_and_why_is_said(
    nodes: tuple[int, int],
    allowed: list[int],
    local_rank: str,
    outcome: str,
    cpus: list[int],
    tmp_path: Path,
) -> None:
    lay_out(machine(FIRST, OTHERS, *nodes), Process("0"), tmp_path)
    said, now, policy, errors = bound(tmp_path, allowed, LOCAL_RANK=local_rank)
    assert now == cpus
    if outcome == BOUND and may_set_a_policy():
        assert said == f"{BOUND}, memory preferred there"
        assert policy in ("prefer:0", "")
    else:
        assert policy in ("default", "")
    if outcome == BOUND:
        assert said.startswith(BOUND)
    elif outcome != UNCHANGED:
        assert errors == f"overlaptop: --numa bind: not bound: {outcome}\n"
        assert said == f"not bound: {outcome}"
    assert bool(errors) == said.startswith("not bound")


def test_one_node_or_none_leaves_nothing_to_bind(tmp_path: Path) -> None:
    one = Machine(nodes={0: Node("0-1")}, gpus=[Device(("pci0000:00", "0000:00:00.0"), 0)])
    said, cpus, _, _ = bound(lay_out(one, Process("0"), tmp_path / "one"), LOCAL_RANK="0")
    assert (said, cpus) == ("not bound: all CPUs are on node 0", CPUS)
    said, cpus, _, _ = bound(tmp_path / "none", LOCAL_RANK="0")
    assert "No such file or directory" in said
    assert cpus == CPUS


def test_a_job_that_cannot_be_bound_runs_as_it_would_without(tmp_path: Path, sockets: Path) -> None:
    """On this very machine, with its own NVML and its own nodes."""
    script = tmp_path / "train.py"
    script.write_text("import os, sys; print(sys.argv[1:]); sys.exit(3)\n")
    environ = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    run = subprocess.run(
        [sys.executable, "-m", "overlaptop.agent", "--numa", "bind", str(script), "a"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert (run.returncode, run.stdout) == (3, "['a']\n")
    assert run.stderr.startswith("overlaptop: --numa bind: not bound: ")
    assert run.stderr.count("\n") == 1


def test_the_options_are_parsed_and_off_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    plain = parse(["train.py"]).options
    assert (plain.numa, plain.telemetry) == ("off", True)
    asked = parse(["--numa", "bind", "--no-telemetry", "train.py", "--numa", "x"])
    assert (asked.options.numa, asked.options.telemetry) == ("bind", False)
    assert asked.arguments == ("--numa", "x")
    with pytest.raises(SystemExit):
        parse(["--numa", "node", "train.py"])
    assert "argument --numa: invalid choice: 'node'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="numa must be one of off, bind, not 'node'"):
        AgentOptions(numa="node")


def site(index: int, name: str = "NVIDIA H200") -> GpuSite:
    return GpuSite(index, f"GPU-{index}a{index}b-cafe", name, f"0000:{index + 1:02x}:00.0", None)


FOUR = tuple(map(site, range(4)))
MIXED = (site(0), site(1, "NVIDIA T400"), site(2))


def shown(visible: str | None, local_rank: int | None = None, gpus=FOUR, **environ: str) -> list[int]:
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    return [gpu.index for gpu in gpus_of_rank(local_rank, gpus, environ)]


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2, 3]),
        (" 3 , 1 ", [3, 1]),
        ("0,-1,2", [0]),
        ("1,9,2", [1]),
        ("1,,2", [1]),
        ("1,x", [1]),
        ("GPU-2A,GPU-0a0b-cafe", [2, 0]),
        ("GPU-1a,0", [1]),
        ("0,GPU-1a", [0]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(visible: str | None, indices: list[int]) -> None:
    assert shown(visible) == indices


@pytest.mark.parametrize(
    ("visible", "why"),
    [
        ("", "CUDA_VISIBLE_DEVICES= shows no GPU"),
        ("NoDevFiles", "CUDA_VISIBLE_DEVICES=NoDevFiles shows no GPU"),
        ("GPU-", "shows no GPU"),
        ("9" * 5000, "shows no GPU"),
        ("0,0", "names GPU 0 twice"),
        ("MIG-8a-cafe", "a MIG slice"),
    ],
)
def test_what_shows_no_certain_gpu_is_refused_with_the_reason(visible: str, why: str) -> None:
    with pytest.raises(UnavailableError, match=why):
        shown(visible)
    with pytest.raises(UnavailableError, match="NVML knows no GPU"):
        shown(visible, 0, ())


def test_gpus_of_different_kinds_are_numbered_by_speed_unless_told_otherwise() -> None:
    for visible, indices in ((None, [0, 1, 2]), ("1", [1])):
        with pytest.raises(UnavailableError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
            shown(visible, gpus=MIXED)
        assert shown(visible, gpus=MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID") == indices
    assert shown("GPU-2a,GPU-0a", gpus=MIXED) == [2, 0], "a UUID is no number"


@pytest.mark.parametrize(
    ("local_rank", "visible", "indices"),
    [(3, None, [3]), (1, "3,2", [2]), (3, "2", [2]), (None, "1,3", [1, 3])],
)
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one(
    local_rank: int | None, visible: str | None, indices: list[int]
) -> None:
    assert shown(visible, local_rank) == indices
