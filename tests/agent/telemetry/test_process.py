"""Where a process may run, where it ran, and where its memory comes from."""

from pathlib import Path

import pytest

from overlaptop.agent.telemetry import numa as process
from overlaptop.agent.telemetry.files import UnavailableError

from .trees import NPS4, TWO_SOCKETS, Process, lay_out, set_process


def with_maps(root: Path, *lines: str) -> Path:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/numa_maps").write_text("".join(f"{line}\n" for line in lines))
    return root


def test_offline_cpus_are_left_out(tmp_path: Path) -> None:
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
        ("prefer (many):0-1", "prefer (many):0-1", {0, 1}),
        ("bind:0", "bind:0", {0}),
        ("bind=static:2-3", "bind:2-3", {2, 3}),
        ("interleave=relative|balancing:0,2", "interleave:0,2", {0, 2}),
    ],
)
def test_each_policy_of_the_kernel_is_read(words: str, text: str, nodes: set[int], tmp_path: Path) -> None:
    lay_out(TWO_SOCKETS, Process("0", policy=words), tmp_path)
    policy = process.memory_policy(tmp_path)
    assert (policy.text, policy.nodes) == (text, nodes)
    for maps in ("", "nonsense", "55c000000000 newpolicy:1 anon=1"):
        with pytest.raises(UnavailableError, match="names no policy"):
            process.memory_policy(with_maps(tmp_path, maps))


def test_first_mappings_give_the_processes_policy(tmp_path: Path) -> None:
    """The heap comes after the program's own, and to look through it costs milliseconds a GiB."""
    program = [f"55dcef0d{n}000 prefer:1 file=/usr/bin/python3.11 mapped=32 N1=32" for n in range(5)]
    heap = ["55dd0b891000 bind:7 heap anon=293 dirty=293 active=0 N7=293 kernelpagesize_kB=4"] * 20
    assert process.memory_policy(with_maps(tmp_path, *program, *heap)).text == "prefer:1"
    own = "200000000 bind:7 anon=1 N7=1 kernelpagesize_kB=4"
    assert process.memory_policy(with_maps(tmp_path, own, *program[:3])).text == "prefer:1"


@pytest.mark.parametrize(
    ("cgroup", "file", "cpus"),
    [
        ("0::/a/b\n", "sys/fs/cgroup/a/b/cpuset.cpus.effective", {0, 1}),
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


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000", "cpu.max": "800000 100000"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),
        (
            "3:cpu,cpuacct:/y\n",
            {"cpu/y/cpu.cfs_quota_us": "200000", "cpu/y/cpu.cfs_period_us": "100000"},
            2.0,
        ),
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
