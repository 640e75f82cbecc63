"""What the checks read: this machine, or one that a test has written down."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from overlaptop.agent.telemetry.files import UnavailableError, entries, read_text
from overlaptop.doctor.children import Child

_STA_UNSYNC = 0x40
"""Of adjtimex's status: nobody sets this clock by another one."""


@dataclass(frozen=True, slots=True)
class KernelClock:
    """What the kernel knows of its clock."""

    kept: bool
    """Whether something (chrony, ntpd, systemd-timesyncd) sets it by another clock."""
    error_us: int
    """By how much it may be wrong at most, as the kernel reckons it."""


def kernel_clock() -> KernelClock | None:
    """Ask the kernel, for which no right is needed. None: it does not know."""
    clock = _Timex()
    try:
        if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(clock)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return KernelClock(not clock.status & _STA_UNSYNC, clock.maxerror)


def terminal_size() -> os.terminal_size | None:
    """Of the terminal that this process has; None: it has none."""
    for descriptor in (1, 0, 2):
        with suppress(OSError):
            return os.get_terminal_size(descriptor)
    return None


@dataclass(frozen=True, slots=True)
class Facts:
    """The machine. What is given here is this one; a test gives another."""

    python: str = sys.executable
    """The interpreter that is looked at."""
    named: bool = False
    """Whether the user named it: then it is to train."""
    root: Path = Path("/")
    """Below it: proc, sys and dev."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    terminal: os.terminal_size | None = field(default_factory=terminal_size)
    descriptors: int = field(default_factory=lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    """How many files a process may have open."""
    start: Callable[[Sequence[str], Mapping[str, str] | None], Child] = Child
    which: Callable[[str], str | None] = shutil.which
    clock: Callable[[], KernelClock | None] = kernel_clock
    may_open: Callable[[Path], bool] = lambda path: os.access(path, os.R_OK | os.W_OK)
    """Whether this user may read and write a device."""
    space: Callable[[Path], os.statvfs_result] = os.statvfs

    def text(self, path: str) -> str | None:
        """The content of a small file below `root`; None: it is not there, or may not be read."""
        try:
            return read_text(self.root / path)
        except UnavailableError:
            return None

    def names(self, folder: str) -> list[str]:
        """What there is in a folder below `root`, sorted; nothing where it is not there."""
        try:
            return entries(self.root / folder)
        except UnavailableError:
            return []

    @property
    def nvidia_devices(self) -> tuple[Path, ...]:
        """The device files of NVIDIA's driver."""
        wanted = ("nvidiactl", "nvidia-uvm")
        return tuple(
            self.root / "dev" / name
            for name in self.names("dev")
            if name in wanted or (name.startswith("nvidia") and name[len("nvidia") :].isdigit())
        )

    @property
    def nvidia_gpus(self) -> int:
        """NVIDIA GPUs on the PCI bus, whether or not they can be used; 0 also where sysfs has no list."""
        folder = "sys/bus/pci/devices"
        return sum(
            (self.text(f"{folder}/{name}/class") or "").startswith("0x03")
            for name in self.names(folder)
            if self.text(f"{folder}/{name}/vendor") == "0x10de"
        )


class _Timex(ctypes.Structure):
    """struct timex of Linux, with room behind it for what is not read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )
