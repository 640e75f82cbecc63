"""Another user of the same machine, made by the test: what he can neither read, control nor have run."""

import json
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import asdict

from overlaptop.agent.placement import RankPlacement
from overlaptop.agent.reporting.sender import Sender
from overlaptop.jobs.folder import JobFolderError, job_dir
from overlaptop.jobs.hub_command import hub_command
from overlaptop.jobs.hub_connection import LocalHubConnection
from overlaptop.jobs.private_folders import temporary_folder
from overlaptop.jobs.record import list_jobs
from overlaptop.remote.bootstrap import remote_command
from overlaptop.wire.codec import encode
from overlaptop.wire.commands import make_setting
from overlaptop.wire.joining import TurnedAway
from overlaptop.wire.knobs import KnobFacts
from overlaptop.wire.messages import RankInfo, StepTotals, Welcome
from overlaptop.wire.protocol import PROTOCOL_VERSION
from tests.fleet.builders import BUCKET_CAP_MB as KNOB
from tests.fleet.builders import info
from tests.fleet.fakes import record
from tests.hubs import KEY, hubs, make_rank, make_viewer
from tests.processes import eventually

__all__ = ["hubs", "make_rank", "make_viewer"]  # fixtures

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def _unused(first):
    known = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(first, first + 1000) if uid not in known)


STRANGER = _unused(54_321)
OWNER = _unused(STRANGER + 1)
"""Of jobs that are not root's."""


def fork_stranger(act):
    """The pid of a process of the stranger's that does this and ends."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            act()
            status = 0
        finally:
            os._exit(status)
    return pid


def error_of(act):
    """The name of the error that this raises; empty: it raises none."""
    try:
        act()
    except (OSError, JobFolderError) as error:
        return type(error).__name__
    return ""


def as_stranger(act):
    """What this comes to for the stranger."""
    reads, writes = os.pipe()
    pid = fork_stranger(lambda: os.write(writes, json.dumps(act()).encode()))
    os.close(writes)
    with os.fdopen(reads) as pipe:
        told = json.loads(pipe.read())
    assert os.waitpid(pid, 0) == (pid, 0)
    return told


@pytest.fixture(autouse=True)
def shared_tmp(monkeypatch):
    """A temporary directory for all users, as /tmp is."""
    path = Path(tempfile.mkdtemp(prefix="ot-", dir="/tmp"))
    path.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.delenv("OVERLAPTOP_DIR", raising=False)
    temporary_folder.cache_clear()
    yield path
    temporary_folder.cache_clear()
    shutil.rmtree(path)


@pytest.fixture
def socket_dir(shared_tmp, monkeypatch):
    """The one that a hub makes there by itself; `Hubs` looks it up by its variable."""
    path = shared_tmp / f"overlaptop-{os.geteuid()}"
    monkeypatch.setenv("OVERLAPTOP_DIR", str(path))
    return path


@pytest.fixture
def job(hubs, make_rank, make_viewer):
    """A job that has run for a step and can be changed, all of whose files are there."""
    hubs.start()
    rank, viewer = make_rank(0).greet(), make_viewer()
    viewer.receive(RankInfo)
    rank.send(rank.step(1), KnobFacts(0, (KNOB,)))
    viewer.receive(StepTotals)
    command = viewer.ask(make_setting(KNOB, 50))
    rank.answer(rank.next_command())
    viewer.outcome_of(command)
    return eventually(lambda: (record := hubs.record()).rank_pids and record)


def files_of_the_job():
    return sorted(Path(os.environ["OVERLAPTOP_DIR"]).rglob("*"))


# Sockets in the place of a job's


@pytest.fixture
def swapped(socket_dir):
    """Lets the stranger listen where a job's hub should, in a folder that looks as it should."""
    children = []

    def listen(name, serve):
        folder = job_dir(KEY, create=True)
        for path in (socket_dir, folder):
            path.chmod(0o777)
        # Everybody may speak to it from the moment on in which it is there.
        children.append(fork_stranger(lambda: os.umask(0) + serve(folder / name)))
        eventually((folder / name).exists)
        for path in (socket_dir, folder):
            path.chmod(0o700)

    yield listen
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _take_ranks(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        while True:
            time.sleep(60)


def _welcome_dashboards(path):
    import zmq

    router = zmq.Context().socket(zmq.ROUTER)
    router.bind(f"ipc://{path}")
    while True:
        name, *_ = router.recv_multipart()
        router.send_multipart([name, encode(Welcome(PROTOCOL_VERSION, KEY, "h", "mine.py", 1, 1))])


def test_a_rank_tells_nothing_to_another_users_hub(swapped, caplog):
    swapped("ranks.sock", _take_ranks)
    sender = Sender(RankPlacement(KEY, 0, 0, 1, "h", starts_hub=False), "train.py")
    sender.introduce(info())
    eventually(lambda: sender.pump() or caplog.text)
    assert f"uid {STRANGER}, not you, listens on the job's socket" in caplog.text
    assert sender.connections == 0


def test_a_dashboard_believes_nothing_of_another_users_hub(swapped, socket_dir):
    swapped("dash-1.sock", _welcome_dashboards)
    hub = LocalHubConnection(record(KEY, dashboard_socket="dash-1.sock"))
    received = eventually(hub.poll)
    for _ in range(3):
        received += hub.poll()
    assert {type(each) for each in received} == {TurnedAway}
    assert f"uid {STRANGER}, not you" in received[0].reason
    assert not hub.send(make_setting(KNOB, 50))
    hub.close()


# What there is of a job


def test_sockets_are_closed_to_others_even_in_an_open_directory(job, socket_dir):
    sockets = [path for path in files_of_the_job() if path.is_socket()]
    assert len(sockets) == 3

    def connect(path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(str(path))

    for opened in (False, True):
        if opened:  # by its own user, by mistake
            for folder in (socket_dir, socket_dir / KEY):
                folder.chmod(0o755)
        tries = [partial(connect, path) for path in sockets]
        assert as_stranger(lambda tries=tries: [error_of(act) for act in tries]) == ["PermissionError"] * 3
    files = [path for path in files_of_the_job() if not path.is_dir()]
    assert not any(stat.S_IMODE(path.stat().st_mode) & 0o077 for path in files)
    opens = [partial(os.open, path, os.O_RDONLY) for path in files]
    assert set(as_stranger(lambda: [error_of(act) for act in opens])) <= {"PermissionError", "OSError"}
    with pytest.raises(JobFolderError, match="has mode 0755, not 0700"):
        list_jobs()


# What another user has made beforehand


MARK = "the stranger's was run"


def plant(base, mark, *, mode=0o777, ours=False):
    """A socket directory of the stranger's, with a job whose interpreter and folders are theirs. ``ours``:
    it is given to the job's user, whose uid ends its name.
    """

    def make():
        os.umask(0)
        (base / KEY).mkdir(parents=True)
        script = base / "python"
        script.write_text(f"#!/bin/sh\necho {MARK!r} >>{mark}\n")
        script.chmod(0o777)
        (base / "overlaptop").mkdir()
        for name in ("overlaptop/__init__.py", "sitecustomize.py", "msgpack.py"):
            (base / name).write_text(f"open({str(mark)!r}, 'a').write({MARK!r})\n")
        values = asdict(record(KEY, python=str(script), import_path=(str(base),)))
        # As the hub writes it: one value a line.
        (base / KEY / "job.json").write_text(json.dumps(values, indent=1) + "\n")
        for folder in (base / KEY, base):
            folder.chmod(mode)

    assert as_stranger(make) is None
    if ours:
        uid = int(base.name.rpartition("-")[2])
        for folder in (base, base / KEY):
            os.chown(folder, uid, uid)


PLANTED = {
    "theirs": (partial(plant, mode=0o700), rf"belongs to uid {STRANGER}, not to you"),
    "ours but open": (
        partial(plant, ours=True),
        r"has mode drwxrwxrwx, others can get in|has mode 0777, not 0700",
    ),
}


@pytest.fixture
def mark(shared_tmp):
    """Where the stranger's files say that they were run, by whomever."""
    path = shared_tmp / "mark"
    path.touch()
    path.chmod(0o666)
    return path


@pytest.mark.parametrize("uid", [0, OWNER], ids=["root", "a user"])
@pytest.mark.parametrize(("make", "why"), PLANTED.values(), ids=PLANTED)
def test_nothing_of_what_was_planted_is_run_or_listed(make, why, uid, shared_tmp, mark):
    base = shared_tmp / f"overlaptop-{uid}"
    make(base, mark)
    for python in ("", "python3"):
        done = subprocess.run(
            remote_command(python), input="\n\n", capture_output=True, text=True, timeout=60, check=False,
            cwd="/", env={"PATH": "/usr/bin:/bin", "TMPDIR": str(shared_tmp)},
            user=uid, group=uid, extra_groups=[],
        )  # fmt: skip
        notes = re.findall(r"^OVERLAPTOP-NOTE (\w+) ?(.*)$", done.stdout, re.MULTILINE)
        assert [kind for kind, _ in notes] == ["here", "fail"]
        assert notes[1][1].startswith(f"{base} ")
        assert re.search(why, notes[1][1])
        assert done.returncode == 1
    if uid == 0:
        with pytest.raises(JobFolderError, match=why):
            list_jobs()
        with pytest.raises(JobFolderError, match=why):
            hub_command("job-9", "train.py", 1, os.getpid(), "/w")
    assert mark.read_text() == ""


@pytest.mark.parametrize("python", ["", sys.executable], ids=["the one on the PATH", "named"])
def test_nothing_is_imported_from_the_login_directory(python, shared_tmp, mark):
    here = shared_tmp / "here"
    plant(here, mark)
    done = subprocess.run(
        remote_command(python), input=b"", capture_output=True, timeout=60, check=False, cwd=here,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "TMPDIR": str(shared_tmp)},
    )  # fmt: skip
    assert b"OVERLAPTOP-NOTE start" in done.stdout
    assert b"OVERLAPTOP RELAY" in done.stdout
    assert mark.read_text() == ""
