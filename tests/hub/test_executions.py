"""What becomes of a command on a node, from its ranks' words, and the line that the hub logs of it."""

import time

import pytest
from msgspec.structs import replace

from overlaptop.hub.executions import ANSWER_S, END_S, CommandExecutions
from overlaptop.jobs import change_log
from overlaptop.wire import commands
from overlaptop.wire.codec import decode, encode, frame
from overlaptop.wire.commands import CommandReport
from overlaptop.wire.knobs import KnobFacts
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import BUCKET_CAP_MB, info
from tests.processes import eventually

SETTING = commands.make_setting(BUCKET_CAP_MB, 50)


class Node:
    """CommandExecutions of a hub, and how each command ended."""

    def __init__(self, path):
        self.ended = []
        self.published = []
        self.executions = CommandExecutions(self.on_end, path, 0.0)

    def on_end(self, each):
        self.ended.append((each.command, each.published))

    def settle(self):
        self.published += map(decode, self.executions.settle())

    def begin(self, command=SETTING, ranks=(0, 1)):
        self.executions.begin(command, ranks, 0.0)
        self.settle()

    def receive(self, message, at_s=0.0):
        self.executions.receive(message, at_s)
        self.settle()

    def report(self, rank, state, text="", at_s=0.0, **said):
        report = CommandReport(rank, said.pop("command", SETTING).id, "set", 1, state, None, text)
        self.receive(replace(report, **said), at_s)

    def tick(self, at_s):
        self.executions.tick(at_s)
        self.settle()

    @property
    def under_way(self):
        return self.executions.under_way

    @property
    def outcome(self):
        ((_, only),) = self.ended
        return only.stage, only.reason


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path / "commands.msgpack")


def test_outcome_is_unknown_once_a_rank_ends_or_is_silent(tmp_path):
    ended, silent, hangs = (Node(tmp_path / name) for name in "abc")
    for node in (ended, silent, hangs):
        node.begin()
        node.report(0, "changed")
    ended.receive(RankEnd(1, 1, clean=False))
    assert ended.outcome == ("unknown", "rank 1 ended before it reported")

    silent.tick(ANSWER_S)
    assert silent.ended == []
    silent.tick(ANSWER_S + 1)
    assert silent.outcome == ("unknown", "rank 1 has not reported")

    hangs.report(1, "agreed", at_s=5.0)
    hangs.tick(END_S)
    assert hangs.ended == []
    hangs.tick(END_S + 6)
    assert hangs.outcome == ("unknown", "rank 1 has not reported")


@pytest.mark.parametrize(
    ("said", "truth"),
    [(("changed",), "changed"), (("agreed", "changing", "changed"), "changed"), (("failed",), "failed")],
)
def test_a_rank_that_says_later_what_came_of_it_is_believed(node, said, truth):
    node.begin()
    node.report(0, "changed", step=7, old="25", new="50")
    node.report(1, "unknown", "the job's store does not answer")
    assert node.outcome == ("unknown", "rank 1 does not know: the job's store does not answer")
    for state in said:
        node.report(1, state, "why")
    (_, first), (_, second) = node.ended
    assert (first.stage, second.stage) == ("unknown", truth)
    node.report(1, said[-1], "why")  # said again, to a hub that may not have received it
    assert len(node.ended) == 2


def test_trial_of_long_steps_is_waited_for(node):
    trial = commands.make_trial(BUCKET_CAP_MB, 50, 14)
    node.begin(trial)
    for rank in (0, 1):
        node.report(rank, "trying", command=trial, name="trial")
    node.tick(2 * END_S)
    assert node.ended == []


def test_replaced_process_of_a_rank_is_not_waited_for(node):
    node.receive(info(1, pid=41))
    node.begin()
    node.report(0, "changed")
    node.receive(info(1, pid=41))
    assert node.ended == []
    node.receive(info(1, pid=42))
    assert node.outcome == ("unknown", "rank 1 ended before it reported")


def test_next_hub_continues_the_commands_under_way(tmp_path):
    path = tmp_path / "commands.msgpack"
    first = Node(path)
    done, restoring = SETTING, commands.make_restoring(BUCKET_CAP_MB)
    for command in (done, restoring, commands.make(commands.CAPTURE, {"steps": 1})):
        first.begin(command)
    for rank in (0, 1):
        first.report(rank, "changed", command=done)
    second = Node(path)
    assert second.under_way[0] == restoring
    second.report(0, "changed", command=restoring, old="50", new="25", step=9)
    assert second.ended == []
    second.report(1, "changed", command=restoring, old="50", new="25", step=9)
    ((command, ended),) = second.ended
    assert (command, ended.stage, ended.old, ended.new) == (restoring, "changed", "50", "25")


@pytest.mark.parametrize(
    "data",
    [b"", b"[3]", frame(b"\xc1"), frame(encode(SETTING))],
    ids=["empty", "cut off", "no message", "no outcome"],
)
def test_unusable_file_of_commands_is_skipped(tmp_path, data):
    (tmp_path / "commands.msgpack").write_bytes(data)
    assert Node(tmp_path / "commands.msgpack").under_way == ()


def test_command_fails_without_ranks_and_is_unknown_without_hub(node, tmp_path):
    node.begin(ranks=())
    assert node.outcome == ("failed", "no rank is there to answer")
    other = Node(tmp_path / "other.json")
    other.begin()
    other.executions.close()
    assert other.outcome == ("unknown", "the hub ended first")


def test_commands_without_end_take_bounded_memory(node):
    for _ in range(200):
        node.begin(commands.make_setting(BUCKET_CAP_MB, 50))
    assert len(node.under_way) <= 64
    assert {ended.stage for _, ended in node.ended} == {"unknown"}
    assert len(node.executions.replay()) <= 2 * 128


# The hub as a process


@pytest.fixture
def job(hubs, make_rank, make_viewer):
    hubs.start()
    ranks = [make_rank(number).greet() for number in (0, 1)]
    viewer = make_viewer()
    viewer.await_ranks(2)
    return ranks, viewer


def test_each_permanent_change_is_logged_once_with_its_outcome(job, hubs):
    ranks, viewer = job
    began_ns = time.time_ns()
    ranks[0].send(KnobFacts(0, (BUCKET_CAP_MB,)))
    good, bad = SETTING, commands.make_restoring(BUCKET_CAP_MB)
    foreign = commands.make_setting(BUCKET_CAP_MB, 7)
    capture = commands.make(commands.CAPTURE, {"steps": 1})
    trial = commands.make_trial(BUCKET_CAP_MB, 7, 20)
    others = (capture, "written"), (trial, "tried")
    for command, state in ((good, "changed"), (bad, "failed"), *others, (foreign, "refused")):
        viewer.ask(command)
        for rank in ranks:
            said = {"old": "25", "new": "50"} if state == "changed" else {"text": "why"}
            rank.answer(command, "accepted")
            rank.answer(command, state, **said)
        viewer.outcome_of(command)
    changes = eventually(lambda: len(read := change_log.read()) == 3 and read)
    assert [change.outcome for change in changes] == ["changed", "failed", "refused"]
    assert [(change.old, change.new) for change in changes] == [("25", "50"), ("25", "25"), ("25", "7")]
    first, second, third = changes
    assert began_ns <= first.at_ns + 1_000_000 <= time.time_ns() + 1_000_000
    assert (first.job, first.script, first.host) == ("job-1", "train.py", hubs.record().host)
    assert (first.by, first.knob, first.step) == (good.by, "bucket_cap_mb", 7)
    assert (second.reason, third.reason) == ("rank 0 failed: why", "rank 0 refused: why")
