"""The hub as a process: what ranks and dashboards get from it, and when it ends."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq
from msgspec.structs import replace

from overlaptop.commands.jobs import join
from overlaptop.commands.output import CommandError
from overlaptop.jobs import last_end
from overlaptop.jobs.folder import job_dir
from overlaptop.jobs.hub_socket import LocalHubConnection
from overlaptop.jobs.processes import process_start_time
from overlaptop.jobs.record import clean_stale, list_jobs, read_job
from overlaptop.wire import commands
from overlaptop.wire.codec import encode
from overlaptop.wire.commands import Command
from overlaptop.wire.joining import Join, Watch
from overlaptop.wire.messages import (
    HubStatus,
    Notice,
    RankEnd,
    RankInfo,
    RankStalled,
    StepDetail,
    StepTotals,
    Welcome,
)  # fmt: skip
from overlaptop.wire.protocol import PROTOCOL_VERSION
from tests.processes import eventually, runs

KEY = "job-1"


def test_hub_is_a_private_daemon_with_record_and_welcome(hubs, make_rank, make_viewer, folder):
    record = hubs.start()
    assert make_rank().greet().next_watch() is False  # it listens as soon as the command has returned
    process = Path(f"/proc/{record.hub_pid}")
    assert os.getsid(record.hub_pid) != os.getsid(0)
    assert (process / "cwd").readlink() == Path("/")
    assert (process / "fd/1").readlink() == Path("/dev/null")
    assert f"PPid:\t{os.getpid()}\n" not in (process / "status").read_text()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.lstat().st_mode & 0o077 == 0 for path in folder.iterdir())

    assert (record.protocol, record.job, record.script) == (PROTOCOL_VERSION, KEY, "train.py")
    assert (record.cwd, record.world_size, record.python) == ("/some/where", 2, sys.executable)
    assert (record.host, record.starter_pid) == (socket.gethostname(), os.getpid())
    assert record.starter_start_ticks == process_start_time(os.getpid())
    assert record.hub_start_ticks == process_start_time(record.hub_pid)
    assert record.dashboard_path == folder / f"dash-{record.hub_pid}.sock"
    eventually(lambda: read_job(KEY).rank_pids == (os.getpid(),))
    assert [job.job for job in list_jobs()] == [KEY]

    opened_s = time.monotonic()
    viewer = make_viewer()
    status = viewer.receive(HubStatus)
    assert viewer.messages[0] == Welcome(
        PROTOCOL_VERSION, KEY, socket.gethostname(), "train.py", 2, record.started_ns
    )
    assert (status.ranks_connected, status.dropped, status.job_ended) == (1, 0, False)
    assert viewer.hub.alive
    assert 0 <= viewer.hub.last_received_s <= time.monotonic() - opened_s


def test_late_dashboard_gets_history_then_live_without_gaps(hubs, make_rank, make_viewer):
    hubs.start()
    ranks = [make_rank(0).greet(), make_rank(1).greet()]
    last = 1500
    joined = threading.Event()

    def train():
        for step in range(last + 1):
            if step == last // 2:
                joined.wait()
            for rank in ranks:
                rank.send(rank.step(step))

    job = threading.Thread(target=train)
    job.start()
    early = make_viewer()
    early.receive(StepTotals, lambda totals: totals.step >= 10)
    late = make_viewer()
    late.receive(Welcome)
    joined.set()
    latest = make_viewer()

    def steps_of(viewer, rank):
        """Since its last Welcome: one that was silent for long, as on a busy machine, begins anew."""
        at = max(at for at, message in enumerate(viewer.messages) if isinstance(message, Welcome))
        steps = [each for each in viewer.messages[at:] if isinstance(each, StepTotals)]
        return [totals.step for totals in steps if totals.rank == rank]

    for viewer in (early, late, latest):
        for rank in (0, 1):
            viewer.until(
                lambda viewer=viewer, rank=rank: viewer.messages and last in steps_of(viewer, rank)
            )
            assert steps_of(viewer, rank) == list(range(last + 1))
        assert {info.rank for info in viewer.of(RankInfo)} == {0, 1}
        assert viewer.hub.dropped == 0
    job.join()


def test_detail_comes_from_watched_ranks_to_who_watches(hubs, make_rank, make_viewer):
    hubs.start()
    asking, plain = make_viewer(), make_viewer()
    asking.hub.watch([0])
    for viewer in (asking, plain):
        viewer.receive(Welcome)
    rank, other = make_rank(0).greet(), make_rank(1).greet()
    assert (rank.next_watch(), other.next_watch()) == (True, False)
    rank.send(rank.detail(7), rank.step(7))
    other.send(other.detail(7), other.step(7))
    for viewer in (asking, plain):
        for number in (0, 1):
            viewer.receive(StepTotals, lambda totals, number=number: totals.rank == number)
    assert asking.of(StepDetail) == [rank.detail(7)]
    assert plain.of(StepDetail) == []
    plain.hub.watch([1])
    assert plain.receive(StepDetail) == other.detail(7)
    assert other.next_watch() is True
    asking.hub.watch([])
    asking.poll()
    assert rank.next_watch() is False
    plain.close()
    assert other.next_watch() is False


def test_bursts_that_any_dashboard_asks_for_reach_the_ranks(hubs, make_rank, make_viewer):
    hubs.start()
    viewers = [make_viewer(), make_viewer()]
    rank = make_rank(0).greet()
    assert rank.next_watch() is False
    for viewer in viewers:
        viewer.receive(Welcome)
    for expected, viewer, asked in ((0, 0, 0), (1, 1, 1), (2, 0, 1), (3, 1, 2)):
        viewers[viewer].hub.watch([0], asked)
        viewers[viewer].poll()
        assert rank.next_wanted() == Watch(detail=True, bursts=expected)


def test_the_end_of_each_rank_is_followed_by_its_exit_code(hubs, make_rank, make_viewer):
    hubs.start("--linger-s", "20")
    ends = (
        ("kill -KILL $$", False, -signal.SIGKILL),
        ("exit 3", False, 3),
        ("kill -ABRT $$", True, -signal.SIGABRT),
    )
    viewer = make_viewer()
    for number, (end, clean, exit_code) in enumerate(ends):
        with subprocess.Popen(["sh", "-c", f"read word; {end}"], stdin=subprocess.PIPE) as process:
            rank = make_rank(number)
            rank.info = replace(rank.info, pid=process.pid)
            rank.greet()
            viewer.receive(RankInfo, lambda info, number=number: info.rank == number)
            if clean:
                rank.send(RankEnd(number, 1, clean=True))
            else:
                rank.close()
            of_rank = [viewer.receive(RankEnd, lambda end, number=number: end.rank == number)]
            process.stdin.close()
            of_rank.append(
                viewer.receive(
                    RankEnd,
                    lambda end, number=number: end.rank == number and end.exit_code is not None,
                )
            )
        assert [(each.clean, each.exit_code) for each in of_rank] == [(clean, None), (clean, exit_code)]
        assert of_rank[1].failed


def test_last_end_has_the_ends_of_all_ranks(hubs, make_rank, make_viewer):
    now_ns = time.time_ns()
    record = hubs.start("--linger-s", "0")
    viewer = make_viewer()
    ranks = [make_rank(number).greet() for number in (0, 1)]
    for number in (0, 1):
        viewer.receive(RankInfo, lambda info, number=number: info.rank == number)
    late = RankEnd(0, now_ns + 10**9, True, "ValueError: boom", 1)
    early = RankEnd(1, now_ns, True, "ModuleNotFoundError: nosuch", 1)
    ranks[0].send(RankStalled(0, hung=True))
    ranks[1].send(early)
    ranks[0].send(late)
    eventually(lambda: not runs(record.hub_pid))
    known = last_end.read()
    assert (known.job, known.script) == (record.job, record.script)
    assert sorted(known.ends, key=lambda end: end.rank) == [late, early]
    assert known.hung
    with pytest.raises(CommandError, match=r" ago: rank 1 failed: ModuleNotFoundError: nosuch; 1 other "):
        join(None)


def test_rank_that_reconnects_replaces_its_old_connection(hubs, make_rank, make_viewer):
    hubs.start()
    old = make_rank(0).greet()
    viewer = make_viewer()
    viewer.receive(RankInfo)
    new = make_rank(0)
    new.info = replace(new.info, backend="nccl")
    new.greet()
    assert old.is_closed_by_hub()
    new.send(new.step(1))
    viewer.receive(StepTotals)
    viewer.receive(HubStatus, lambda status: status.ranks_connected == 1)
    assert [info.backend for info in viewer.of(RankInfo)] == ["gloo", "nccl"]
    assert viewer.of(RankEnd) == []


def test_a_hub_that_was_killed_is_replaced_and_its_leftovers_go(hubs, make_rank, make_viewer, folder):
    first = hubs.start()
    rank = make_rank().greet()
    viewer = make_viewer()
    viewer.receive(RankInfo)
    os.kill(first.hub_pid, signal.SIGKILL)
    assert rank.is_closed_by_hub()
    viewer.until(lambda: not viewer.hub.alive)
    assert read_job(KEY) == replace(first, rank_pids=read_job(KEY).rank_pids)
    assert list_jobs() == []
    hubs.launch()
    second = hubs.record()
    assert second.hub_pid != first.hub_pid
    assert second.started_ns == first.started_ns
    make_rank().greet()
    make_viewer().receive(RankInfo)
    assert sorted(path.name for path in folder.glob("*.sock")) == [
        second.dashboard_socket,
        "ranks.sock",
        f"view-{second.hub_pid}.sock",
    ]


def test_hub_waits_for_a_rank_to_return_then_removes_its_folder(hubs, make_rank, make_viewer, folder):
    record = hubs.start("--linger-s", "2")
    process = subprocess.Popen(["sleep", "600"])  # while it lives, the hub lingers five times as long
    rank, again = make_rank(), make_rank()
    rank.info = again.info = replace(rank.info, pid=process.pid)
    rank.greet()
    viewer = make_viewer()
    viewer.receive(RankInfo)
    assert not hubs.record().ended
    rank.send(RankEnd(0, 1, clean=True))
    viewer.receive(HubStatus, lambda status: status.job_ended)
    assert viewer.of(RankEnd) == [RankEnd(0, 1, clean=True)]
    again.greet().next_watch()
    viewer.await_statuses(2)
    assert record.hub_alive
    eventually(lambda: not hubs.record().ended)
    process.kill()
    process.wait()
    again.send(RankEnd(0, 1, clean=True))
    eventually(lambda: not runs(record.hub_pid))
    assert not folder.exists()
    assert not viewer.hub.alive


@pytest.mark.parametrize(("done", "may_restart"), [("0", True), ("2", False)])
def test_restarts_are_in_record_and_notice(hubs, monkeypatch, make_viewer, done, may_restart):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", done)
    record = hubs.start()
    assert record.restarter_pid == (os.getppid() if may_restart else 0)
    assert record.may_restart == may_restart
    viewer = make_viewer()
    viewer.receive(HubStatus)
    restarted = (
        "torchrun restarted the job after a failure (restart 2): steps count from 0",
        record.started_ns,
    )
    notices = [(notice.text, notice.at_ns) for notice in viewer.of(Notice)]
    assert notices == ([] if may_restart else [restarted])


def test_a_hub_to_which_no_rank_comes_ends(hubs, folder):
    hubs.launch("--wait-s", "0.3")  # it may be gone before anybody could read its record
    eventually(lambda: not folder.exists())


def test_hub_ends_with_its_starter_unless_the_job_runs(hubs, make_rank, make_viewer, folder):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as starter:
        running = hubs.start(starter_pid=starter.pid)
        waiting = hubs.start(key="other", starter_pid=starter.pid)
        make_rank().greet().next_watch()
        starter.stdin.close()
    eventually(lambda: not runs(waiting.hub_pid))
    make_viewer().receive(HubStatus)
    assert running.hub_alive
    os.kill(running.hub_pid, signal.SIGTERM)
    eventually(lambda: not runs(running.hub_pid))
    assert not folder.exists()


def test_of_hubs_started_at_once_exactly_one_lives(hubs, make_rank):
    argv, environment = hubs.command()
    starts = [subprocess.Popen(argv, env=environment) for _ in range(6)]
    assert [start.wait(timeout=60) for start in starts] == [0] * 6
    record = hubs.record()
    folders = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    daemons = [path.name for path in folders if is_hub_in(path, environment["OVERLAPTOP_DIR"])]
    assert daemons == [str(record.hub_pid)]
    assert make_rank().greet().next_watch() is False


def is_hub_in(process, directory):
    try:
        command = (process / "cmdline").read_bytes()
        environment = (process / "environ").read_bytes()
    except OSError:
        return False
    return b"overlaptop.hub" in command and f"OVERLAPTOP_DIR={directory}\0".encode() in environment


def test_jobs_run_side_by_side_and_leftovers_are_removed(hubs, make_rank, make_viewer):
    left = job_dir("left", create=True)
    (left / "hub.log").touch()
    records = [hubs.start(key=key) for key in ("a", "b-2")]
    hubs.launch(key="a")  # a second one leaves the first alone
    for key in ("a", "b-2"):
        make_rank(key=key).greet().next_watch()
    assert [record.job for record in list_jobs()] == ["b-2", "a"]
    assert make_viewer("b-2").receive(RankInfo).job == "b-2"
    eventually(lambda: not left.exists())
    clean_stale()
    assert all(record.hub_alive and read_job(record.job) for record in records)


def test_hub_without_its_folder_ends_beside_its_successor(hubs, make_rank, folder):
    first = hubs.start()
    rank = make_rank().greet()
    rank.next_watch()
    os.kill(first.hub_pid, signal.SIGSTOP)
    shutil.rmtree(folder)
    second = hubs.start()
    os.kill(first.hub_pid, signal.SIGCONT)
    assert rank.is_closed_by_hub()
    eventually(lambda: not runs(first.hub_pid))
    assert second.hub_alive
    make_rank().greet().next_watch()


def test_dashboard_of_another_protocol_gets_only_welcome(hubs, make_rank):
    record = hubs.start()
    make_rank().greet().next_watch()
    received = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.rcvtimeo = 0, 20_000
        dealer.connect(f"ipc://{record.dashboard_path}")
        other = LocalHubConnection(record)
        dealer.send(encode(Join(PROTOCOL_VERSION + 1, ())))
        dealer.send(encode(commands.make(commands.CAPTURE, {"steps": 5})))
        told = dealer.recv_multipart()
        # By the time another dashboard has received two statuses, this one would have received one.
        eventually(
            lambda: received.extend(other.poll()) or sum(isinstance(m, HubStatus) for m in received) >= 2
        )
        other.close()
        assert told == [encode(received[0])]
        assert not any(isinstance(each, Command) for each in received)
        with pytest.raises(zmq.Again):
            dealer.recv(zmq.NOBLOCK)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"OVERLAPTOP_DIR": "/proc/nowhere"}, "cannot create /proc/nowhere"),
        ({"OVERLAPTOP_DIR": "/etc"}, "OVERLAPTOP_DIR can name another folder"),
    ],
)
def test_a_hub_that_cannot_be_says_why_in_one_line(hubs, changed, words):
    argv, environment = hubs.command()
    done = subprocess.run(argv, env=environment | changed, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
