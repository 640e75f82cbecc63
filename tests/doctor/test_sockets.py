"""The socket directory and the jobs in it: real directories, file systems that are not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlaptop.doctor.findings import Status
from overlaptop.doctor.sockets import check_directory, check_jobs
from overlaptop.jobs.folder import job_dir
from overlaptop.jobs.processes import process_start_time
from overlaptop.jobs.record import JobRecord, write_job
from overlaptop.wire.protocol import PROTOCOL_VERSION

from .machines import LAPTOP, machine

RANK_PID = 4242


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


def test_a_directory_that_is_not_there_is_left_so(socket_dir: Path, root: Path) -> None:
    socket_dir.rmdir()
    finding = check_directory(machine(root, LAPTOP))
    assert (finding.status, finding.text) == (Status.OK, f"{socket_dir}, which the first job makes")
    assert not socket_dir.exists()


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


def test_no_job_is_no_fault(socket_dir: Path, root: Path) -> None:
    [finding] = check_jobs(machine(root, LAPTOP))
    assert (finding.status, finding.text) == (Status.OK, "none runs here")


def test_jobs_are_a_line_each_with_their_protocol(socket_dir: Path, root: Path) -> None:
    job("abc")
    job("def", started_ns=2)
    found = [(finding.status, finding.text) for finding in check_jobs(machine(root, LAPTOP))]
    words = f"train.py, 2 of 8 ranks here, protocol {PROTOCOL_VERSION}"
    assert found == [(Status.OK, f"def, {words}"), (Status.OK, f"abc, {words}")]


@pytest.mark.parametrize(("other", "older"), [(-1, "that one"), (1, "this one")])
def test_a_job_of_another_protocol_is_a_fault(socket_dir: Path, root: Path, other: int, older: str) -> None:
    job("abc", protocol=PROTOCOL_VERSION + other)
    [finding] = check_jobs(machine(root, LAPTOP))
    assert finding.status is Status.FAULT
    assert f"speaks protocol {PROTOCOL_VERSION + other}" in finding.text
    assert finding.remedy == f"watch it by `/venv/bin/python -m overlaptop`, or update {older}"


def test_a_profiler_in_a_ranks_environment_is_a_warning(socket_dir: Path, root: Path) -> None:
    job("abc")
    environ = {f"proc/{RANK_PID + 1}/environ": "PATH=/bin\0CUDA_INJECTION64_PATH=/opt/x.so\0HOME=/\0"}
    [finding] = check_jobs(machine(root, {**LAPTOP, **environ}))
    assert finding.status is Status.WARNING
    assert f"a CUDA profiler holds CUPTI in process {RANK_PID + 1}" in finding.text


def test_a_record_that_is_not_understood_is_told(socket_dir: Path, root: Path) -> None:
    folder = job_dir("abc", create=True)
    (folder / "job.json").write_text('{"protocol": 99}')
    [finding] = check_jobs(machine(root, LAPTOP))
    assert finding.status is Status.WARNING
    assert str(folder / "job.json") in finding.text
    assert "update the older one" in finding.remedy


def test_jobs_in_a_directory_that_is_not_trusted_are_not_looked_at(socket_dir: Path, root: Path) -> None:
    job("abc")
    socket_dir.chmod(0o777)
    assert list(check_jobs(machine(root, LAPTOP))) == []
