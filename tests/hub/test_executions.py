"""What becomes of a command on a node, from its ranks' words, and the line that the hub logs of it."""

import time

import msgpack
import pytest
import zmq
from msgspec.structs import replace

from overlaptop.hub.executions import (
    ANSWER_S,
    END_S,
    CommandExecutions,
    CommandProgress,
    logged_state,
    merged,
)
from overlaptop.jobs import change_log
from overlaptop.wire import commands
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.commands import ENDED, SILENT, Command, CommandOutcome, CommandReport
from overlaptop.wire.joining import Join
from overlaptop.wire.knobs import KnobFacts
from overlaptop.wire.messages import HubStatus, RankEnd
from overlaptop.wire.protocol import PROTOCOL_VERSION
from tests.fleet.builders import BUCKET_CAP_MB, info
from tests.processes import eventually
from tests.wire.examples import row_of

SETTING = commands.make_setting(BUCKET_CAP_MB, 50)
CAPTURE = commands.make(commands.CAPTURE, {"steps": 5})


class Node:
    """CommandExecutions of a hub with one command, and how it ended each time."""

    def __init__(self, command=SETTING, ranks=(0, 1)):
        self.command, self.ended = command, []
        self.executions = CommandExecutions(lambda each: self.ended.append(each.published))
        self.executions.receive(info(1, pid=41), 0.0)
        self.executions.begin(command, ranks, 0.0)
        self.executions.settle()

    def receive(self, message, at_s=0.0):
        self.executions.receive(message, at_s)
        self.executions.settle()

    def report(self, rank, state, text="", at_s=0.0):
        command = self.command
        self.receive(CommandReport(rank, command.id, command.name, 1, state, None, text), at_s)

    def tick(self, at_s):
        self.executions.tick(at_s)
        self.executions.settle()

    @property
    def outcome(self):
        (only,) = self.ended
        return only.stage, only.reason


@pytest.mark.parametrize(
    ("state", "patience_s", "command"),
    [
        ("sent", ANSWER_S, SETTING),
        ("agreed", END_S, SETTING),
        ("trying", 6 * END_S, commands.make_trial(BUCKET_CAP_MB, 50, 14)),
    ],
)
def test_silent_rank_is_given_up_the_later_the_longer_it_may_take(state, patience_s, command):
    node = Node(command)
    node.report(0, "tried" if state == "trying" else "changed")
    if state != "sent":
        node.report(1, state)
    node.tick(patience_s)
    assert node.ended == []
    node.tick(patience_s + 1)
    assert node.outcome[1] == ("rank 1 does not answer" if state == "trying" else "rank 1 has not reported")


@pytest.mark.parametrize("lost", [RankEnd(1, 1, clean=False), info(1, pid=42)])
def test_outcome_is_unknown_once_a_rank_ends_or_is_replaced(lost):
    node = Node()
    node.report(0, "changed")
    node.receive(info(1, pid=41))
    assert node.ended == []
    node.receive(lost)
    assert node.outcome == ("unknown", "rank 1 ended before it reported")


@pytest.mark.parametrize(
    ("said", "truth"), [(("agreed", "changing", "changed"), "changed"), (("failed",), "failed")]
)
def test_a_rank_that_says_later_what_came_of_it_is_believed(said, truth):
    node = Node()
    node.report(0, "changed")
    node.report(1, "unknown", "the job's store does not answer")
    assert node.outcome == ("unknown", "rank 1 does not know: the job's store does not answer")
    for state in (*said, said[-1]):  # the last once more, to a hub that may not have received it
        node.report(1, state, "why")
    assert [each.stage for each in node.ended] == ["unknown", truth]


def test_command_fails_without_ranks_and_is_unknown_without_hub():
    assert Node(ranks=()).outcome == ("failed", "no rank is there to answer")
    node = Node()
    node.executions.close()
    assert node.outcome == ("unknown", "the hub ended first")


def test_commands_without_end_take_bounded_memory():
    node = Node()
    for _ in range(200):
        node.executions.begin(commands.make_setting(BUCKET_CAP_MB, 50), (0, 1), 0.0)
    assert {each.stage for each in node.ended} == {"unknown"}
    assert len(node.executions.replay()) + 2 * len(node.ended) == 2 * 201
    assert len(node.executions.replay()) <= 2 * 128


def test_each_permanent_change_is_logged_once_with_its_outcome(hubs, make_rank, make_viewer):
    hubs.start()
    ranks, viewer = [make_rank(number).greet() for number in (0, 1)], make_viewer()
    viewer.await_ranks(2)
    ranks[0].send(KnobFacts(0, (BUCKET_CAP_MB,)))
    foreign, trial = commands.make_setting(BUCKET_CAP_MB, 7), commands.make_trial(BUCKET_CAP_MB, 7, 20)
    began_ns = time.time_ns()
    for command, state in (
        (SETTING, "changed"),
        (commands.make_restoring(BUCKET_CAP_MB), "failed"),
        (CAPTURE, "written"),
        (trial, "tried"),
        (foreign, "refused"),
    ):
        viewer.ask(command)
        said = {"old": "25", "new": "50"} if state == "changed" else {"text": "why"}
        for rank in ranks:
            rank.answer(command, state, **said)
        viewer.outcome_of(command)
    changes = eventually(lambda: len(read := change_log.read()) == 3 and read)
    assert [(change.outcome, change.old, change.new, change.reason) for change in changes] == [
        ("changed", "25", "50", ""),
        ("failed", "25", "25", "rank 0 failed: why"),
        ("refused", "25", "7", "rank 0 refused: why"),
    ]
    first = changes[0]
    assert began_ns <= first.at_ns + 1_000_000 <= time.time_ns() + 1_000_000
    assert (first.job, first.script, first.host) == ("job-1", "train.py", hubs.record().host)
    assert (first.by, first.knob, first.step) == (SETTING.by, "bucket_cap_mb", 7)


def played(command, *events, ranks=(0, 1)):
    """A rank and what happened to it: a state and perhaps a text that it reports, or how it was lost."""
    execution = CommandProgress.begin(command, ranks)
    for rank, state, *text in events:
        if state in (ENDED, SILENT):
            execution.lose(rank, state)
        else:
            step = 40 if state not in ("accepted", "refused", "busy", "failed", "unknown") else None
            made = CommandReport(rank, command.id, command.name, 1, state, step, "".join(text))
            execution.report(replace(made, old="25", new="50") if state == "changed" else made)
    return execution.outcome()


def test_a_command_is_at_the_stage_of_its_slowest_rank():
    events, before = [], "sent"
    for state in ("accepted", "agreed", "recording", "writing", "written"):
        events.append((0, state))
        assert (played(CAPTURE, *events).stage, played(CAPTURE, *events).done) == (before, False)
        events.append((1, state))
        before = state
    outcome = played(CAPTURE, *events)
    assert (outcome.stage, outcome.done, outcome.step, outcome.reason) == ("written", True, 40, "")
    assert logged_state(played(SETTING, (0, "failed", ""), (1, "refused", ""))) == "refused"


CHANGED, NOT_REPORTED = (0, "changed"), "rank 1 has not reported"
NOT_DONE = "rank 0 ended before it was done"
ONLY = "changed on rank 0 only: rank 1 failed: no"


@pytest.mark.parametrize(
    ("command", "events", "state", "reason", "done"),
    [
        # One rank that does not do it fails the whole, and is named.
        (CAPTURE, [(0, "accepted"), (1, "refused", "no")], "failed", "rank 1 refused: no", False),
        (CAPTURE, [(0, "accepted"), (1, "busy", "no")], "failed", "rank 1 is busy: no", False),
        (SETTING, [CHANGED, (1, "failed", "no")], "failed", ONLY, True),
        # A text about another rank names the cause.
        (CAPTURE, [(0, "failed", "a"), (1, "failed", "rank 0 left")], "failed", "rank 0 left", True),
        # A lost rank fails a capture.
        (CAPTURE, [(0, "accepted"), (1, SILENT)], "failed", "rank 1 does not answer", False),
        (CAPTURE, [(0, "written"), (1, "written"), (1, ENDED)], "written", "", True),
        # A lost rank may have made a change, unless all ended before they had agreed.
        (SETTING, [CHANGED, (1, "agreed"), (1, ENDED)], "unknown", "rank 1 ended before it reported", True),
        (SETTING, [(0, "accepted"), (1, SILENT)], "unknown", NOT_REPORTED, False),
        (SETTING, [(0, "accepted"), (1, ENDED), (0, ENDED)], "failed", NOT_DONE, True),
        # A rank that cannot learn what was decided, or was lost, may report later.
        (SETTING, [CHANGED, (1, "unknown", "a"), (1, "agreed")], "agreed", "", False),
        (SETTING, [CHANGED, (1, "agreed"), (1, ENDED), (1, "changed")], "changed", "", True),
        # A late report never reverts a newer one.
        (SETTING, [CHANGED, (1, "changing"), (1, SILENT), (1, "agreed")], "changing", "", False),
    ],
)  # fmt: skip
def test_what_becomes_of_a_command(command, events, state, reason, done):
    outcome = played(command, *events)
    assert (outcome.stage, outcome.reason, outcome.done) == (state, reason, done)


def on_two_hubs(first, second, unreachable=None, command=SETTING):
    outcomes = [played(command, *first), played(command, *second, ranks=(2, 3))]
    return merged(command, outcomes, unreachable or {})


@pytest.mark.parametrize(("state", "done"), [("agreed", False), ("changed", True)])
def test_the_slowest_rank_of_any_hub_counts(state, done):
    outcome = on_two_hubs([CHANGED, (1, "changed")], [(2, "changed"), (3, state)])
    assert (outcome.stage, outcome.done, outcome.step) == (state, done, 40)
    assert (outcome.old, outcome.new) == ("25", "50")


@pytest.mark.parametrize(
    ("command", "state", "final"), [(SETTING, "unknown", "changed"), (CAPTURE, "failed", "written")]
)
def test_unreachable_ranks_are_unknown_unless_they_had_reported(command, state, final):
    away = dict.fromkeys((2, 3), "rank 2 is on gpu-b")
    outcome = on_two_hubs([(0, final), (1, final)], [(2, "agreed"), (3, final)], away, command)
    assert (outcome.stage, outcome.reason, outcome.done) == (state, "rank 2 is on gpu-b", True)
    assert [each.state for each in outcome.ranks] == [final, final, state, final]


def test_hubs_without_ranks_have_failed_once_all_have_said_so():
    nobody = played(SETTING, ranks=())
    awaited = replace(nobody, state="sent", reason="", done=False)
    assert merged(SETTING, [nobody, awaited], {}) == awaited
    assert merged(SETTING, [nobody, nobody], {}) == nobody


def capture(**changes):
    return replace(commands.make(commands.CAPTURE, {"steps": 5}), **changes)


def test_command_and_outcome_reach_ranks_and_dashboards_once(hubs, make_rank, make_viewer):
    hubs.start()
    ranks = [make_rank(0).greet(), make_rank(1).greet()]
    asking, watching = make_viewer(), make_viewer()
    assert asking.hub.send(capture()) is False  # the hub has not answered yet
    for viewer in (asking, watching):
        viewer.await_ranks(2)
    before_ns = time.time_ns()
    command, other = capture(at_ns=12345), capture()
    for each in (command, command, other):
        assert asking.hub.send(each)
        asking.poll()
    received = {rank.next_command() for rank in ranks}
    for viewer in (asking, watching):
        received.add(viewer.receive(Command))
        viewer.receive(Command, lambda each: each.id == other.id)
        assert [each.id for each in viewer.of(Command)] == [command.id, other.id]
    (same,) = received
    assert replace(same, at_ns=12345) == command
    assert before_ns <= same.at_ns <= time.time_ns()  # by the hub's clock, not the asker's
    for rank in ranks:
        rank.answer(command, "written", text="/there/rank.json.gz")
    late = make_viewer()
    for viewer in (asking, watching, late):
        assert [each.text for each in viewer.outcome_of(command).ranks] == ["/there/rank.json.gz"] * 2
    kinds = [type(message) for message in late.messages]
    assert kinds.index(Command) < kinds.index(CommandOutcome)


def test_malformed_commands_are_counted_and_go_no_further(hubs, make_rank, make_viewer):
    record = hubs.start()
    rank = make_rank(0).greet()
    rank.next_watch()
    good = capture()
    bad = [
        row_of(good, name="exec"), row_of(good, arguments=[["steps", 10_000]]),
        row_of(good, id="../../../tmp/x"), msgpack.packb([10]), b"\xc1", encode(rank.step(0)),
    ]  # fmt: skip
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.rcvtimeo = 0, 20_000
        dealer.connect(f"ipc://{record.dashboard_path}")
        dealer.send(encode(capture()))  # it has not joined
        dealer.send(encode(Join(PROTOCOL_VERSION, (), window_bytes=1 << 20)))
        dealer.send_multipart([b"a", b"b", b"c"])
        for payload in (*bad, encode(good)):
            dealer.send(payload)
        assert rank.next_command().id == good.id  # the first that comes, and the rank is still there
        statuses = []
        while not statuses or statuses[-1].dropped <= len(bad):
            received = map(decode, dealer.recv_multipart())
            statuses += [message for message in received if isinstance(message, HubStatus)]
    viewer = make_viewer()
    viewer.receive(HubStatus)
    assert [each.id for each in viewer.of(Command)] == [good.id]
