"""What a hub leaves of its job's last minutes."""

import sys
import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from overlaptop.commands.report import report_of
from overlaptop.fleet.replay_session import ReplaySession
from overlaptop.fleet.snapshot import HubState
from overlaptop.fleet.trouble import Kind, trouble_of
from overlaptop.hub import black_box
from overlaptop.hub.black_box import AGAIN_S, SETTLE_S, HubBlackBox
from overlaptop.hub.history import JobHistory
from overlaptop.jobs.hub_socket import LocalHubConnection
from overlaptop.jobs.sockets import view_socket
from overlaptop.recording import black_boxes, writer
from overlaptop.recording.reader import open_recording
from overlaptop.wire.codec import encode
from overlaptop.wire.messages import Found, GroupCalls, HubStatus, IssuedCall, Notice, RankEnd, RankStalled
from tests.commands.running import run_here
from tests.fleet.builders import MS, S, detail, info, status, step, welcome
from tests.processes import eventually


class Job:
    """A history of two ranks and its black box, one second a step."""

    def __init__(self):
        self.now_s = 0.0
        self.status = status()
        self.history = JobHistory()
        self.box = HubBlackBox(welcome(), self.history, commands=list, status=lambda: self.status)
        self.say(info(0), info(1))

    def say(self, *messages):
        for message in messages:
            self.history.keep(message, encode(message), self.now_s)
            self.box.see(message, self.now_s)

    def steps(self, count):
        for number in range(count):
            self.now_s += 1
            start_ns = time.time_ns() - (count - number) * S
            for rank in (0, 1):
                made = step(rank, number), replace(detail(rank, number), step=number)
                self.say(*(replace(each, start_ns=start_ns) for each in made))
            self.box.tick(self.now_s)

    def pass_s(self, seconds):
        self.now_s += seconds
        self.box.tick(self.now_s)


@pytest.fixture
def job(socket_dir):
    socket_dir.mkdir(mode=0o700, exist_ok=True)
    return Job()


def shown(box):
    recording = open_recording(box.path)
    return ReplaySession(recording).seek(recording.last_ns)


def test_end_leaves_steps_and_timelines_of_the_last_three_minutes(job):
    job.say(Notice(0, 1, "info", "early"))
    job.steps(200)
    job.say(*(RankEnd(rank, 1, clean=True, exit_code=0) for rank in (0, 1)))
    job.status = status(ended=True)
    job.box.end(job.now_s)
    (box,) = black_boxes.found("job-1")
    snapshot = shown(box)
    assert (box.occasion, snapshot.hub_state) == ("ended", HubState.ENDED)
    assert report_of(str(box.path)).troubles == [], "the early notice makes no gap"
    assert [view.last.step for view in snapshot.ranks] == [199, 199]
    assert [view.history[0].step for view in snapshot.ranks] == [19, 19]
    assert snapshot.waits.step == 199
    assert [view.end.exit_code for view in snapshot.ranks] == [0, 0]


def test_hang_is_written_once_all_reported_and_again_when_called_one(job):
    job.steps(20)
    job.pass_s(10)
    calls = tuple(IssuedCall("allreduce_", 4, sequence, 1) for sequence in (20, 21))
    for rank, line in enumerate(("train.py:8 backward", "train.py:57 collate")):
        assert black_boxes.found() == []
        groups = (GroupCalls("pg", (0, 1), calls[: 2 - rank]),)
        job.say(RankStalled(rank, hung=True, groups=groups, stack=(line,)))
        job.pass_s(SETTLE_S / 2)
    (box,) = black_boxes.found()
    snapshot = shown(box)
    assert (box.occasion, trouble_of(snapshot).kind) == ("hung", Kind.WAITING)
    view = snapshot.ranks[1]
    assert (view.last.step, view.stalled.stack) == (19, ("train.py:57 collate",))
    box.path.unlink()
    job.say(RankStalled(1, hung=True, groups=groups))  # says so again
    job.pass_s(SETTLE_S)
    assert black_boxes.found() == []
    job.pass_s(AGAIN_S)
    (box,) = black_boxes.found()
    assert trouble_of(shown(box)).kind is Kind.HUNG
    box.path.unlink()
    job.say(*(RankStalled(rank, hung=False) for rank in (0, 1)))
    job.say(RankStalled(0, hung=True), RankStalled(0, hung=False))
    job.pass_s(SETTLE_S + AGAIN_S)
    assert black_boxes.found() == []


def test_finding_is_written_once_for_each_of_the_first_rules(job):
    job.steps(20)
    for rule in ("late_launch", "late_launch", "data_loading", "low_clock", "short_cpus", "placement"):
        job.box.ask(rule, job.now_s)
        job.pass_s(1)
    rules = ("late_launch", "data_loading", "low_clock", "short_cpus")
    assert {box.occasion for box in black_boxes.found()} == {f"found-{rule}" for rule in rules}
    assert shown(black_boxes.found()[0]).totals.step == 19
    job.say(RankEnd(1, 1, clean=True, failure="ValueError: no", exit_code=1))
    job.pass_s(SETTLE_S)
    box = black_boxes.found()[0]
    assert (box.occasion, shown(box).ranks[1].end.failure) == ("failed", "ValueError: no")


def test_read_only_reader_has_no_finding_written(hubs, make_rank, make_viewer):
    record, rank = hubs.start(), make_rank(0).greet()
    rank.send(*(step(0, each) for each in range(30)))
    viewer = make_viewer()
    viewer.close()
    viewer.hub = LocalHubConnection(
        replace(record, dashboard_socket=view_socket(record.job, record.hub_pid).name)
    )
    viewer.receive(HubStatus)
    assert viewer.hub.send(Found("late_launch"))
    viewer.receive(HubStatus, lambda status: status.dropped == 1)  # a refused one is a bad frame
    assert black_boxes.found() == []
    viewer = make_viewer()
    viewer.receive(HubStatus)
    assert viewer.hub.send(Found("late_launch"))
    (box,) = eventually(black_boxes.found)
    assert box.occasion == "found-late_launch"


def test_newest_jobs_are_kept(job, socket_dir):
    for number in range(25):
        for occasion in ("ended", "hung"):
            black_boxes.path_of(f"job-{number}", number, occasion).touch()
    stranger = socket_dir / "black_boxes" / "mine.mcap"
    stranger.touch()
    black_boxes.forget_old()
    left = [f"{each.job} {each.occasion}" for each in black_boxes.found()]
    assert left[:3] == ["job-24 ended", "job-24 hung", "job-23 ended"]
    assert (len(left), stranger.exists()) == (2 * black_boxes.KEPT_JOBS, True)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (writer, "[Errno 28] too little of the disk is left for the job"),
        (None, "import of overlaptop.recording.writer halted; None in sys.modules (pip install"),
    ],
    ids=["full disk", "without mcap"],
)
def test_black_box_that_cannot_be_written_is_logged_once(job, socket_dir, monkeypatch, module, why):
    said = []
    monkeypatch.setattr(black_box, "log_line", said.append)
    full = SimpleNamespace(f_bavail=0, f_frsize=1, f_blocks=99)
    monkeypatch.setattr(writer.os, "fstatvfs", lambda _: full)
    monkeypatch.setitem(sys.modules, "overlaptop.recording.writer", module)
    job.steps(20)
    for _ in range(2):
        job.box.end(job.now_s)
    (line,) = said
    assert line.startswith(f"no black box: {why}")
    assert black_boxes.found() == []
    assert not list(socket_dir.rglob("*.new"))


def test_hub_leaves_what_report_prints(hubs, make_rank):
    hubs.start()
    for number in (0, 1):
        rank = make_rank(number).greet()
        rank.send(*(step(number, each, start_ns=10**18 + each * 80 * MS) for each in range(30)))
        rank.close()
    eventually(black_boxes.found)
    done = run_here("report")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("train.py, 2 ranks on here: 30 steps, ran for ")
    assert "median 80.0 ms, p99 80.0 ms" in done.stdout
