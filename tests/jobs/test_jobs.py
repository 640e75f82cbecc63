"""The socket directory: whose its folders are, the jobs in it, and how a hub is started there."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

import overlaptop
from overlaptop.jobs.files import temporary_folder
from overlaptop.jobs.folder import JobFolderError, base_dir, job_dir, try_lock
from overlaptop.jobs.hub_command import hub_command
from overlaptop.jobs.processes import is_alive, process_start_time
from overlaptop.jobs.record import JobRecord, clean_stale, list_jobs, read_job, write_job
from overlaptop.jobs.sockets import ranks_socket


def test_directory_is_private_and_not_made_by_looking(monkeypatch, socket_dir):
    monkeypatch.setenv("OVERLAPTOP_DIR", str(socket_dir / "new"))
    assert list_jobs() == []
    clean_stale()
    assert not (socket_dir / "new").exists()
    assert base_dir() == socket_dir / "new"
    assert base_dir().stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("OVERLAPTOP_DIR", str(socket_dir / "missing" / "d"))
    with pytest.raises(JobFolderError, match=r"cannot create .*: No such file.*: set OVERLAPTOP_DIR"):
        base_dir()


def test_default_directory_is_named_after_the_user(monkeypatch, socket_dir):
    monkeypatch.delenv("OVERLAPTOP_DIR")
    monkeypatch.setenv("TMPDIR", str(socket_dir))
    temporary_folder.cache_clear()
    assert base_dir() == socket_dir / f"overlaptop-{os.getuid()}"
    temporary_folder.cache_clear()


@pytest.mark.parametrize("key", ["", "..", "a/b", "/etc", "A", "a.b", "a" * 41, "a\n", "é"])
def test_a_key_that_could_lead_elsewhere_is_refused(key):
    with pytest.raises(JobFolderError, match="job key"):
        job_dir(key)
    assert read_job(key) is None


def test_path_too_long_for_a_socket_is_refused(monkeypatch, socket_dir):
    monkeypatch.setenv("OVERLAPTOP_DIR", str(socket_dir / ("d" * 100)))
    for use in (lambda: ranks_socket("a"), lambda: hub_command("a", "train.py", 1, 1, "/")):
        with pytest.raises(JobFolderError, match="set OVERLAPTOP_DIR to a shorter"):
            use()


def test_a_folder_has_one_lock_and_a_removed_lock_is_none():
    folder = job_dir("a", create=True)
    first = try_lock(folder, create=True)
    assert try_lock(folder, create=True) is None
    (folder / "hub.lock").unlink()
    second = try_lock(folder, create=True)
    assert second is not None
    os.close(first)
    assert try_lock(folder, create=True) is None
    os.close(second)


STRANGER = 54_321


def folder(path, mode, uid=-1):
    path.mkdir()
    os.chown(path, uid, -1)
    path.chmod(mode)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: folder(path, 0o770), "has mode 0770, not 0700"),
        (lambda path: path.symlink_to("."), "is a symbolic link"),
        (os.mkfifo, "is not a directory"),
        pytest.param(
            lambda path: folder(path, 0o700, STRANGER),
            f"belongs to uid {STRANGER}",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away"),
        ),
    ],
    ids=["open", "a link", "a fifo", "another user's"],
)
@pytest.mark.parametrize("use", [base_dir, list_jobs, clean_stale])
def test_directory_that_is_not_private_is_refused(monkeypatch, socket_dir, use, make, words):
    monkeypatch.setenv("OVERLAPTOP_DIR", str(socket_dir / "d"))
    make(socket_dir / "d")
    with pytest.raises(JobFolderError, match=f"{socket_dir}/d {words}.*; OVERLAPTOP_DIR"):
        use()


MOUNT = 'mount -t tmpfs -o size=64k,mode=700 tmpfs "$OVERLAPTOP_DIR"'
FILL = 'cat /dev/zero > "$OVERLAPTOP_DIR/fill" 2>/dev/null'
LOCK = 'mount -o remount,ro "$OVERLAPTOP_DIR"'


def may_mount():
    if os.geteuid() or shutil.which("unshare") is None:
        return False
    tried = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(tried, capture_output=True).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="mounting a file system needs root and unshare")
def test_unwritable_directory_is_named_in_log_and_list(tmp_path):
    sockets = tmp_path / "s"
    sockets.mkdir()
    script = tmp_path / "train.py"
    script.write_text("import torch\nprint('trained')\n")
    python = f"'{sys.executable}' -m overlaptop"
    full = f"{FILL}; {python}.agent {script}; echo $?; {python} --list"
    shell = f"{MOUNT} && {{ {full}; {LOCK}; {python} --list; }}"
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9", "OVERLAPTOP_DIR": str(sockets)}
    command = ["unshare", "-m", "sh", "-c", shell]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **place}, timeout=60)
    assert done.stdout == "trained\n0\n"
    log, *listed = done.stderr.splitlines()
    why = f"cannot write to {sockets}: No space left on device; make room, or set OVERLAPTOP_DIR"
    assert log.startswith(f"overlaptop: no dashboard can see this rank: {why}")
    for line, fault in zip(listed, ("No space left on device", "Read-only file system"), strict=True):
        why = f"cannot write to {sockets}: {fault}, so no job that starts now can be seen: "
        assert line.startswith(f"overlaptop: {why}")
        assert "OVERLAPTOP_DIR" in line


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


def test_hub_gets_a_clean_environment_and_the_same_directory(monkeypatch, socket_dir):
    monkeypatch.chdir(socket_dir)
    for name, value in {"OVERLAPTOP_DIR": "here", "LD_PRELOAD": "", "PYTHONINSPECT": "1"}.items():
        monkeypatch.setenv(name, value)
    argv, environment = hub_command("a", "--odd name", 8, 42, "/work")
    assert argv[:2] == [sys.executable, "-P"]
    assert "--script=--odd name" in argv
    assert environment["OVERLAPTOP_DIR"] == str(socket_dir / "here")
    assert not {"LD_PRELOAD", "PYTHONINSPECT"} & environment.keys()


def test_the_hub_finds_its_packages_where_this_process_did(hubs, monkeypatch, socket_dir):
    """As in a job whose sys.path was changed, in a folder full of modules with the library's names."""
    for name in ("queue", "select", "json", "zmq", "socket"):
        (socket_dir / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(socket_dir)
    monkeypatch.setenv("PYTHONPATH", str(socket_dir))
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    code = (
        "import os, sys\n"
        "from overlaptop.jobs.hub_command import hub_command\n"
        "argv, environment = hub_command('job-1', 'x', 1, os.getppid(), '/')\n"
        # A bare interpreter: what it has, it has from the environment.
        "os.execve(argv[0], [argv[0], '-S', *argv[1:]], environment)\n"
    )
    path = [entry for entry in sys.path if entry.endswith("site-packages")]
    source = str(Path(overlaptop.__file__).parents[1])
    setup = f"import site, sys; site.getsitepackages = lambda: []; sys.path[:0] = {[source, *path]!r}\n"
    subprocess.run([sys.executable, "-S", "-P", "-E", "-c", setup + code], check=True, timeout=60)
    command = [sys.executable, "-S", "-P", "-c", "import overlaptop.hub.loop"]
    environment = {"PYTHONPATH": os.pathsep.join(hubs.record().import_path)}
    subprocess.run(command, cwd="/", env=environment, check=True, timeout=60)
