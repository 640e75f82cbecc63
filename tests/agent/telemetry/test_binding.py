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
        timeout=60,
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
OTHERS = ",".join(map(str, CPUS[1:]))


@two_cpus
def test_a_rank_gets_the_cpus_and_the_memory_of_its_gpu_s_node(tmp_path: Path) -> None:
    lay_out(machine(str(CPUS[0]), OTHERS, 1, 0), Process("0"), tmp_path)
    said, cpus, policy, errors = bound(tmp_path, LOCAL_RANK="1")
    assert cpus == CPUS[:1]
    assert said.startswith(f"bound to node 0: CPUs {CPUS[0]}")
    if may_set_a_policy():
        assert said == f"bound to node 0: CPUs {CPUS[0]}, memory preferred there"
        assert policy in ("prefer:0", "")
    else:
        assert said.startswith(f"bound to node 0: CPUs {CPUS[0]}; memory follows the CPUs (")
    assert errors == ""


@two_cpus
def test_a_node_that_this_machine_lacks_gives_cpus_but_no_memory(tmp_path: Path) -> None:
    lay_out(machine(str(CPUS[0]), OTHERS, 1, 0), Process("0"), tmp_path)
    (tmp_path / "sys/devices/system/node/node1").rename(tmp_path / "sys/devices/system/node/node900")
    (tmp_path / "sys/devices/pci0000:00/0000:00:00.0/numa_node").write_text("900\n")
    said, cpus, policy, _ = bound(tmp_path, LOCAL_RANK="0")
    assert cpus == CPUS[1:]
    assert said.startswith(f"bound to node 900: CPUs {OTHERS if len(CPUS) == 2 else ''}")
    assert "; memory follows the CPUs (set_mempolicy: " in said
    assert policy in ("default", "")


@two_cpus
def test_a_process_that_its_launcher_has_bound_is_left_as_it_is(tmp_path: Path) -> None:
    lay_out(machine(str(CPUS[0]), OTHERS, 0, 1), Process("0"), tmp_path)
    said, cpus, policy, errors = bound(tmp_path, CPUS[:1], LOCAL_RANK="0")
    assert (said, cpus) == (f"was on node 0 already: CPUs {CPUS[0]}", CPUS[:1])
    assert policy in ("default", "")
    assert errors == ""


@two_cpus
@pytest.mark.parametrize(
    ("nodes", "environ", "why"),
    [
        ((0, 1), {}, "no LOCAL_RANK says which GPU is this process's, and they are on several nodes"),
        ((0, 1), {"LOCAL_RANK": "2"}, "local rank 2 has none of the 2 visible GPUs"),
        ((0, 1), {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES= shows no GPU"),
        ((-1, 1), {"LOCAL_RANK": "0"}, "neither sysfs nor NVML names one node for 0000:00:00.0"),
    ],
)
def test_a_refusal_changes_nothing_and_says_why(
    nodes: tuple[int, int], environ: dict[str, str], why: str, tmp_path: Path
) -> None:
    lay_out(machine(str(CPUS[0]), OTHERS, *nodes), Process("0"), tmp_path)
    said, cpus, policy, errors = bound(tmp_path, **environ)
    assert said == f"not bound: {why}"
    assert cpus == CPUS
    assert policy in ("default", "")
    assert errors == f"overlaptop: --numa bind: not bound: {why}\n"


@two_cpus
def test_cpus_that_the_process_may_not_use_are_not_taken(tmp_path: Path) -> None:
    lay_out(machine(str(CPUS[0]), OTHERS, 1, 1), Process("0"), tmp_path)
    said, cpus, _, _ = bound(tmp_path, CPUS[:1], LOCAL_RANK="0")
    assert said == "not bound: the process may use none of the CPUs of node 1, where its GPU is"
    assert cpus == CPUS[:1]


@two_cpus
def test_without_a_local_rank_gpus_of_one_node_still_bind(tmp_path: Path) -> None:
    lay_out(machine(str(CPUS[0]), OTHERS, 0, 0), Process("0"), tmp_path)
    said, cpus, _, _ = bound(tmp_path)
    assert said.startswith(f"bound to node 0: CPUs {CPUS[0]}")
    assert cpus == CPUS[:1]


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
        timeout=60,
        check=False,
        env=environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert (run.returncode, run.stdout) == (3, "['a']\n")
    assert run.stderr.startswith("overlaptop: --numa bind: not bound: ")
    assert run.stderr.count("\n") == 1


def test_the_options_are_parsed_and_off_by_default() -> None:
    plain = parse(["train.py"]).options
    assert (plain.numa, plain.telemetry) == ("off", True)
    asked = parse(["--numa", "bind", "--no-telemetry", "train.py", "--numa", "x"])
    assert (asked.options.numa, asked.options.telemetry) == ("bind", False)
    assert asked.arguments == ("--numa", "x")


def test_options_that_cannot_be_meant_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse(["--numa", "node", "train.py"])
    assert left.value.code == 2
    assert "argument --numa: invalid choice: 'node'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="numa must be one of off, bind, not 'node'"):
        AgentOptions(numa="node")
