"""How a command gets from a dashboard through the hub to every rank and back."""

import socket
import time

import msgpack
import pytest
import zmq
from msgspec.structs import replace

from overlaptop.wire import commands
from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.commands import Command, CommandOutcome
from overlaptop.wire.joining import Join
from overlaptop.wire.messages import HubStatus
from overlaptop.wire.protocol import PROTOCOL_VERSION
from tests.wire.examples import row_of


def capture(**changes):
    return replace(commands.make(commands.CAPTURE, {"steps": 5}), **changes)


def test_command_and_outcome_reach_ranks_and_dashboards_once(hubs, make_rank, make_viewer):
    hubs.start()
    ranks = [make_rank(0).greet(), make_rank(1).greet()]
    asking, watching = make_viewer(), make_viewer()
    assert asking.hub.send(capture()) is False  # the hub has not answered yet
    for viewer in (asking, watching):
        viewer.await_ranks(2)
    with pytest.raises(WireError, match="from 1 to 100"):
        asking.hub.send(capture(arguments=(replace(capture().arguments[0], value=1000),)))
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
        rank.answer(command, "accepted")
    for viewer in (asking, watching):
        outcome = viewer.receive(CommandOutcome, lambda outcome: outcome.stage == "accepted")
        assert outcome.command == command.id
    for rank in ranks:
        rank.answer(command, "written", text="/there/rank.json.gz")
    asking.outcome_of(command)
    late = make_viewer()
    assert [each.text for each in late.outcome_of(command).ranks] == ["/there/rank.json.gz"] * 2
    kinds = [type(message) for message in late.messages]
    assert kinds.index(Command) < kinds.index(CommandOutcome)


def test_malformed_commands_are_counted_and_go_no_further(hubs, make_rank, make_viewer):
    record = hubs.start()
    rank = make_rank(0).greet()
    rank.next_watch()
    good = capture()
    bad = [
        row_of(good, name="exec"), row_of(good, arguments=[["steps", 10_000]]), row_of(good, arguments=[]),
        row_of(good, arguments=[["steps", 1], ["path", 2]]), row_of(good, id="../../../tmp/x"),
        row_of(good, by="x" * 1000), row_of(good, at_ns="now"), msgpack.packb([10]), b"\xc1",
        encode(rank.step(0)),
    ]  # fmt: skip
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.connect(str(record.dashboard_path))
        raw.sendall(b"\0" * 1000)
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
    viewer.receive(HubStatus, lambda status: status.ranks_connected == 1)
    assert [each.id for each in viewer.of(Command)] == [good.id]
