"""The socket directory and the jobs in it: real directories, file systems that are not there."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from overlaptop.doctor.findings import Status
from overlaptop.doctor.sockets import check_directory, check_jobs
from overlaptop.wire.endpoints import JobRecord, job_dir, write_job
from overlaptop.wire.processes import process_start_time
from overlaptop.wire.protocol import PROTOCOL_VERSION

from .machines import LAPTOP, machine

MIB = 1 << 20
RANK_PID = 4242


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sockets"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(path))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


def space(free_bytes: int, flag: int = 0, files: int = 1000, free_files: int = 10) -> object:
    return lambda _path: SimpleNamespace(
        f_bavail=free_bytes // 4096, f_frsize=4096, f_flag=flag, f_files=files, f_favail=free_files
    )


def test_a_directory_that_is_not_there_is_left_so(base: Path, root: Path) -> None:
    base.rmdir()
    finding = check_directory(machine(root, LAPTOP))
    assert (finding.status, finding.text) == (Status.OK, f"{base}, which the first job makes")
    assert not base.exists()


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("/proc/nowhere/sockets", "nothing can be made in /proc/nowhere: set OVERLAPTOP_DIR"),
        ("open", "has mode 0770, not 0700: run chmod 700"),
        ("link", "symbolic link"),
        pytest.param(
            "theirs",
            "belongs to uid 12345",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away"),
        ),
        ("x" * 90, "a shorter directory"),
    ],
)
def test_a_directory_that_cannot_be_used_is_a_fault(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, words: str
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "theirs").mkdir(mode=0o700)
    if folder == "theirs":
        os.chown(tmp_path / "theirs", 12345, -1)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(tmp_path / folder))
    finding = check_directory(machine(root, LAPTOP))
    assert finding.status is Status.FAULT
    assert words in finding.line


@pytest.mark.parametrize(
    ("fake", "status", "words"),
    [
        (space(1 << 30), Status.OK, "/sockets, ours, mode 0700"),
        (space(8 * MIB), Status.WARNING, "has 8 MiB left"),
        (space(4096), Status.FAULT, "is full"),
        (space(1 << 30, free_files=0), Status.FAULT, "is full"),
        (space(1 << 30, files=0, free_files=0), Status.OK, "mode 0700"),
        (space(1 << 30, flag=os.ST_RDONLY), Status.FAULT, "can only be read"),
    ],
)
def test_the_file_system_must_have_room(
    base: Path, root: Path, fake: object, status: Status, words: str
) -> None:
    finding = check_directory(machine(root, LAPTOP, space=fake))
    assert finding.status is status
    assert words in finding.text


@pytest.mark.parametrize(
    ("mount", "status"), [("tmpfs /elsewhere", Status.WARNING), ("tmpfs {base}", Status.OK)]
)
def test_a_network_file_system_is_a_warning_unless_another_is_mounted_on_it(
    base: Path, root: Path, tmp_path: Path, mount: str, status: Status
) -> None:
    mounts = (
        f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n{mount.format(base=base)} tmpfs rw 0 0\n"
    )
    finding = check_directory(machine(root, {"proc/self/mounts": mounts}))
    assert finding.status is status
    assert ("network file system (nfs4)" in finding.text) == (status is Status.WARNING)


# Jobs


def job(key: str, **changes: object) -> JobRecord:
    """A job whose hub is this process."""
    pid = os.getpid()
    record = JobRecord(
        protocol=PROTOCOL_VERSION,
        job=key,
        script="train.py",
        cwd="/w",
        host="here",
        world_size=8,
        python="/venv/bin/python",
        starter_pid=pid,
        starter_start_ticks=process_start_time(pid),
        hub_pid=pid,
        hub_start_ticks=process_start_time(pid) or 0,
        started_ns=1,
        dashboard_socket=f"dash-{pid}.sock",
        rank_pids=(RANK_PID, RANK_PID + 1),
    )
    record = replace(record, **changes)  # type: ignore[arg-type]
    job_dir(key, create=True)
    write_job(record)
    return record


def test_no_job_is_no_fault(base: Path, root: Path) -> None:
    [finding] = check_jobs(machine(root, LAPTOP))
    assert (finding.status, finding.text) == (Status.OK, "none runs here")


def test_jobs_are_a_line_each_with_their_protocol(base: Path, root: Path) -> None:
    job("abc")
    job("def", started_ns=2)
    found = [(finding.status, finding.text) for finding in check_jobs(machine(root, LAPTOP))]
    words = f"train.py, 2 of 8 ranks here, protocol {PROTOCOL_VERSION}"
    assert found == [(Status.OK, f"def, {words}"), (Status.OK, f"abc, {words}")]


@pytest.mark.parametrize(("other", "older"), [(-1, "that one"), (1, "this one")])
def test_a_job_of_another_protocol_is_a_fault(base: Path, root: Path, other: int, older: str) -> None:
    job("abc", protocol=PROTOCOL_VERSION + other)
    [finding] = check_jobs(machine(root, LAPTOP))
    assert finding.status is Status.FAULT
    assert f"speaks protocol {PROTOCOL_VERSION + other}" in finding.text
    assert finding.remedy == f"watch it by `/venv/bin/python -m overlaptop`, or update {older}"


def test_a_profiler_in_a_ranks_environment_is_a_warning(base: Path, root: Path) -> None:
    job("abc")
    environ = {f"proc/{RANK_PID + 1}/environ": "PATH=/bin\0CUDA_INJECTION64_PATH=/opt/x.so\0HOME=/\0"}
    [finding] = check_jobs(machine(root, {**LAPTOP, **environ}))
    assert finding.status is Status.WARNING
    assert f"a CUDA profiler holds CUPTI in process {RANK_PID + 1}" in finding.text


def test_a_record_that_is_not_understood_is_told(base: Path, root: Path) -> None:
    folder = job_dir("abc", create=True)
    (folder / "job.json").write_text('{"protocol": 99}')
    [finding] = check_jobs(machine(root, LAPTOP))
    assert finding.status is Status.WARNING
    assert str(folder / "job.json") in finding.text
    assert "update the older one" in finding.remedy


def test_jobs_in_a_directory_that_is_not_trusted_are_not_looked_at(base: Path, root: Path) -> None:
    job("abc")
    base.chmod(0o777)
    assert list(check_jobs(machine(root, LAPTOP))) == []
