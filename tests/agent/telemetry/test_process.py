"""Where a process may run, where it ran, and where its memory lies."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.telemetry import process
from overlaptop.agent.telemetry.files import UnavailableError

from .trees import NPS4, TWO_SOCKETS, Process, lay_out, set_process

GIB = 1 << 30


class Clock:
    """A clock that stands where it was put, or goes on by one step at each look."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def read_at_once(root: Path, work: Clock | None = None) -> process.MemoryPlaces:
    clock = Clock()
    memory = process.MemoryPlaces(root, clock, work or Clock())
    clock.now_s = process.FIRST_AFTER_S
    memory.read()
    return memory


def with_maps(root: Path, *lines: str) -> Path:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/numa_maps").write_text("".join(f"{line}\n" for line in lines))
    (root / "proc/self/statm").write_text("10 10 1 1 0 1 0\n")
    return root


def test_cpus_that_are_switched_off_are_left_out_and_unknown_where_there_is_no_list(tmp_path: Path) -> None:
    lay_out(NPS4, Process("0-8191"), tmp_path)
    assert process.cpu_set(tmp_path) == frozenset(range(256))
    (tmp_path / "sys/devices/system/cpu/online").unlink()
    assert process.cpu_set(tmp_path) == frozenset(range(8192)), "then what the process says"
    for status in ("", "Cpus_allowed_list:\tsome\n", "Cpus_allowed:\tff\n"):
        (tmp_path / "proc/self/status").write_text(status)
        with pytest.raises(UnavailableError):
            process.cpu_set(tmp_path)


@pytest.mark.parametrize(
    ("words", "text", "nodes"),
    [
        ("default", "default", set()),
        ("local", "local", set()),
        ("prefer:1", "prefer:1", {1}),
        ("prefer (many):0-1", "prefer (many):0-1", {0, 1}),
        ("bind:0", "bind:0", {0}),
        ("bind=static:2-3", "bind:2-3", {2, 3}),
        ("interleave=relative|balancing:0,2", "interleave:0,2", {0, 2}),
        ("weighted interleave:0-3", "weighted interleave:0-3", {0, 1, 2, 3}),
    ],
)
def test_each_policy_of_the_kernel_is_read(words: str, text: str, nodes: set[int], tmp_path: Path) -> None:
    lay_out(TWO_SOCKETS, Process("0", policy=words), tmp_path)
    policy = process.memory_policy(tmp_path)
    assert (policy.text, policy.nodes) == (text, nodes)
    for maps in ("", "nonsense", "55c000000000 newpolicy:1 anon=1"):
        with pytest.raises(UnavailableError, match="names no policy"):
            process.memory_policy(with_maps(tmp_path, maps))


def test_the_first_mappings_without_a_policy_of_their_own_speak_for_the_process(tmp_path: Path) -> None:
    """The heap comes after the program's own, and to look through it costs milliseconds a GiB."""
    program = [f"55dcef0d{n}000 prefer:1 file=/usr/bin/python3.11 mapped=32 N1=32" for n in range(5)]
    heap = ["55dd0b891000 bind:7 heap anon=293 dirty=293 active=0 N7=293 kernelpagesize_kB=4"] * 20
    assert process.memory_policy(with_maps(tmp_path, *program, *heap)).text == "prefer:1"
    own = "200000000 bind:7 anon=1 N7=1 kernelpagesize_kB=4"
    assert process.memory_policy(with_maps(tmp_path, own, *program[:3])).text == "prefer:1"


def test_a_policy_is_read_whole_wherever_the_reading_ends(tmp_path: Path) -> None:
    for length in range(200, 260):
        first = "55c000000000 interleave:0-1 file=/".ljust(length, "x")
        with_maps(tmp_path, first, "55c000001000 interleave:0-1 file=/x mapped=1 N0=1")
        assert process.memory_policy(tmp_path).text == "interleave:0-1"


@pytest.mark.parametrize(
    ("cgroup", "file", "cpus"),
    [
        ("0::/a/b\n", "sys/fs/cgroup/a/b/cpuset.cpus.effective", {0, 1}),
        ("0::/a/b\n", "sys/fs/cgroup/a/cpuset.cpus.effective", {0, 1}),
        ("0::/../../outside\n", "sys/fs/cgroup/cpuset.cpus.effective", {0, 1}),
        ("9:cpu:/x\n3:cpuset,misc:/y\n0::/\n", "sys/fs/cgroup/cpuset/y/cpuset.effective_cpus", {0, 1}),
        ("0::/a\n", "sys/fs/cgroup/b/cpuset.cpus.effective", None),
        ("", "sys/fs/cgroup/cpuset.cpus.effective", None),
    ],
)
def test_a_cgroup_s_cpus_are_found_in_both_versions(
    cgroup: str, file: str, cpus: set[int] | None, tmp_path: Path
) -> None:
    assert process.cgroup_cpus(tmp_path) is None, "there is no /proc"
    for path, content in (("proc/self/cgroup", cgroup), (file, "0-1\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert process.cgroup_cpus(tmp_path) == cpus


PERIOD = "cpu/y/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000", "cpu.max": "800000 100000"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),
        ("0::/a\n", {"a/cpu.max": "max 100000"}, None),
        (
            "3:cpu,cpuacct:/y\n",
            {"cpu/y/cpu.cfs_quota_us": "200000", "cpu/y/cpu.cfs_period_us": "100000"},
            2.0,
        ),
        ("3:cpu,cpuacct:/y\n", {"cpu/y/cpu.cfs_quota_us": "-1", "cpu/y/cpu.cfs_period_us": "100000"}, None),
        ("", {"cpu.max": "150000 100000"}, None),
    ],
)
def test_the_least_limit_of_a_cgroup_s_cpu_time_counts(
    cgroup: str, files: dict[str, str], limit: float | None, tmp_path: Path
) -> None:
    assert process.cpu_limit(tmp_path) is None, "there is no /proc"
    contents = {f"sys/fs/cgroup/{name}": f"{content}\n" for name, content in files.items()}
    for path, content in {"proc/self/cgroup": cgroup, **contents}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert process.cpu_limit(tmp_path) == limit


def test_threads_are_read_in_portions_and_told_when_all_were(tmp_path: Path) -> None:
    lay_out(TWO_SOCKETS, Process("0-223", threads=[3] * 100 + [60] * 50), tmp_path)
    threads = process.ThreadPlaces(tmp_path)
    for _ in range(4):
        threads.read()
        assert (threads.cpus, threads.reason) == (None, "still being read")
    threads.read()
    assert (threads.cpus, threads.reason) == ({3: 100, 60: 50}, "")
    set_process(Process("0-223", threads=[7] * 150), tmp_path)
    threads.read()
    assert threads.cpus == {3: 100, 60: 50}, "until the next round is complete"
    for _ in range(4):
        threads.read()
    assert threads.cpus == {7: 150}


def test_of_very_many_threads_some_are_read_and_ended_ones_left_out(tmp_path: Path) -> None:
    lay_out(TWO_SOCKETS, Process("0-223", threads=[1] * 300), tmp_path)
    (tmp_path / "proc/self/task/101/stat").unlink()
    (tmp_path / "proc/self/task/102/stat").write_text("102 (x) Z\n")
    threads = process.ThreadPlaces(tmp_path)
    for _ in range(8):
        threads.read()
    assert threads.cpus == {1: 254}
    assert threads.reason == "256 of 300 threads were read"


def test_bytes_are_pages_by_their_own_size(tmp_path: Path) -> None:
    with_maps(
        tmp_path,
        "55c000000000 default file=/usr/bin/python\\0403 mapped=3 N0=2 N1=1 kernelpagesize_kB=4",
        "7f0000000000 default",
        "7f1000000000 bind:1 file=/dev/hugepages/x huge anon=3 dirty=3 N1=3 kernelpagesize_kB=2048",
        "7f2000000000 default anon=10 dirty=10 active=4 N0=10 kernelpagesize_kB=64",
    )
    with (tmp_path / "proc/self/numa_maps").open("a") as maps:
        maps.write("7f3000000000 default stack anon=1 N254=1 kernelpagesize_kB=4")
    expected = {0: (2 << 12) + (10 << 16), 1: (1 << 12) + (3 << 21)}
    assert read_at_once(tmp_path).by_node == expected, "the last line is not whole"


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(1, 1 << 30), st.sampled_from([4, 64, 2048])), max_size=60
    )
)
def test_totals_do_not_depend_on_where_a_read_ends(
    tmp_path_factory: pytest.TempPathFactory, mappings: list[tuple[int, int, int]]
) -> None:
    root = tmp_path_factory.mktemp("maps")
    with_maps(
        root, *(f"7f00 default anon=1 N{node}={n} kernelpagesize_kB={kib}" for node, n, kib in mappings)
    )
    expected: Counter[int] = Counter()
    for node, pages, kib in mappings:
        expected[node] += pages * kib * 1024
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "MAPS_CHUNK_BYTES", 37)
        assert read_at_once(root).by_node == expected


def test_this_process_s_own_cpus_threads_and_memory_are_found() -> None:
    assert process.cpu_set(Path("/")) == os.sched_getaffinity(os.getpid())
    done = threading.Event()
    helpers = [threading.Thread(target=done.wait) for _ in range(5)]
    for helper in helpers:
        helper.start()
    try:
        threads = process.ThreadPlaces(Path("/"))
        threads.read()
        assert sum(threads.cpus.values()) >= 6
    finally:
        done.set()
        for helper in helpers:
            helper.join()
    if Path("/proc/self/numa_maps").exists():
        held = bytearray(os.urandom(1)) * (64 << 20)
        memory = read_at_once(Path("/"))
        assert memory.reason == ""
        assert sum(memory.by_node.values()) >= len(held)


def test_memory_is_read_some_seconds_after_the_start_and_then_rarely(tmp_path: Path) -> None:
    lay_out(TWO_SOCKETS, Process("0", gib_by_node={0: 1}), tmp_path)
    clock = Clock()
    memory = process.MemoryPlaces(tmp_path, clock, Clock())
    memory.read()
    assert (memory.by_node, memory.reason) == (None, "read 10 s after the start")
    clock.now_s = 10.0
    memory.read()
    assert memory.by_node == {0: GIB + (2 << 12)}
    set_process(Process("0", gib_by_node={1: 1}), tmp_path)
    clock.now_s = 39.9
    memory.read()
    assert memory.by_node == {0: GIB + (2 << 12)}
    clock.now_s = 40.0
    memory.read()
    assert memory.by_node == {0: 2 << 12, 1: GIB}


def test_a_reading_that_took_long_is_paid_for_by_a_long_pause(tmp_path: Path) -> None:
    lay_out(TWO_SOCKETS, Process("0", gib_by_node={0: 1}, rss_gib=1), tmp_path)
    clock, work = Clock(), Clock(0.02)
    memory = process.MemoryPlaces(tmp_path, clock, work)
    clock.now_s = 10.0
    memory.read()
    cost_s = work.now_s - work.step_s  # from the first look at the clock to the last
    set_process(Process("0", gib_by_node={1: 1}), tmp_path)
    clock.now_s = 10.0 + 0.99 * cost_s / process.SHARE
    memory.read()
    assert memory.by_node == {0: GIB + (2 << 12)}
    clock.now_s = 10.0 + 1.01 * cost_s / process.SHARE
    memory.read()
    assert memory.by_node == {0: 2 << 12, 1: GIB}


@pytest.mark.parametrize(("step_s", "again"), [(0.0005, True), (0.011, False)])
def test_what_a_reading_cost_decides_how_large_a_process_is_read(
    step_s: float, again: bool, tmp_path: Path
) -> None:
    """Huge pages cost a tenth, so then ten times the memory is looked through."""
    lay_out(TWO_SOCKETS, Process("0", gib_by_node={0: 4}, rss_gib=4), tmp_path)
    clock = Clock()
    memory = process.MemoryPlaces(tmp_path, clock, Clock(step_s))
    clock.now_s = 10.0
    memory.read()
    assert memory.by_node is not None
    set_process(Process("0", gib_by_node={0: 40}, rss_gib=40), tmp_path)
    clock.now_s = 10_000.0
    memory.read()
    assert (memory.by_node is not None) == again


def test_a_walk_that_would_be_or_becomes_too_long_is_given_up_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(TWO_SOCKETS, Process("0", gib_by_node=dict.fromkeys(range(100), 0.1), rss_gib=100), tmp_path)
    large = read_at_once(tmp_path)
    assert large.by_node is None
    assert large.reason == (
        "the process has 100 GiB in memory: to look through its pages would hold up its own calls to map "
        "memory for some 1.2 s"
    )
    set_process(Process("0", gib_by_node=dict.fromkeys(range(100), 0.1)), tmp_path)
    monkeypatch.setattr(process, "MAPS_CHUNK_BYTES", 64)
    slow = read_at_once(tmp_path, Clock(0.03))
    assert slow.by_node is None
    assert slow.reason.endswith("took the kernel over 0.2 s to write")
    monkeypatch.setattr(process, "MAX_MAPS_BYTES", 1000)
    assert "longer than" in read_at_once(tmp_path).reason
