"""The records of jobs, and what is believed of them."""

import fcntl
import json
import os
import shutil
import subprocess
import sys

import pytest
from msgspec.structs import asdict, replace

from overlaptop.jobs.folder import job_dir
from overlaptop.jobs.processes import is_alive, process_start_time
from overlaptop.jobs.record import JobRecord, clean_stale, list_jobs, read_job, write_job


def record_of(key, hub=None, starter=None, started_ns=1):
    me = (os.getpid(), process_start_time(os.getpid()))
    return JobRecord(
        1, key, "train.py", "/", "here", 2, *(starter or me), *(hub or me), started_ns,
        rank_pids=(4, 5), dashboard_socket="dash-1.sock", python=sys.executable,
    )  # fmt: skip


def written(key, **parts):
    job_dir(key, create=True)
    record = record_of(key, **parts)
    write_job(record)
    return record


def test_record_reads_back_as_written(socket_dir):
    record = written("a")
    assert read_job("a") == record
    path = job_dir("a") / "job.json"
    assert [*job_dir("a").iterdir()] == [path]
    values = asdict(record) | {"colour": "blue"}  # of a newer hub
    del values["import_path"]  # of an older one
    path.write_text(json.dumps(values))
    assert read_job("a") == record


def test_rubbish_is_no_record():
    path = job_dir("a", create=True) / "job.json"
    for rubbish in (b"{", b"[" * 100_000, b'"' + b"x" * (1 << 19) + b'"', b"\xff\xfe"):
        path.write_bytes(rubbish)
        assert read_job("a") is None
    path.rename(path.with_name("target"))
    for make in (os.mkfifo, lambda link: link.symlink_to("target")):  # neither waits nor follows
        make(path)
        assert list_jobs() == []
        path.unlink()


@pytest.mark.parametrize(
    "changed",
    [
        {"job": "b"},
        {"script": None},
        {"hub_pid": 1 << 70},
        {"dashboard_socket": "../../elsewhere.sock"},
        *({"import_path": path} for path in (["/a"] * 17, ["/" + "a" * 4096], ["a"], ["/a:/b"])),
    ],
)
def test_a_record_with_a_wrong_field_is_no_record(changed):
    record = asdict(written("a"))
    (job_dir("a") / "job.json").write_text(json.dumps(record | changed))
    assert read_job("a") is None


def test_jobs_are_listed_newest_first_and_without_the_dead(gone, socket_dir):
    older, newer = written("a", started_ns=5), written("b", started_ns=6)
    written("dead", hub=gone)
    written("reused-pid", hub=(os.getpid(), 1))
    (socket_dir / "Not A Key").mkdir()
    (socket_dir / "file").touch()
    (socket_dir / "link").symlink_to(job_dir("a"))
    assert list_jobs() == [newer, older]


def test_stale_folders_go_and_others_stay(gone, socket_dir):
    written("alive", starter=gone)
    written("hub-gone-job-runs", hub=gone)
    written("all-gone", hub=gone, starter=gone)
    written("locked", hub=gone, starter=gone)
    written("foreign-file", hub=gone, starter=gone)
    (job_dir("foreign-file") / "notes.txt").touch()
    job_dir("empty", create=True)
    for key in ("all-gone", "locked", "foreign-file"):
        for name in ("hub.lock", "hub.log", "ranks.sock", "dash-12.sock"):
            (job_dir(key) / name).touch()
    (socket_dir / "unrelated.d").mkdir()
    with (job_dir("locked") / "hub.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clean_stale()
    left = {path.name for path in socket_dir.iterdir()}
    assert left == {"alive", "hub-gone-job-runs", "locked", "foreign-file", "unrelated.d"}
    assert [path.name for path in job_dir("foreign-file").iterdir()] == ["notes.txt"]
    clean_stale()
    assert not job_dir("locked").exists()


def test_a_job_is_gone_when_neither_starter_nor_any_rank_is_left(gone):
    pid, _ = gone
    record = replace(record_of("a", starter=gone), rank_pids=())
    assert record.gone
    assert replace(record, rank_pids=(pid,)).gone
    assert not replace(record, rank_pids=(pid, os.getpid())).gone
    assert not replace(record_of("a"), rank_pids=()).gone
    assert replace(record, starter_start_ticks=None).gone


def test_a_process_is_known_by_pid_and_start_time(gone):
    pid, start = gone
    assert start > 0
    assert [process_start_time(each) for each in (pid, 0, -1)] == [None] * 3
    me = process_start_time(os.getpid())
    assert [is_alive(os.getpid(), each) for each in (me, me - 1, None)] == [True, False, False]


def test_odd_names_are_read_and_a_zombie_is_not_alive(socket_dir):
    program = socket_dir / "a) S 1 (b"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "60"]) as process:
        assert process_start_time(process.pid) >= process_start_time(os.getpid())
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_start_time(process.pid) is None
