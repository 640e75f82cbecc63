"""Which folders somebody else could have laid out, on a real file system with real owners."""

import ctypes
import grp
import os
import pwd
import shutil
import tempfile
from pathlib import Path

import pytest

from overlaptop.jobs.trusted_folders import UntrustedFolderError, open_private, open_trusted

STRANGER = 54_321
CLONE_NEWUSER, PR_SET_DUMPABLE = 0x10000000, 4
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of another user")


@pytest.fixture
def base():
    """A folder of ours below /tmp, whose path has no links in it."""
    path = Path(os.path.realpath(tempfile.mkdtemp(prefix="ot-", dir="/tmp")))
    yield path
    shutil.rmtree(path)


def opened(path):
    """The path that the descriptor is of."""
    descriptor = open_trusted(path)
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    finally:
        os.close(descriptor)


def folder(path, mode=0o755, uid=None, gid=None):
    path.mkdir(parents=True, exist_ok=True)
    if uid is not None or gid is not None:
        os.chown(path, -1 if uid is None else uid, -1 if gid is None else gid)
    path.chmod(mode)
    return path


def open_descriptors():
    return set(Path("/proc/self/fd").iterdir())


def test_folder_of_ours_is_opened_also_through_a_link(base, monkeypatch):
    there = folder(base / "there" / "below")
    (base / "link").symlink_to(base / "there")
    assert opened(there) == opened(base / "link" / "below") == there
    monkeypatch.chdir(base)
    assert opened(Path("there")) == there.parent


def test_folder_open_to_all_is_refused_unless_sticky(base):
    shared = folder(base / "shared", 0o777)
    before = open_descriptors()
    with pytest.raises(UntrustedFolderError) as refusal:
        open_trusted(shared)
    assert str(refusal.value) == f"{shared} has mode 0777: others can change its files"
    assert open_descriptors() <= before
    shared.chmod(0o1777)  # as /tmp itself
    assert opened(shared) == shared


def test_a_group_may_write_only_where_it_is_its_users_own(base, monkeypatch):
    me = pwd.getpwuid(os.geteuid())
    shared = folder(base / "shared", 0o770)
    own = grp.struct_group((me.pw_name, "x", shared.stat().st_gid, []))
    mine = pwd.struct_passwd((*me[:3], own.gr_gid, *me[4:]))
    for group, user, trusted in (
        (own, mine, True),
        (grp.struct_group((*own[:3], ["colleague"])), mine, False),
        (grp.struct_group(("users", *own[1:])), mine, False),
        (own, pwd.struct_passwd((*me[:3], own.gr_gid + 1, *me[4:])), False),
    ):
        monkeypatch.setattr(grp, "getgrgid", lambda _, group=group: group)
        monkeypatch.setattr(pwd, "getpwuid", lambda _, user=user: user)
        if trusted:
            assert opened(shared) == shared
        else:
            with pytest.raises(UntrustedFolderError, match="has mode 0770"):
                open_trusted(shared)


@needs_root
def test_one_of_another_user_is_refused_whatever_its_mode(base):
    nobody = int(Path("/proc/sys/kernel/overflowuid").read_text())
    for mode, uid in ((0o700, STRANGER), (0o755, STRANGER), (0o1777, STRANGER), (0o755, nobody)):
        theirs = folder(base / "theirs", mode, uid)
        with pytest.raises(UntrustedFolderError, match=rf"^{theirs} belongs to uid {uid}, neither"):
            open_trusted(theirs)


@needs_root
def test_container_without_root_trusts_the_machine_s_folders(base):
    """There root's folders look as if they were nobody's."""
    folder(base, 0o1777)
    libc = ctypes.CDLL(None, use_errno=True)
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            libc.prctl(PR_SET_DUMPABLE, 1)  # or its own /proc files stay root's
            if libc.unshare(CLONE_NEWUSER) != 0:
                os.write(writes, b"no user namespaces here")
            else:
                Path("/proc/self/uid_map").write_text(f"{STRANGER} {STRANGER} 1\n")
                os.write(writes, f"{Path('/tmp').stat().st_uid} {opened(base)}".encode())
        except BaseException as error:
            os.write(writes, repr(error).encode())
            raise
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        said = pipe.read()
    if said == "no user namespaces here":
        pytest.skip(said)
    nobody = Path("/proc/sys/kernel/overflowuid").read_text().strip()
    assert said == f"{nobody} {base}"


@pytest.mark.parametrize(
    ("name", "error"),
    [("file", NotADirectoryError), ("file/below", NotADirectoryError), ("missing", FileNotFoundError)],
)
def test_what_is_no_folder_is_an_error_that_names_the_path(base, name, error):
    (base / "file").touch()
    with pytest.raises(error) as fault:
        open_trusted(base / name)
    assert str(base / name) == str(fault.value.filename)


# Private ones


def private(path, **how):
    above = open_trusted(path.parent)
    try:
        os.close(open_private(path, above, **how))
    finally:
        os.close(above)


def test_a_private_folder_is_made_once_and_found_again(base):
    with pytest.raises(FileNotFoundError, match=f"{base}/new"):
        private(base / "new")
    private(base / "new", create=True)
    assert (base / "new").stat().st_mode & 0o777 == 0o700
    private(base / "new", create=True)
    private(base / "new")


def test_private_folder_follows_its_descriptor_not_its_path(base):
    above = open_trusted(folder(base / "above"))
    (base / "above").rename(base / "moved")
    (base / "above").symlink_to(folder(base / "elsewhere"))
    os.close(open_private(base / "above" / "new", above, create=True))
    os.close(above)
    assert (base / "moved" / "new").is_dir()
    assert list((base / "elsewhere").iterdir()) == []


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
    before = open_descriptors()
    for how in ({}, {"create": True}):
        with pytest.raises(UntrustedFolderError, match=rf"^{base}/there {words}"):
            private(base / "there", **how)
    assert open_descriptors() <= before
