"""The socket directory, and whose the folders in it are."""

import os
import shutil
import subprocess
import sys

import pytest

from overlaptop.jobs.files import temporary_folder
from overlaptop.jobs.folder import JobFolderError, base_dir, job_dir, try_lock
from overlaptop.jobs.hub_command import hub_command
from overlaptop.jobs.record import clean_stale, list_jobs, read_job
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
