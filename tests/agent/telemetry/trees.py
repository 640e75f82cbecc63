"""Machines as trees of files: those that were recorded, and those that are laid out after a description.

A description says what a public listing of a real machine says (data/README.md names them): which node has
which CPUs, which GPU and adapter is on which node and behind which bridge. The files are then written as
the kernel writes them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from overlaptop.agent.telemetry.numa import MAX_THREADS, THREADS_AT_A_TIME, GpuPlace, NumaMonitor
from overlaptop.agent.telemetry.topology import Topology
from overlaptop.wire import codec
from overlaptop.wire.devices import NumaFacts

DATA = Path(__file__).parent / "data"
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none"}


@dataclass(frozen=True)
class Device:
    """Something on PCI: where its path leads from the host bridge down, and what firmware says of it."""

    path: tuple[str, ...]
    numa_node: int

    @property
    def address(self) -> str:
        return self.path[-1]


@dataclass(frozen=True)
class Machine:
    nodes: Mapping[int, str]  # CPUs by node
    gpus: Sequence[Device] = ()
    infiniband: Mapping[str, Device] = field(default_factory=dict)
    """``mlx5_0``; each has an Ethernet or IPoIB face of the same device, too."""
    ethernet: Mapping[str, Device] = field(default_factory=dict)


@dataclass(frozen=True)
class Process:
    cpus: str
    threads: Sequence[int] = (0,)  # On which CPU each last ran
    policy: str = "default"
    cgroup_cpus: str = ""


def expand(name: str, root: Path) -> Path:
    for line in (DATA / f"{name}.tree").read_text().splitlines():
        path, tab, content = line.partition("\t")
        if tab:
            write(root, path, json.loads(content))
        else:
            path, _, target = line.partition(" -> ")
            _link(root, path, target)
    return root


def watched(root: Path, place: GpuPlace | None, environ: Mapping[str, str] = TORCHRUN) -> NumaFacts:
    watch = NumaMonitor(3, Topology.read(root), place, root, environ=environ)
    for _ in range(MAX_THREADS // THREADS_AT_A_TIME):
        found = watch.facts()
    assert codec.decode(codec.encode(found)) == found, "it fits into a message"
    return found


def lay_out(machine: Machine, process: Process, root: Path) -> Path:
    """Write a described machine, and a process on it, below `root`."""
    for number, cpus in machine.nodes.items():
        write(root, f"sys/devices/system/node/node{number}/cpulist", f"{cpus}\n")
    online = ",".join(filter(None, machine.nodes.values()))
    write(root, "sys/devices/system/cpu/online", f"{online}\n")
    for device in (*machine.gpus, *machine.infiniband.values(), *machine.ethernet.values()):
        _plug(root, device)
    (root / "sys/devices/virtual/net/lo").mkdir(parents=True)
    _link(root, "sys/class/net/lo", "../../devices/virtual/net/lo")
    for name, device in machine.infiniband.items():
        _show(root, device, "infiniband", name)
        write(root, f"{_folder(device)}/infiniband/{name}/ports/1/rate", "400 Gb/sec (4X NDR)\n")
        _show(root, device, "net", name.replace("mlx5_", "ib"))
    for name, device in machine.ethernet.items():
        _show(root, device, "net", name)
        write(root, f"{_folder(device)}/net/{name}/speed", "25000\n")
    set_process(process, root)
    return root


def set_process(process: Process, root: Path) -> None:
    write(root, "proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t{process.cpus}\nThreads:\t1\n")
    for number, cpu in enumerate(process.threads, 100):
        # From the third field on; the name holds what a careless reader trips over.
        fields = ["S", *"0" * 35, str(cpu), *"0" * 13]
        write(root, f"proc/self/task/{number}/stat", f"{number} (pt) S (x 1) {' '.join(fields)}\n")
    maps = f"55c000000000 {process.policy} file=/usr/bin/python3 mapped=2 N0=2 kernelpagesize_kB=4\n"
    write(root, "proc/self/numa_maps", maps)
    write(root, "proc/self/cgroup", "0::/job\n")
    if process.cgroup_cpus:
        write(root, "sys/fs/cgroup/job/cpuset.cpus.effective", f"{process.cgroup_cpus}\n")


def _folder(device: Device) -> str:
    return f"sys/devices/{'/'.join(device.path)}"


def _plug(root: Path, device: Device) -> None:
    write(root, f"{_folder(device)}/numa_node", f"{device.numa_node}\n")
    _link(root, f"sys/bus/pci/devices/{device.address}", f"../../../devices/{'/'.join(device.path)}")


def _show(root: Path, device: Device, kind: str, name: str) -> None:
    folder = f"{_folder(device)}/{kind}/{name}"
    _link(root, f"{folder}/device", "../..")
    _link(root, f"sys/class/{kind}/{name}", f"../../{folder.removeprefix('sys/')}")


def write(root: Path, path: str, content: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)


def _link(root: Path, path: str, target: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(target)


def _below(bridge: int, address: str, node: int) -> Device:
    """A device below the first port of a host bridge."""
    return Device((f"pci0000:{bridge:02x}", f"0000:{bridge:02x}:01.1", address), node)


# Two sockets, eight GPUs, each with an adapter at the same port.
_PORTS = tuple(zip((0x10, 0x20, 0x30, 0x40, 0x90, 0xA0, 0xB0, 0xC0), (0,) * 4 + (1,) * 4, strict=True))
TWO_SOCKETS = Machine(
    nodes={0: "0-55,112-167", 1: "56-111,168-223"},
    gpus=[_below(bus, f"0000:{bus + 1:02x}:00.0", node) for bus, node in _PORTS],
    infiniband={
        f"mlx5_{number}": _below(bus, f"0000:{bus + 2:02x}:00.0", node)
        for number, (bus, node) in enumerate(_PORTS)
    },
    ethernet={"eth0": _below(0x50, "0000:51:00.0", 0)},
)

# One Grace CPU; node 1 is the GPU's memory, 2 to 8 wait for slices of it.
GRACE_HOPPER = Machine(
    nodes={0: "0-71", **dict.fromkeys(range(1, 9), "")},
    gpus=[Device(("pci0009:00", "0009:00:00.0", "0009:01:00.0"), 0)],
)

MACHINES = {"two sockets": TWO_SOCKETS, "Grace-Hopper": GRACE_HOPPER}
