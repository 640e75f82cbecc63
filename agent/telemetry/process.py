"""The CPUs that this process may use and uses, and the nodes of its memory.

Affinity and memory policy belong to threads. The process's are those of its main thread, which /proc/self
shows to any reading thread. The job's other threads begin with a copy of them.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from overlaptop.agent.telemetry.files import UnavailableError, entries, opened, parse_list, read_text

MAX_THREADS = 256
THREADS_AT_A_TIME = 32
"""Each costs about 10 us of CPU time, and three waits for the GIL of at most 5 ms."""
MAX_STAT_BYTES = 4096
HEAD_BYTES = 256
"""Covers the program's own mappings. The heap follows, for which the kernel takes 10 ms per GiB."""

_CPUS_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(\S*)$", re.MULTILINE)
_POLICY = re.compile(
    r"^[0-9a-f]+ (default|local|prefer(?: \(many\))?|bind|(?:weighted )?interleave)"
    r"(?:=[a-z|]+)?(?::([\d,-]*))?(?: |$)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """The nodes from which the kernel allocates the process's memory."""

    nodes: frozenset[int]
    """Empty: the node of the CPU that touches a page first."""
    text: str
    """In the kernel's format: ``default``, ``bind:0``, ``prefer:1``, ``interleave:0-1``."""


def affinity() -> Collection[int]:
    """Return the CPUs of the main thread, online or not; empty if unknown."""
    try:
        return os.sched_getaffinity(os.getpid())
    except OSError:
        return ()


def cpu_set(root: Path) -> frozenset[int]:
    """Return the online CPUs that the process may use. Raises UnavailableError."""
    status = root / "proc/self/status"
    allowed = _CPUS_ALLOWED.search(read_text(status))
    if allowed is None:
        raise UnavailableError(f"{status} has no Cpus_allowed_list")
    cpus = parse_list(allowed[1])
    try:
        return cpus & parse_list(read_text(root / "sys/devices/system/cpu/online"))
    except UnavailableError:
        return cpus


def memory_policy(root: Path) -> MemoryPolicy:
    """Return the most frequent policy of the process's first mappings. Raises UnavailableError.

    A mapping without its own policy shows the main thread's. The kernel inspects only the mappings that are
    read, so the first ones cost microseconds in a process of any size.
    """
    path = root / "proc/self/numa_maps"
    with opened(path) as descriptor:
        head = os.read(descriptor, HEAD_BYTES)
    whole_words = head[: max(head.rfind(b" "), head.rfind(b"\n")) + 1].decode("ascii", "replace")
    seen = Counter((match[1], match[2] or "") for match in _POLICY.finditer(whole_words))
    if not seen:
        raise UnavailableError(f"{path} names no policy")
    (kind, nodes), _ = seen.most_common(1)[0]
    return MemoryPolicy(parse_list(nodes), f"{kind}:{nodes}" if nodes else kind)


def cgroup_cpus(root: Path) -> frozenset[int] | None:
    """Return the CPUs that the process's cgroup allows; None if unknown.

    The process cannot leave this set by itself.
    """
    for folder, version in _cgroups(root, "cpuset"):
        name = "cpuset.cpus.effective" if version == 2 else "cpuset.effective_cpus"
        try:
            cpus = parse_list(read_text(folder / name))
        except UnavailableError:
            continue
        if cpus:
            return cpus
    return None


def cpu_limit(root: Path) -> float | None:
    """Return the CPU limit of the process's cgroups, in CPUs for all their processes, as set by docker's
    ``--cpus`` and Kubernetes' ``limits.cpu``; None: no limit, or unknown.
    """
    limits = []
    for folder, version in _cgroups(root, "cpu"):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            words = " ".join(read_text(folder / name) for name in names).split()
            quota_us, period_us = map(int, words)  # "max" is no number; -1 means no limit
        except (UnavailableError, ValueError):
            continue
        if quota_us > 0 and period_us > 0:
            limits.append(quota_us / period_us)
    return min(limits, default=None)


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the process's cgroup and its ancestors, innermost first, for each cgroup version
    that may have the controller.
    """
    try:
        lines = read_text(root / "proc/self/cgroup").splitlines()
    except UnavailableError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            base, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            base, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        # In a container the path may be the host's, or leave the mounted part.
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:depth]), version


class ThreadPlaces:
    """Counts the CPUs that the process's threads last ran on, a few threads at a time."""

    def __init__(self, root: Path) -> None:
        self.cpus: Counter[int] | None = None
        """Threads by CPU they last ran on; None before the first round is complete."""
        self.reason = "still being read"
        """Why `cpus` is None or incomplete; empty: it is complete."""
        self._folder = root / "proc/self/task"
        self._waiting: list[str] = []
        self._round: Counter[int] = Counter()
        self._cut = ""

    def read(self) -> None:
        """Read the next threads; never raises."""
        if not self._waiting:
            try:
                names = [name for name in entries(self._folder) if name.isdecimal()]
            except UnavailableError as reason:
                self.cpus, self.reason = None, str(reason)
                return
            self._cut = f"{MAX_THREADS} of {len(names)} threads were read" * (len(names) > MAX_THREADS)
            self._waiting, self._round = names[:MAX_THREADS], Counter()
        now, self._waiting = self._waiting[:THREADS_AT_A_TIME], self._waiting[THREADS_AT_A_TIME:]
        for name in now:
            cpu = self._last_cpu(name)
            if cpu is not None:
                self._round[cpu] += 1
        if not self._waiting:
            self.cpus, self.reason = self._round, self._cut

    def _last_cpu(self, name: str) -> int | None:
        try:
            with opened(self._folder / name / "stat") as descriptor:
                line = os.read(descriptor, MAX_STAT_BYTES)  # the kernel returns all of it at once
            # The second field, the thread's name in parentheses, may contain any character.
            return int(line.rpartition(b")")[2].split()[36])  # field 39 in total
        except (UnavailableError, ValueError, IndexError):
            return None  # the thread has ended
