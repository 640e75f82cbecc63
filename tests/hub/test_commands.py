"""What a job may be told, and how that gets from a dashboard through the hub to every rank and back."""

from __future__ import annotations

import os
import signal
import time

import msgpack
import pytest
import zmq
from msgspec.structs import replace

from overlaptop.wire import commands
from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.commands import Command, CommandOutcome
from overlaptop.wire.knobs import Knob
from overlaptop.wire.messages import HubStatus, Join, Welcome
from overlaptop.wire.protocol import PROTOCOL_VERSION
from tests.fleet.builders import BUCKET_CAP_MB


def capture(steps=5, **changes):
    return replace(commands.make(commands.CAPTURE, {"steps": steps}), **changes)


@pytest.mark.parametrize("steps", [1, 5, 100])
def test_a_command_within_bounds_is_made_and_has_no_fault(steps):
    command = commands.make(commands.CAPTURE, {"steps": steps})
    assert command.inconsistency() == ""
    assert commands.argument(command, "steps") == steps
    assert commands.in_words(command) == f"capture (steps {steps})"
    assert "pid" in command.by


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("capture", {"steps": 0}, "from 1 to 100, not 0"),
        ("capture", {"steps": 101}, "from 1 to 100, not 101"),
        ("capture", {}, "takes exactly: steps"),
        ("capture", {"steps": 1, "folder": 2}, "takes exactly: steps"),
        ("exec", {"steps": 1}, "there is no such command"),
    ],
)
def test_a_command_that_is_not_allowed_is_not_made(name, arguments, words):
    with pytest.raises(ValueError, match=words):
        commands.make(name, arguments)


def test_every_command_has_an_id_of_its_own_that_is_fit_for_a_folder():
    ids = {capture().id for _ in range(200)}
    assert len(ids) == 200
    assert all(set(key) <= set("0123456789abcdef-") for key in ids)


def test_a_command_reaches_every_rank_and_every_dashboard(hubs, make_rank, make_viewer):
    hubs.start()
    ranks = [make_rank(0).greet(), make_rank(1).greet()]
    asking, watching = make_viewer(), make_viewer()
    for viewer in (asking, watching):
        viewer.hear_ranks(2)
    before_ns = time.time_ns()
    command = capture(at_ns=12345)
    assert asking.link.send(command)
    heard = {rank.next_command() for rank in ranks}
    for viewer in (asking, watching):
        heard.add(viewer.hear(Command))
    (same,) = heard
    assert replace(same, at_ns=12345) == command
    assert before_ns <= same.at_ns <= time.time_ns()  # by the hub's clock, not the asker's
    for rank in ranks:
        rank.answer(command, "accepted")
    for viewer in (asking, watching):
        assert (
            viewer.hear(CommandOutcome, lambda outcome: outcome.state == "accepted").command == command.id
        )


def test_a_late_dashboard_gets_the_command_and_its_outcome(hubs, make_rank, make_viewer):
    hubs.start()
    rank = make_rank(0).greet()
    first = make_viewer()
    first.hear_ranks(1)
    command = capture()
    assert first.link.send(command)
    rank.next_command()
    rank.answer(command, "accepted")
    rank.answer(command, "written", text="/there/rank0.json.gz")
    first.hear_end(command)
    late = make_viewer()
    assert [each.text for each in late.hear_end(command).ranks] == ["/there/rank0.json.gz"]
    assert late.of(Command)[0].id == command.id
    kinds = [type(message) for message in late.messages]
    assert kinds.index(Command) < kinds.index(CommandOutcome)


def test_the_same_command_sent_twice_is_passed_on_once(hubs, make_rank, make_viewer):
    hubs.start()
    rank = make_rank(0).greet()
    viewer = make_viewer()
    viewer.hear_ranks(1)
    command, other = capture(), capture()
    for each in (command, command, other):
        assert viewer.link.send(each)
        viewer.poll()
    viewer.hear(Command, lambda heard: heard.id == other.id)
    assert rank.next_command().id == command.id
    assert [heard.id for heard in viewer.of(Command)] == [command.id, other.id]


def test_what_is_not_allowed_does_not_leave_the_dashboard(hubs, make_viewer):
    hubs.start()
    viewer = make_viewer()
    viewer.hear(Welcome)
    with pytest.raises(WireError, match="from 1 to 100"):
        viewer.link.send(replace(capture(), arguments=(replace(capture().arguments[0], value=1000),)))


def test_nothing_is_sent_before_the_hub_has_answered(hubs, make_viewer):
    hubs.start()
    assert make_viewer().link.send(capture()) is False


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
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(f"ipc://{record.dashboard_path}")
    yield dealer, rank
    dealer.close()
    context.term()


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
        said = [decode(part) for part in dealer.recv_multipart()]
        if any(isinstance(message, HubStatus) and message.dropped >= len(bad) for message in said):
            break
    viewer = make_viewer()
    viewer.hear(HubStatus, lambda status: status.ranks_connected == 1)
    assert [heard.id for heard in viewer.of(Command)] == [good.id]


@pytest.mark.parametrize("join", [None, Join(PROTOCOL_VERSION - 1, ())])
def test_who_has_not_joined_or_speaks_another_protocol_commands_nothing(stranger, make_viewer, join):
    dealer, _ = stranger
    if join is not None:
        dealer.send(encode(join))
    dealer.send(encode(capture()))
    viewer = make_viewer()
    viewer.hear_ranks(1)
    allowed = capture()
    viewer.ask(allowed)
    assert [heard.id for heard in viewer.of(Command)] == [allowed.id]


def test_a_rank_cannot_command_others(hubs, make_rank, make_viewer):
    hubs.start()
    rank = make_rank(0).greet()
    viewer = make_viewer()
    viewer.hear_ranks(1)
    rank.send(capture())
    viewer.hear(HubStatus, lambda status: status.dropped == 1)
    assert viewer.of(Command) == []


def test_a_hub_that_stood_still_passes_nothing_on_that_waited_meanwhile(hubs, make_rank, make_viewer):
    record = hubs.start()
    rank = make_rank(0).greet()
    viewer = make_viewer()
    viewer.hear_ranks(1)
    os.kill(record.hub_pid, signal.SIGSTOP)
    old, new = capture(), capture()
    assert viewer.link.send(old)
    time.sleep(2.5)  # longer than the hub's own tick explains
    os.kill(record.hub_pid, signal.SIGCONT)
    viewer.hear_statuses(3)
    assert viewer.link.send(new)
    assert rank.next_command().id == new.id
    assert [heard.id for heard in viewer.of(Command)] in ([], [new.id])


def test_a_rank_that_does_not_read_holds_up_no_other_and_gets_the_newest_commands(
    hubs, make_rank, make_viewer
):
    hubs.start()
    blocked, listening = make_rank(0).greet(), make_rank(1).greet()
    viewer = make_viewer()
    viewer.hear_ranks(2)
    sent = [capture() for _ in range(3)]
    for command in sent:
        viewer.ask(command)
        assert listening.next_command().id == command.id
    assert blocked.next_command().id == sent[0].id


KNOB = Knob("accumulation", 4, "4", "4", 1, 8, choices=(1, 2, 4, 8))


def test_a_change_names_its_knob_and_goes_no_further_than_the_knob_allows():
    command = commands.make_setting(BUCKET_CAP_MB, 50)
    assert (command.name, command.knob, commands.argument(command, "value")) == ("set", "bucket_cap_mb", 50)
    assert commands.in_words(command) == "set bucket_cap_mb 50"
    for least_or_most in (1, 10_000):
        command = commands.make_setting(BUCKET_CAP_MB, least_or_most)
        assert decode(encode(command)) == command
    restoring = commands.make_restoring(KNOB, search=command.id)
    assert (commands.in_words(restoring), restoring.search) == ("restore accumulation", command.id)


@pytest.mark.parametrize(
    ("knob", "value", "words"),
    [
        (BUCKET_CAP_MB, 0, "bucket_cap_mb must be from 1 to 10000, not 0"),
        (BUCKET_CAP_MB, 10_001, "bucket_cap_mb must be from 1 to 10000, not 10001"),
        (KNOB, 3, "accumulation must be one of 1, 2, 4, 8, not 3"),
        (replace(BUCKET_CAP_MB, name="b" * 65), 5, "cannot be a knob's name"),
        (replace(BUCKET_CAP_MB, name="os.system"), 5, "cannot be a knob's name"),
    ],
)
def test_what_cannot_be_set_is_said(knob, value, words):
    with pytest.raises(ValueError, match=words):
        commands.make_setting(knob, value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"knob": ""}, "cannot be a knob's name"),
        ({"knob": "a b"}, "cannot be a knob's name"),
        ({"search": "../etc"}, "Command.search"),
        ({"name": "restore"}, "restore takes exactly: no argument"),
        ({"name": "capture"}, "capture is not about a knob"),
    ],
)
def test_the_codec_lets_no_other_change_through(changes, words):
    with pytest.raises(WireError, match=words):
        encode(replace(commands.make_setting(BUCKET_CAP_MB, 50), **changes))
