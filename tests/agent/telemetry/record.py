"""Record the files that tell of a machine's NUMA nodes, adapters and GPUs, to test on them elsewhere.

``python tests/agent/telemetry/record.py > tests/agent/telemetry/data/NAME.tree``; no host names, serial
numbers or network addresses are among them. One line each: ``path<TAB>content as JSON`` or
``path -> target``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
FILES = (
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/node*/cpulist",
    "sys/devices/system/node/node*/meminfo",
    "sys/class/infiniband/*/ports/*/rate",
    "sys/class/net/*/speed",
    "proc/driver/nvidia/gpus/*/numa_status",
    "proc/self/cgroup",
    "proc/self/numa_maps",
)
LINKS = ("sys/class/infiniband/*", "sys/class/net/*", "sys/class/*/*/device", "sys/class/*/*/device/physfn")
KEPT = {"meminfo": r".*MemTotal:.*", "status": r"Cpus_allowed_list:.*", "cgroup": r"(0:|\d+:cpuset):.*"}
"""Of longer files, the lines that are read."""
PCI_CLASSES = ("0x02", "0x03", "0x12")
"""Network, display, accelerators."""


def lines() -> Iterator[str]:
    """All of the recording."""
    for pattern in FILES:
        for path in sorted(ROOT.glob(pattern)):
            yield from _file(path)
    for node in sorted(ROOT.glob("sys/devices/system/node/node*/cpulist")):
        first = re.match(r"\d+", node.read_text())
        if first:
            yield from _file(ROOT / f"sys/devices/system/cpu/cpu{first[0]}/topology/physical_package_id")
    yield from _file(ROOT / "proc/self/status")
    yield from _file(next((ROOT / "proc/self/task").iterdir()) / "stat")
    for pattern in LINKS:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_symlink() and path.parts[3] in ("infiniband", "net"):
                yield f"{_name(path)} -> {path.readlink()}"
    for device in sorted((ROOT / "sys/bus/pci/devices").iterdir()):
        if (device / "class").read_text().startswith(PCI_CLASSES):
            yield f"{_name(device)} -> {device.readlink()}"
            yield from _file(device.resolve() / "numa_node")
            yield from _file(device.resolve() / "class")


def _name(path: Path) -> str:
    """A path below /sys or /proc; what hangs on a device is told by the device's own."""
    return str((path.parent.resolve() / path.name).relative_to(ROOT))


def _file(path: Path) -> Iterator[str]:
    try:
        content = path.read_text()
    except OSError:
        return
    kept = KEPT.get(path.name)
    if kept:
        content = "".join(f"{line}\n" for line in content.splitlines() if re.fullmatch(kept, line))
    content = re.sub(r" file=\S+", " file=mapped", content)  # whose machine it is, is nobody's business
    if path.name == "cgroup":
        content = re.sub(r"(?<=:/)\S+", "job", content)
    name = re.sub(r"^proc/\d+/", "proc/self/", _name(path))
    yield f"{name}\t{json.dumps(content)}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines())
