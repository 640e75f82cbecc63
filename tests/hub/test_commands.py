"""How a command gets from a dashboard through the hub to every rank and back."""

from __future__ import annotations

import time

import msgpack
import pytest
import zmq
from msgspec.structs import replace

from overlaptop.wire import commands
from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.commands import Command, CommandOutcome
from overlaptop.wire.messages import HubStatus, Join
from overlaptop.wire.protocol import PROTOCOL_VERSION


def capture(**changes):
    return replace(commands.make(commands.CAPTURE, {"steps": 5}), **changes)


def test_a_command_reaches_every_rank_and_every_dashboard_once_and_a_late_one_with_its_outcome(
    hubs, make_rank, make_viewer
):
    hubs.start()
    ranks = [make_rank(0).greet(), make_rank(1).greet()]
    asking, watching = make_viewer(), make_viewer()
    assert asking.link.send(capture()) is False  # the hub has not answered yet
    for viewer in (asking, watching):
        viewer.hear_ranks(2)
    with pytest.raises(WireError, match="from 1 to 100"):
        asking.link.send(capture(arguments=(replace(capture().arguments[0], value=1000),)))
    before_ns = time.time_ns()
    command, other = capture(at_ns=12345), capture()
    for each in (command, command, other):
        assert asking.link.send(each)
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
        outcome = viewer.receive(CommandOutcome, lambda outcome: outcome.state == "accepted")
        assert outcome.command == command.id
    for rank in ranks:
        rank.answer(command, "written", text="/there/rank.json.gz")
    asking.hear_end(command)
    late = make_viewer()
    assert [each.text for each in late.hear_end(command).ranks] == ["/there/rank.json.gz"] * 2
    kinds = [type(message) for message in late.messages]
    assert kinds.index(Command) < kinds.index(CommandOutcome)


def row(command, **changed):
    """A command's bytes with fields that no honest dashboard would send."""
    fields = ("id", "name", "arguments", "by", "at_ns")
    made = msgpack.unpackb(encode(command))
    for name, value in changed.items():
        made[1 + fields.index(name)] = value
    return msgpack.packb(made)


@pytest.fixture
def stranger(hubs, make_rank):
    """A dashboard that sends whatever it likes, and a rank."""
    record = hubs.start()
    rank = make_rank(0).greet()
    rank.hear_watch()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(f"ipc://{record.dashboard_path}")
        yield dealer, rank


def test_the_hub_passes_no_malformed_command_on_and_counts_it(stranger, make_viewer):
    dealer, rank = stranger
    dealer.send(encode(Join(PROTOCOL_VERSION, ())))
    good = capture()
    bad = [
        row(good, name="exec"), row(good, arguments=[["steps", 10_000]]), row(good, arguments=[]),
        row(good, arguments=[["steps", 1], ["path", 2]]), row(good, id="../../../tmp/x"),
        row(good, by="x" * 1000), row(good, at_ns="now"), msgpack.packb([10]), b"\xc1",
    ]  # fmt: skip
    for payload in bad:
        dealer.send(payload)
    dealer.send(encode(good))
    assert rank.next_command().id == good.id  # the first that it hears, and the rank is still there
    dealer.setsockopt(zmq.RCVTIMEO, 20_000)
    while True:
        received = [decode(part) for part in dealer.recv_multipart()]
        if any(isinstance(message, HubStatus) and message.dropped >= len(bad) for message in received):
            break
    viewer = make_viewer()
    viewer.receive(HubStatus, lambda status: status.ranks_connected == 1)
    assert [each.id for each in viewer.of(Command)] == [good.id]


@pytest.mark.parametrize("join", [None, Join(PROTOCOL_VERSION - 1, ())], ids=["no join", "older protocol"])
def test_who_has_not_joined_or_speaks_another_protocol_commands_nothing(stranger, make_viewer, join):
    dealer, _ = stranger
    if join is not None:
        dealer.send(encode(join))
    dealer.send(encode(capture()))
    viewer = make_viewer()
    viewer.hear_ranks(1)
    allowed = capture()
    viewer.ask(allowed)
    assert [each.id for each in viewer.of(Command)] == [allowed.id]
