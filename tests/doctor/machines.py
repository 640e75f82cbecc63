"""Machines that are not there: files as the kernel has them, and processes that say what they are told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from overlaptop.doctor.children import Completed
from overlaptop.doctor.facts import Facts, KernelClock
from overlaptop.doctor.findings import Finding

H200 = {
    "dev/nvidia0": "",
    "dev/nvidia1": "",
    "dev/nvidiactl": "",
    "dev/nvidia-uvm": "",
    "dev/nvidia-caps": "",
    "sys/bus/pci/devices/0000:1b:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:1b:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:43:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:43:00.0/class": "0x030200\n",
    # An NVSwitch, and the host's bridge: neither is a GPU.
    "sys/bus/pci/devices/0000:05:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:05:00.0/class": "0x068000\n",
    "sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086\n",
    "sys/bus/pci/devices/0000:00:00.0/class": "0x060000\n",
    "proc/driver/nvidia/params": "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n",
    "proc/self/mounts": "overlay / overlay rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n",
}
"""Two H200s under driver 580, as sysfs, /dev and /proc show them; what no check reads is left out."""

LAPTOP = {
    "dev/null": "",
    "sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
    "sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
    "proc/self/mounts": "/dev/nvme0n1p2 / ext4 rw 0 0\n",
}


class FakeChild:
    """A process that has ended already."""

    def __init__(self, ran: Completed) -> None:
        self._ran = ran
        self.closed = False

    def wait(self, timeout_s: float) -> Completed:
        assert timeout_s > 0
        return self._ran

    def close(self) -> None:
        self.closed = True


Answer = Completed | OSError


class Programs:
    """Starts processes that were told what to say, by the words of their command lines."""

    def __init__(self, answers: Callable[[Sequence[str]], Answer]) -> None:
        self._answers = answers
        self.children: list[FakeChild] = []

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str] | None) -> FakeChild:
        answer = self._answers(argv)
        if isinstance(answer, OSError):
            raise answer
        self.children.append(FakeChild(answer))
        return self.children[-1]


def nothing_starts(_argv: Sequence[str]) -> Answer:
    return FileNotFoundError(2, "No such file or directory")


def machine(root: Path, files: Mapping[str, str], **changes: Any) -> Facts:
    """The facts of a machine that has these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    made = {
        "python": "/venv/bin/python",
        "root": root,
        "environ": {},
        "terminal": os.terminal_size((120, 40)),
        "descriptors": 1024,
        "start": Programs(nothing_starts),
        "which": lambda name: f"/usr/bin/{name}",
        "clock": lambda: KernelClock(kept=True, error_us=2_000),
        "may_open": lambda _path: True,
    }
    return Facts(**(made | changes))


def printed(*sections: Mapping[str, object], status: int | None = 0, errors: str = "") -> Completed:
    """A probe's end, after it has printed these."""
    return Completed(status, "".join(json.dumps(section) + "\n" for section in sections), errors)


def by_check(findings: Iterable[Finding]) -> dict[str, Finding]:
    """By name; no check may tell of the same thing twice."""
    found: dict[str, Finding] = {}
    for finding in findings:
        assert finding.check not in found
        found[finding.check] = finding
    return found
