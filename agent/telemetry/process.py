"""Where this process may run, where it runs, and where its memory comes from.

Affinity and memory policy belong to threads. The process's are those of its main thread, which /proc/self
shows to whichever thread reads it: the job's other threads begin with a copy of them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from overlaptop.agent.telemetry.files import UnavailableError, entries, opened, parse_list, read_text

MAX_THREADS = 256
THREADS_AT_A_TIME = 32
"""Each costs some 10 us of CPU time, and three waits for the GIL, of 5 ms each in the worst case."""
MAX_STAT_BYTES = 4096
HEAD_BYTES = 256
"""The program's own mappings. After them comes the heap, for which the kernel takes 10 ms a GiB."""

_CPUS_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(\S*)$", re.MULTILINE)
_POLICY = re.compile(
    r"^[0-9a-f]+ (default|local|prefer(?: \(many\))?|bind|(?:weighted )?interleave)"
    r"(?:=[a-z|]+)?(?::([\d,-]*))?(?: |$)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """From which nodes the kernel takes memory for the process."""

    nodes: frozenset[int]
    """Empty: the node of the CPU that first touches it."""
    text: str
    """In the kernel's words: ``default``, ``bind:0``, ``prefer:1``, ``interleave:0-1``."""


def affinity() -> Collection[int]:
    """The CPUs of the main thread, online or not; empty where the kernel does not say."""
    try:
        return os.sched_getaffinity(os.getpid())
    except OSError:
        return ()


def cpu_set(root: Path) -> frozenset[int]:
    """Return the CPUs that the process may use and that are online. Raises UnavailableError."""
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
    """Return the policy that most of the process's first mappings go by. Raises UnavailableError.

    A mapping without a policy of its own shows the main thread's. The kernel looks at as many mappings as
    it is asked to tell of, so the first ones cost microseconds, however large the process.
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
    """Return the CPUs that the process's cgroup leaves it, None where it is not known.

    What lies outside of them no call of the process's own can give it.
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
    """Return how many CPUs' time the process's cgroups allow all of their processes together, as docker's
    ``--cpus`` and Kubernetes' ``limits.cpu`` set it; None: no limit, or not known.
    """
    limits = []
    for folder, version in _cgroups(root, "cpu"):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            words = " ".join(read_text(folder / name) for name in names).split()
            quota_us, period_us = map(int, words)  # "max" is no number, -1 no limit
        except (UnavailableError, ValueError):
            continue
        if quota_us > 0 and period_us > 0:
            limits.append(quota_us / period_us)
    return min(limits, default=None)


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the process's cgroup and of those around it, innermost first, for each version
    of cgroups that may have the controller.
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
        # In a container the path may be the host's, or lead out of what is mounted here.
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:depth]), version


class ThreadPlaces:
    """On which CPUs the process's threads last ran, read a few threads at a time."""

    def __init__(self, root: Path) -> None:
        self.cpus: Counter[int] | None = None
        """How many threads last ran on each CPU; None before the first round is complete."""
        self.reason = "still being read"
        """Why `cpus` is None, or does not count all threads; empty: it does."""
        self._folder = root / "proc/self/task"
        self._waiting: list[str] = []
        self._round: Counter[int] = Counter()
        self._cut = ""

    def read(self) -> None:
        """Read some more threads; never raises."""
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
                line = os.read(descriptor, MAX_STAT_BYTES)  # all of it at once, as the kernel gives it
            # The second field is the thread's name in parentheses, which may hold anything.
            return int(line.rpartition(b")")[2].split()[36])  # the 39th of all
        except (UnavailableError, ValueError, IndexError):
            return None  # the thread has ended
