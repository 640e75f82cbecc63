"""The hub as a process: what ranks and dashboards get from it, also under bad peers, and when it ends."""

import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq
from msgspec.structs import replace

from overlaptop.agent.placement import RankPlacement
from overlaptop.agent.reporting.sender import Sender
from overlaptop.commands.jobs import join
from overlaptop.commands.output import CommandError
from overlaptop.hub.dashboards import MAX_DASHBOARDS
from overlaptop.jobs import last_end
from overlaptop.jobs.folder import JobFolderError, job_dir
from overlaptop.jobs.hub_socket import LocalHubConnection
from overlaptop.jobs.record import list_jobs, read_job
from overlaptop.wire import commands
from overlaptop.wire.codec import MAX_FRAME_BYTES, encode, frame
from overlaptop.wire.commands import Command
from overlaptop.wire.joining import Join, TurnedAway, Watch
from overlaptop.wire.knobs import KnobFacts
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
from overlaptop.wire.protocol import PROTOCOL_VERSION, READER_TIMEOUT_S
from tests.fleet.builders import BUCKET_CAP_MB, info
from tests.fleet.fakes import record
from tests.processes import eventually, runs

KEY = "job-1"


def test_hub_is_a_private_daemon_with_record_and_welcome(hubs, make_rank, make_viewer, folder):
    record = hubs.start()
    assert make_rank().greet().next_watch() is False  # it listens as soon as the command has returned
    process = Path(f"/proc/{record.hub_pid}")
    assert os.getsid(record.hub_pid) != os.getsid(0)
    assert ((process / "cwd").readlink(), (process / "fd/1").readlink()) == (Path("/"), Path("/dev/null"))
    assert f"PPid:\t{os.getpid()}\n" not in (process / "status").read_text()

    assert (record.protocol, record.job, record.script) == (PROTOCOL_VERSION, KEY, "train.py")
    assert (record.cwd, record.world_size, record.python) == ("/some/where", 2, sys.executable)
    assert (record.host, record.starter_pid) == (socket.gethostname(), os.getpid())
    assert record.dashboard_path == folder / f"dash-{record.hub_pid}.sock"
    eventually(lambda: read_job(KEY).rank_pids == (os.getpid(),))
    viewer = make_viewer()
    status = viewer.receive(HubStatus)
    assert viewer.messages[0] == Welcome(
        PROTOCOL_VERSION, KEY, record.host, "train.py", 2, record.started_ns
    )
    assert (status.ranks_connected, status.dropped, status.job_ended) == (1, 0, False)


def test_late_dashboard_gets_history_then_live_without_gaps(hubs, make_rank, make_viewer):
    hubs.start()
    rank, last = make_rank(0).greet(), 1500
    rank.send(*map(rank.step, range(last // 2)))
    viewers = [make_viewer() for _ in range(2)]
    viewers[0].receive(Welcome)
    job = threading.Thread(target=lambda: rank.send(*map(rank.step, range(last // 2, last + 1))))
    job.start()
    for viewer in viewers:
        viewer.receive(StepTotals, lambda totals: totals.step == last)
        # Since its last Welcome: one that was silent for long, as on a busy machine, begins anew.
        welcome = max(at for at, each in enumerate(viewer.messages) if isinstance(each, Welcome))
        steps = [each.step for each in viewer.messages[welcome:] if isinstance(each, StepTotals)]
        assert steps == list(range(last + 1))
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
    for bursts in (1, 2):
        asking.hub.watch([0], bursts)
        asking.poll()
        assert rank.next_wanted() == Watch(detail=True, bursts=bursts)
    asking.hub.watch([], 2)
    asking.poll()
    assert rank.next_watch() is False
    plain.close()
    while other.next_watch():
        pass  # told of the bursts, until nobody watches it


@pytest.mark.parametrize(
    ("end", "clean", "code"), [("exit 3", False, 3), ("kill -ABRT $$", True, -signal.SIGABRT)]
)
def test_the_end_of_a_rank_is_followed_by_its_exit_code(hubs, make_rank, make_viewer, end, clean, code):
    hubs.start("--linger-s", "20")
    viewer = make_viewer()
    with subprocess.Popen(["sh", "-c", f"read word; {end}"], stdin=subprocess.PIPE) as process:
        rank = make_rank()
        rank.info = replace(rank.info, pid=process.pid)
        rank.greet()
        viewer.receive(RankInfo)
        if clean:
            rank.send(RankEnd(0, 1, clean=True))
        else:
            rank.close()
        first = viewer.receive(RankEnd)
        process.stdin.close()
        last = viewer.receive(RankEnd, lambda end: end.exit_code == code)
    assert (first.clean, first.exit_code, last.clean, last.failed) == (clean, None, clean, True)


def test_last_end_has_the_ends_of_all_ranks(hubs, make_rank, make_viewer):
    now_ns = time.time_ns()
    record = hubs.start("--linger-s", "0")
    ranks = [make_rank(number).greet() for number in (0, 1)]
    make_viewer().await_ranks(2)
    late = RankEnd(0, now_ns + 10**9, True, "ValueError: boom", 1)
    early = RankEnd(1, now_ns, True, "ModuleNotFoundError: nosuch", 1)
    ranks[0].send(RankStalled(0, hung=True))
    ranks[1].send(early)
    ranks[0].send(late)
    eventually(lambda: not runs(record.hub_pid))
    known = last_end.read()
    assert (known.job, known.script) == (record.job, record.script)
    assert (set(known.ends), known.hung) == ({late, early}, True)
    why = r" ago: rank 1 failed: ModuleNotFoundError: nosuch; 1 other "
    with pytest.raises(CommandError, match=why), join(None):
        pass


def test_a_hub_that_was_killed_is_replaced_and_its_leftovers_go(
    hubs, watched, make_rank, make_viewer, folder
):
    first, rank, viewer = watched
    os.kill(first.hub_pid, signal.SIGKILL)
    assert rank.is_closed_by_hub()
    viewer.until(lambda: not viewer.hub.alive)
    assert list_jobs() == []
    second = hubs.start()
    assert (second.hub_pid != first.hub_pid, second.started_ns) == (True, first.started_ns)
    make_rank().greet()
    make_viewer().receive(RankInfo)
    assert {path.name for path in folder.glob("*.sock")} == {
        second.dashboard_socket, "ranks.sock", f"view-{second.hub_pid}.sock",
    }  # fmt: skip


def test_hub_waits_for_a_rank_to_return_then_removes_its_folder(hubs, make_rank, make_viewer, folder):
    record = hubs.start("--linger-s", "1")
    process = subprocess.Popen(["sleep", "600"])  # while it lives, the hub lingers five times as long
    rank, again = make_rank(), make_rank()
    rank.info = again.info = replace(rank.info, pid=process.pid)
    rank.greet()
    viewer = make_viewer()
    viewer.receive(RankInfo)
    rank.send(RankEnd(0, 1, clean=True))
    viewer.receive(HubStatus, lambda status: status.job_ended)
    assert viewer.of(RankEnd) == [RankEnd(0, 1, clean=True)]
    eventually(lambda: hubs.record().ended)
    again.greet().next_watch()
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
    words = "torchrun restarted the job after a failure (restart 2): steps count from 0"
    notices = [(notice.text, notice.at_ns) for notice in viewer.of(Notice)]
    assert notices == ([] if may_restart else [(words, record.started_ns)])


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


def test_of_hubs_started_at_once_exactly_one_lives(hubs, make_rank, traces):
    argv, environment = hubs.command()
    starts = [subprocess.Popen(argv, env=environment) for _ in range(6)]
    assert [start.wait(timeout=60) for start in starts] == [0] * 6
    record = hubs.record()
    assert traces.alive() == [record.hub_pid]
    assert make_rank().greet().next_watch() is False


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


def test_dashboard_of_another_protocol_gets_only_welcome(hubs, make_rank, make_viewer):
    record = hubs.start()
    make_rank().greet().next_watch()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.rcvtimeo = 0, 20_000
        dealer.connect(f"ipc://{record.dashboard_path}")
        dealer.send(encode(Join(PROTOCOL_VERSION + 1, ())))
        dealer.send(encode(commands.make(commands.CAPTURE, {"steps": 5})))
        told = dealer.recv_multipart()
        # By the time another dashboard has received two statuses, this one would have received one.
        other = make_viewer()
        other.await_statuses(2)
        assert told == [encode(other.messages[0])]
        assert not other.of(Command)
        with pytest.raises(zmq.Again):
            dealer.recv(zmq.NOBLOCK)


def test_a_hub_that_cannot_be_says_why_in_one_line(hubs):
    argv, environment = hubs.command()
    environment["OVERLAPTOP_DIR"] = "/proc/nowhere"
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot create /proc/nowhere" in done.stderr


def test_recording_that_fails_is_reported_and_the_hub_goes_on(hubs, make_rank, make_viewer, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        hubs.start(f"--record={tmp_path / 'folder'}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    rank, viewer = make_rank(0).greet(), make_viewer()
    viewer.await_ranks(1)

    def complaint():
        rank.send(*(Notice(0, each, "info", f"{each} {'x' * 1000}") for each in range(100)))
        viewer.poll()
        return next((each.text for each in viewer.of(Notice) if each.level == "warning"), None)

    assert eventually(complaint).endswith("file too large")
    viewer.await_statuses(1)


def assert_is_quiet(pid):
    """A loop that spins takes a whole core; an idle hub a few ticks of the clock."""

    def cpu_s():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before_s = cpu_s()
    time.sleep(1)
    assert cpu_s() - before_s < 0.2


def assert_serves(rank, viewer, step):
    rank.send(rank.step(step))
    viewer.receive(StepTotals, lambda totals: (totals.rank, totals.step) == (rank.rank, step))


SETTING = commands.make_setting(BUCKET_CAP_MB, 50)
JUNK = {
    "an empty frame": frame(b""),
    "a hub's message": frame(encode(Watch(detail=True))),
    "an oversize length": (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
    "a rank of another job": frame(encode(info(1, job="another"))),
}


def test_connection_that_begins_with_junk_is_closed_and_counted(watched, make_rank):
    _, good, viewer = watched
    for junk in JUNK.values():
        bad = make_rank(1)
        bad.socket.sendall(junk)
        assert bad.is_closed_by_hub()
    assert_serves(good, viewer, 1)
    assert viewer.receive(HubStatus, lambda status: status.dropped > 0).dropped == len(JUNK)
    assert viewer.of(RankEnd) == []


def test_a_rank_survives_a_few_bad_frames_but_not_many(watched):
    _, rank, viewer = watched
    rank.socket.sendall(JUNK["an empty frame"])
    rank.send(replace(rank.step(1), rank=1), SETTING)  # in another's name; what only dashboards send
    assert_serves(rank, viewer, 2)
    viewer.receive(HubStatus, lambda status: status.dropped == 3)
    assert (viewer.of(StepTotals), viewer.of(Command)) == ([rank.step(2)], [])
    rank.socket.sendall(JUNK["an empty frame"] * 20)
    assert rank.is_closed_by_hub()
    assert viewer.receive(RankEnd).clean is False


def test_a_hub_that_was_stopped_goes_on_where_it_was(watched):
    record, rank, viewer = watched
    assert_serves(rank, viewer, 0)
    os.kill(record.hub_pid, signal.SIGSTOP)
    rank.send(*map(rank.step, range(1, 500)))
    assert viewer.hub.send(SETTING)
    # Longer than this timeout: to the hub it looks as if its dashboards and its ranks had been silent.
    stopped_s = time.monotonic()
    viewer.until(lambda: time.monotonic() - stopped_s > READER_TIMEOUT_S)
    os.kill(record.hub_pid, signal.SIGCONT)
    viewer.receive(StepTotals, lambda totals: totals.step == 499)
    assert [totals.step for totals in viewer.of(StepTotals)] == list(range(500))
    viewer.await_statuses(2)
    assert not viewer.of(HubStatus)[-1].silent_ranks
    # No command is passed on that may have waited for long.
    kinds = [type(message) for message in viewer.messages if isinstance(message, Welcome | Command)]
    assert kinds == [Welcome]
    viewer.ask(other := commands.make_setting(BUCKET_CAP_MB, 60))
    assert rank.next_command().id == other.id


def test_dashboards_that_come_and_go_leave_nothing_behind(hubs, watched, make_viewer):
    record, rank, viewer = watched
    eventually(lambda: hubs.record().rank_pids)  # it writes no file after that

    def descriptors():
        return len(list(Path(f"/proc/{record.hub_pid}/fd").iterdir()))

    before = descriptors()
    for number in range(20):
        passer_by = make_viewer()
        passer_by.hub.watch([0])
        rank.send(rank.step(number))
        passer_by.receive(StepTotals, lambda totals, number=number: totals.step == number)
        passer_by.close()
    assert_serves(rank, viewer, 20)
    assert {totals.step for totals in viewer.of(StepTotals)} == set(range(21))
    eventually(lambda: descriptors() == before)
    assert_is_quiet(record.hub_pid)


def test_hub_without_descriptors_accepts_the_rank_later(watched, make_rank):
    record, first, viewer = watched
    soft, hard = resource.prlimit(record.hub_pid, resource.RLIMIT_NOFILE)
    used = {int(path.name) for path in Path(f"/proc/{record.hub_pid}/fd").iterdir()}
    lowest_free = min(set(range(len(used) + 1)) - used)
    resource.prlimit(record.hub_pid, resource.RLIMIT_NOFILE, (lowest_free, hard))
    late = make_rank(1).greet()
    assert_is_quiet(record.hub_pid)
    assert_serves(first, viewer, 1)
    resource.prlimit(record.hub_pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert late.next_watch() is False
    viewer.receive(RankInfo, lambda info: info.rank == 1)
    assert_serves(first, viewer, 2)


def test_dashboard_too_many_waits_until_another_has_gone(hubs, make_viewer):
    hubs.start()
    others = [make_viewer() for _ in range(MAX_DASHBOARDS)]
    for viewer in others:
        viewer.receive(Welcome)
    late = make_viewer()
    assert late.receive(TurnedAway).reason == "64 dashboards watch this job: close one of them"
    assert late.of(Welcome) == []
    others[0].close()
    late.receive(Welcome)


STRANGER = 54_321


@pytest.fixture
def strangers_socket(socket_dir):
    """``strangers_socket(name)``: a socket in the job's folder, on which the stranger listens."""
    if os.geteuid():
        pytest.skip("only root can listen as another user")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:

        def listen(name):
            listener.bind(str(job_dir(KEY, create=True) / name))
            os.seteuid(STRANGER)  # the system notes the user in listen()
            try:
                listener.listen()
            finally:
                os.seteuid(0)
            return listener

        yield listen


def test_a_rank_tells_nothing_to_another_users_hub(strangers_socket, caplog):
    strangers_socket("ranks.sock")
    sender = Sender(RankPlacement(KEY, 0, 0, 1, "h", starts_hub=False), "train.py")
    sender.introduce(info())
    eventually(lambda: sender.pump() or caplog.text)
    assert f"uid {STRANGER}, not you, listens on the job's socket" in caplog.text
    assert sender.connections == 0


def test_a_dashboard_joins_no_hub_of_another_user(strangers_socket):
    strangers_socket("dash-1.sock")
    with pytest.raises(JobFolderError, match=f"uid {STRANGER}, not you, listens on the job's socket"):
        LocalHubConnection(record(KEY, dashboard_socket="dash-1.sock"))


def test_every_file_and_socket_of_a_job_is_closed_to_others(watched, socket_dir):
    """Also while their folder is open to others, by mistake."""
    _, rank, viewer = watched
    rank.send(rank.step(1), KnobFacts(0, (BUCKET_CAP_MB,)))
    viewer.receive(StepTotals)
    command = viewer.ask(SETTING)
    rank.answer(rank.next_command())
    viewer.outcome_of(command)
    found = list(socket_dir.rglob("*"))
    assert sum(path.is_socket() for path in found) == 3
    assert {path.name for path in found} >= {"job.json", "hub.log", "changes.jsonl"}
    assert not any(stat.S_IMODE(path.stat().st_mode) & 0o077 for path in found)
