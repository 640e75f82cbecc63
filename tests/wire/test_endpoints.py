"""The socket directory and what is believed of what lies in it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from overlaptop.wire import endpoints
from overlaptop.wire.endpoints import (
    EndpointError,
    JobRecord,
    base_dir,
    clean_stale,
    hub_command,
    job_dir,
    list_jobs,
    ranks_socket,
    read_job,
    write_job,
)
from overlaptop.wire.folders import temporary_folder
from overlaptop.wire.processes import is_alive, process_start_time


@pytest.fixture
def gone():
    """A process that has ended: its pid and start time."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = process.pid, process_start_time(process.pid)
        process.stdin.close()
    return identity


def record_of(key, hub=None, starter=None, started_ns=1):
    me = (os.getpid(), process_start_time(os.getpid()))
    return JobRecord(
        1, key, "train.py", "/", "here", 2, sys.executable, *(starter or me), *(hub or me), started_ns,
        "dash-1.sock", rank_pids=(4, 5),
    )  # fmt: skip


def written(key, **parts):
    job_dir(key, create=True)
    record = record_of(key, **parts)
    write_job(record)
    return record


MISSING = object()


def write_values(values):
    """Job a's record, with these values."""
    there = {name: value for name, value in values.items() if value is not MISSING}
    (job_dir("a") / "job.json").write_text(json.dumps(there))


def test_the_wire_in_a_rank_needs_neither_zmq_nor_numpy_nor_torch():
    code = (
        "import sys, overlaptop.wire, overlaptop.wire.messages\n"
        "import overlaptop.wire.codec, overlaptop.wire.endpoints\n"
        "print([name for name in ('zmq', 'numpy', 'torch') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_the_directory_is_made_for_this_user_alone_and_not_by_looking(monkeypatch, socket_dir):
    monkeypatch.setenv("OVERLAPTOP_DIR", str(socket_dir / "new"))
    assert list_jobs() == []
    clean_stale()
    assert not (socket_dir / "new").exists()
    assert base_dir() == socket_dir / "new"
    assert base_dir().stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("OVERLAPTOP_DIR", str(socket_dir / "missing" / "d"))
    with pytest.raises(EndpointError, match=r"cannot create .*: No such file.*: set OVERLAPTOP_DIR"):
        base_dir()


def test_without_the_variable_it_is_named_after_the_user_in_the_temporary_directory(
    monkeypatch, socket_dir
):
    monkeypatch.delenv("OVERLAPTOP_DIR")
    monkeypatch.setenv("TMPDIR", str(socket_dir))
    temporary_folder.cache_clear()
    assert base_dir() == socket_dir / f"overlaptop-{os.getuid()}"
    temporary_folder.cache_clear()


def test_a_job_that_sets_another_temporary_directory_later_gets_it_and_the_sockets_stay(
    monkeypatch, socket_dir, tmp_path
):
    monkeypatch.delenv("OVERLAPTOP_DIR")
    monkeypatch.setenv("TMPDIR", str(socket_dir))
    monkeypatch.setattr("tempfile.tempdir", None)
    temporary_folder.cache_clear()
    before = base_dir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert tempfile.gettempdir() == str(tmp_path)
    assert base_dir() == before
    temporary_folder.cache_clear()


def test_a_relative_directory_means_the_same_to_the_hub(monkeypatch, socket_dir):
    monkeypatch.chdir(socket_dir)
    monkeypatch.setenv("OVERLAPTOP_DIR", "here")
    _, environment = hub_command("a", "train.py", 1, 1, "/")
    assert environment["OVERLAPTOP_DIR"] == str(socket_dir / "here")


@pytest.mark.parametrize("use", [base_dir, lambda: base_dir(create=False), list_jobs, clean_stale])
def test_a_directory_that_others_could_have_laid_out_or_replace_is_refused(monkeypatch, socket_dir, use):
    """test_folders.py has all that such a folder may be."""
    above = socket_dir / "above"
    above.mkdir()
    (above / "d").mkdir()
    monkeypatch.setenv("OVERLAPTOP_DIR", str(above / "d"))
    for path, mode, words in (
        (above / "d", 0o755, "has mode 0755, not 0700"),
        (above, 0o777, "has mode 0777: others can change what is in it"),
    ):
        path.chmod(mode)
        with pytest.raises(EndpointError, match=f"{path} {words}") as refusal:
            use()
        assert "\n" not in str(refusal.value)
        path.chmod(0o700)
    use()


def test_links_above_that_lead_nowhere_or_round_are_no_endless_way(monkeypatch, socket_dir):
    (socket_dir / "round").symlink_to("round/../round")
    monkeypatch.setenv("OVERLAPTOP_DIR", str(socket_dir / "round" / "d"))
    with pytest.raises(EndpointError, match="is reached by more than 40 links"):
        list_jobs()
    (socket_dir / "dangling").symlink_to("nowhere")
    monkeypatch.setenv("OVERLAPTOP_DIR", str(socket_dir / "dangling" / "d"))
    assert list_jobs() == []


@pytest.mark.parametrize("key", ["", "..", "a/b", "/etc", "A", "a.b", "a" * 41, "a\n", "é"])
def test_a_key_that_could_lead_elsewhere_is_refused(key):
    with pytest.raises(EndpointError, match="job key"):
        job_dir(key)
    assert read_job(key) is None


def test_a_path_too_long_for_a_socket_is_refused_with_the_way_out(monkeypatch, socket_dir):
    monkeypatch.setenv("OVERLAPTOP_DIR", str(socket_dir / ("d" * 100)))
    with pytest.raises(EndpointError, match="set OVERLAPTOP_DIR to a shorter"):
        ranks_socket("a")
    with pytest.raises(EndpointError, match="set OVERLAPTOP_DIR to a shorter"):
        hub_command("a", "train.py", 1, 1, "/")


def test_a_process_is_known_by_pid_and_start_time(gone):
    pid, start = gone
    assert start > 0
    assert process_start_time(pid) is None
    assert process_start_time(0) is None
    assert process_start_time(-1) is None
    me = process_start_time(os.getpid())
    assert is_alive(os.getpid(), me)
    assert not is_alive(os.getpid(), me - 1)
    assert not is_alive(os.getpid(), None)


def test_a_process_with_an_odd_name_is_read_all_the_same(socket_dir):
    program = socket_dir / "a) S 1 (b"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "60"]) as process:
        assert process_start_time(process.pid) >= process_start_time(os.getpid())
        process.kill()


def test_a_zombie_is_not_alive():
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        process.stdout.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_start_time(process.pid) is None


def test_a_record_reads_back_as_written_and_only_the_record_is_left(socket_dir):
    record = replace(written("a"), rank_pids=())
    write_job(record)
    assert read_job("a") == record
    assert [path.name for path in job_dir("a").iterdir()] == ["job.json"]
    write_values(
        asdict(record) | {"colour": "blue", "import_path": MISSING}
    )  # a newer hub's, an older one's
    assert read_job("a") == record


RUBBISH = {
    "no json": "{",
    "no object": "[]",
    "depth": "[" * 100_000,
    "too long": '"' + "x" * (1 << 19) + '"',
    "not utf-8": b"\xff\xfe",
    "a long number": "9" * 10_000,
}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH.keys())
def test_rubbish_is_no_record(rubbish):
    path = job_dir("a", create=True) / "job.json"
    path.write_bytes(rubbish if isinstance(rubbish, bytes) else rubbish.encode())
    assert read_job("a") is None
    path.rename(path.with_name("target"))
    for make in (os.mkfifo, lambda link: link.symlink_to("target")):  # neither waits nor follows
        make(path)
        assert list_jobs() == []
        path.unlink()


PATHS = (["/a"] * 17, [""], ["/" + "a" * 4096], ["a"], ["/a:/b"], ["/a\n/b"])


@pytest.mark.parametrize(
    "changed",
    [
        {"job": "b"},
        {"script": MISSING},
        {"hub_pid": 1 << 70},
        {"rank_pids": [1, None]},
        {"dashboard_socket": "../../elsewhere.sock"},
        *({"import_path": path} for path in PATHS),
    ],
)
def test_a_record_with_a_wrong_field_or_without_one_is_no_record(changed):
    write_values(asdict(written("a")) | changed)
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


def test_a_folder_has_one_lock_and_a_removed_lock_is_none():
    folder = job_dir("a", create=True)
    first = endpoints.try_lock(folder, create=True)
    assert endpoints.try_lock(folder, create=True) is None
    (folder / "hub.lock").unlink()
    second = endpoints.try_lock(folder, create=True)
    assert second is not None
    os.close(first)
    assert endpoints.try_lock(folder, create=True) is None
    os.close(second)


def test_a_lock_that_was_removed_before_it_was_got_is_none(monkeypatch):
    folder, flock = job_dir("a", create=True), fcntl.flock

    def too_late(descriptor, operation):
        (folder / "hub.lock").unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", too_late)
    assert endpoints.try_lock(folder, create=True) is None


def test_the_hub_is_started_by_this_interpreter_with_an_environment_of_its_own(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("PYTHONPATH", "/somewhere/with/a/queue.py")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    argv, environment = hub_command("a", "--odd name", 8, 42, "/work")
    assert argv[:2] == [sys.executable, "-P"]
    assert "--script=--odd name" in argv
    assert "LD_PRELOAD" not in environment
    assert "PYTHONINSPECT" not in environment
    assert "/somewhere/with/a/queue.py" not in environment.get("PYTHONPATH", "")
    assert environment["CUDA_VISIBLE_DEVICES"] == "3"


def test_the_hub_finds_its_packages_where_this_process_did(hubs, monkeypatch, socket_dir):
    """As in a job whose sys.path was changed, in a folder full of modules with the library's names."""
    for name in ("queue", "select", "json", "zmq", "socket"):
        (socket_dir / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(socket_dir)
    monkeypatch.setenv("PYTHONPATH", str(socket_dir))
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    code = (
        "import os, sys\n"
        "from overlaptop.wire.endpoints import hub_command\n"
        "argv, environment = hub_command('job-1', 'x', 1, os.getppid(), '/')\n"
        # A bare interpreter: what it has, it has from the environment.
        "os.execve(argv[0], [argv[0], '-S', *argv[1:]], environment)\n"
    )
    path = [entry for entry in sys.path if entry.endswith("site-packages")]
    source = str(Path(endpoints.__file__).parents[2])
    setup = f"import site, sys; site.getsitepackages = lambda: []; sys.path[:0] = {[source, *path]!r}\n"
    subprocess.run([sys.executable, "-S", "-P", "-E", "-c", setup + code], check=True, timeout=60)
    assert hubs.record().hub_alive


def test_the_folders_that_the_hub_s_interpreter_needs_are_in_the_record(hubs, folder):
    record = hubs.start()
    assert record.import_path == tuple(endpoints.import_path())
    command = [record.python, "-P", "-c", "import overlaptop.hub.loop"]
    environment = {"PYTHONPATH": os.pathsep.join(record.import_path)}
    subprocess.run(command, cwd="/", env=environment, check=True, timeout=60)


def test_a_job_is_gone_when_neither_starter_nor_any_rank_is_left(gone):
    pid, start_ticks = gone
    record = replace(record_of("a", starter=gone), rank_pids=())
    assert record.gone
    assert replace(record, rank_pids=(pid,)).gone
    assert not replace(record, rank_pids=(pid, os.getpid())).gone
    assert not replace(record_of("a"), rank_pids=()).gone
    assert replace(record, starter_start_ticks=None).gone
    assert start_ticks is not None
