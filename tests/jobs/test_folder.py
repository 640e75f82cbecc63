"""The socket directory, and whose the folders in it are."""

import os

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


@pytest.mark.parametrize("use", [base_dir, lambda: base_dir(create=False), list_jobs, clean_stale])
def test_directory_that_is_not_private_is_refused(monkeypatch, socket_dir, use):
    """test_private_folders.py has all that it may be."""
    monkeypatch.setenv("OVERLAPTOP_DIR", str(socket_dir / "d"))
    (socket_dir / "d").mkdir(0o755)
    with pytest.raises(JobFolderError, match=f"{socket_dir}/d has mode 0755, not 0700") as refusal:
        use()
    assert "\n" not in str(refusal.value)
    (socket_dir / "d").chmod(0o700)
    use()


@pytest.mark.parametrize("key", ["", "..", "a/b", "/etc", "A", "a.b", "a" * 41, "a\n", "é"])
def test_a_key_that_could_lead_elsewhere_is_refused(key):
    with pytest.raises(JobFolderError, match="job key"):
        job_dir(key)
    assert read_job(key) is None


def test_path_too_long_for_a_socket_is_refused(monkeypatch, socket_dir):
    monkeypatch.setenv("OVERLAPTOP_DIR", str(socket_dir / ("d" * 100)))
    with pytest.raises(JobFolderError, match="set OVERLAPTOP_DIR to a shorter"):
        ranks_socket("a")
    with pytest.raises(JobFolderError, match="set OVERLAPTOP_DIR to a shorter"):
        hub_command("a", "train.py", 1, 1, "/")


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
