"""Which folders count as closed to other users, on a real file system with real owners."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from overlaptop.jobs.files import NotPrivateError, check_private

STRANGER = 54_321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of another user")


@pytest.fixture
def base():
    """A folder of ours below /tmp."""
    path = Path(tempfile.mkdtemp(prefix="ot-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def folder(path, mode, uid=-1):
    path.mkdir()
    os.chown(path, uid, -1)
    path.chmod(mode)


def test_a_private_folder_is_made_once_and_found_again(base):
    with pytest.raises(FileNotFoundError, match=f"{base}/new"):
        check_private(base / "new")
    check_private(base / "new", create=True)
    assert (base / "new").stat().st_mode & 0o777 == 0o700
    check_private(base / "new", create=True)
    check_private(base / "new")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: folder(path, 0o755), "has mode 0755, not 0700"),
        (lambda path: folder(path, 0o770), "has mode 0770, not 0700"),
        (lambda path: path.symlink_to("."), "is a symbolic link"),
        (lambda path: path.symlink_to("nowhere"), "is a symbolic link"),
        (Path.touch, "is not a directory"),
        (os.mkfifo, "is not a directory"),
        pytest.param(
            lambda path: folder(path, 0o700, STRANGER), f"belongs to uid {STRANGER}", marks=needs_root
        ),
    ],
    ids=["open", "to a group", "link", "dangling link", "file", "fifo", "another user's"],
)
def test_what_is_not_a_private_folder_is_refused(base, make, words):
    make(base / "there")
    for how in ({}, {"create": True}):
        with pytest.raises(NotPrivateError, match=rf"^{base}/there {words}"):
            check_private(base / "there", **how)
