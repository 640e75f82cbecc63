"""Machines as trees of files in data/, and a process on them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from overlaptop.agent.telemetry.numa import MAX_THREADS, THREADS_AT_A_TIME, GpuPlace, NumaMonitor
from overlaptop.agent.telemetry.topology import Topology
from overlaptop.wire import codec
from overlaptop.wire.devices import NumaFacts

DATA = Path(__file__).parent / "data"
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none"}
CPUS = {0: "0-55,112-167", 1: "56-111,168-223"}
"""Of the nodes of two-sockets.tree."""
GPUS = ("0000:11:00.0", "0000:21:00.0", "0000:91:00.0", "0000:a1:00.0")
"""Its GPUs, two on each node."""


def expand(name: str, root: Path) -> Path:
    """Write a machine's files below `root`."""
    for line in (DATA / f"{name}.tree").read_text().splitlines():
        path, tab, content = line.partition("\t")
        if tab:
            write(root, path, json.loads(content))
        else:
            path, _, target = line.partition(" -> ")
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).symlink_to(target)
    return root


def set_process(root: Path, cpus: str, threads: Sequence[int] = (0,), policy: str = "default") -> None:
    """Write a process that may use these CPUs. `threads`: on which CPU each last ran."""
    write(root, "proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t{cpus}\nThreads:\t1\n")
    for number, cpu in enumerate(threads, 100):
        # From the third field on; the name holds what a careless reader trips over.
        fields = ["S", *"0" * 35, str(cpu), *"0" * 13]
        write(root, f"proc/self/task/{number}/stat", f"{number} (pt) S (x 1) {' '.join(fields)}\n")
    maps = f"55c000000000 {policy} file=/usr/bin/python3 mapped=2 N0=2 kernelpagesize_kB=4\n"
    write(root, "proc/self/numa_maps", maps)
    write(root, "proc/self/cgroup", "0::/job\n")


def watched(root: Path, place: GpuPlace | None, environ: Mapping[str, str] = TORCHRUN) -> NumaFacts:
    watch = NumaMonitor(3, Topology.read(root), place, root, environ=environ)
    for _ in range(MAX_THREADS // THREADS_AT_A_TIME):
        found = watch.facts()
    assert codec.decode(codec.encode(found)) == found, "it fits into a message"
    return found


def write(root: Path, path: str, content: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)
