"""A relay against real hubs: what comes through, what does not, and when it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop import __version__
from overlaptop.jobs.record import JobRecord, list_jobs, read_job
from overlaptop.relay.relay import Relay
from overlaptop.wire import commands
from overlaptop.wire.codec import MAX_FRAME_BYTES, encode, frame
from overlaptop.wire.commands import Command, CommandOutcome
from overlaptop.wire.knobs import GradientFacts, KnobFacts
from overlaptop.wire.messages import (
    HubStatus,
    Notice,
    RankEnd,
    RankInfo,
    StepDetail,
    StepTotals,
    Watch,
    Welcome,
)
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.relaying import (
    RelayHello,
    RelayJobs,
    RelayPing,
    RelayPong,
    RelaySelect,
    RelayStatus,
)
from tests.fleet.builders import BUCKET_CAP_MB as KNOB
from tests.hubs import KEY, Rank, hubs, made_and_closed, make_rank, make_viewer, private_sockets
from tests.processes import eventually, runs
from tests.relay.client import RelayProcess, RelayThread
from tests.wire.examples import messages, plain, row_of

__all__ = ["hubs", "make_rank", "make_viewer", "private_sockets"]  # fixtures


@pytest.fixture
def make_relay(hubs) -> Iterator[Callable[..., RelayThread]]:
    yield from made_and_closed(RelayThread)


@pytest.fixture
def make_process(hubs) -> Iterator[Callable[..., RelayProcess]]:
    yield from made_and_closed(RelayProcess)


@pytest.fixture
def make_ranks(hubs, make_rank) -> Callable[[int], list[Rank]]:
    """Starts a hub with so many ranks."""

    def make(count: int) -> list[Rank]:
        hubs.start()
        return [make_rank(number).greet() for number in range(count)]

    return make


def steps_of(client, rank=0):
    return [step.step for step in client.of(StepTotals) if step.rank == rank]


def test_it_says_who_it_is_and_which_jobs_there_are(hubs, make_process):
    record = hubs.start()
    process = make_process()
    client = process.client
    hello = client.receive(RelayHello)
    assert client.messages[0] is hello
    assert (hello.protocol, hello.version, hello.host) == (
        PROTOCOL_VERSION, __version__, socket.gethostname(),
    )  # fmt: skip
    assert (hello.pid, hello.readonly) == (process.process.pid, False)
    (job,) = client.receive(RelayJobs, lambda jobs: jobs.jobs).jobs
    assert JobRecord.of_remote(job) == replace(read_job(KEY), python="", import_path=())
    assert record.hub_pid == job.hub_pid


def test_a_job_that_is_selected_comes_as_its_hub_sends_it_history_first_and_goes_on_live(
    make_ranks, make_process, make_viewer
):
    (rank,) = make_ranks(1)
    rank.send(KnobFacts(0, (KNOB,)), GradientFacts(0, (4, 8), 2, "0", None), Notice(0, 5, "info", "hello"))
    rank.send(*(rank.step(step) for step in range(50)))
    viewer, client = make_viewer(), make_process().client
    for _ in range(2):  # selected again, its history comes again
        client.select(KEY)
        assert client.messages[0] == RelayStatus(KEY, alive=True)
        client.until(lambda: steps_of(client)[-1:] == [49])
    viewer.until(lambda: steps_of(viewer)[-1:] == [49])
    others = RelayStatus | RelayPong | RelayJobs | HubStatus
    came = [message for message in client.messages if not isinstance(message, others)]
    assert came == [message for message in viewer.messages if not isinstance(message, others)]
    assert [type(message) for message in came[:3]] == [Welcome, RankInfo, KnobFacts]
    assert steps_of(client) == list(range(50))
    rank.send(rank.step(50))
    client.until(lambda: steps_of(client)[-1:] == [50])
    rank.send(RankEnd(0, 1, clean=True))
    client.receive(RankEnd)


def test_a_command_reaches_the_ranks_and_their_words_come_back(make_ranks, make_relay):
    ranks = make_ranks(2)
    client = make_relay().client
    client.select(KEY)
    client.until(lambda: len(client.of(RankInfo)) == 2)
    command = commands.make_setting(KNOB, 50)
    client.send(command)
    for rank in ranks:
        received = rank.next_command()
        assert received.id == command.id
        rank.answer(received, was="25", becomes="50")
    outcome = client.until(lambda: [each for each in client.of(CommandOutcome) if each.done])[0]
    assert (outcome.stage, outcome.becomes) == ("changed", "50")
    assert [each.rank for each in outcome.ranks] == [0, 1]
    assert client.receive(Command).id == command.id


def test_a_command_that_is_not_allowed_is_refused_here_whatever_the_client_checked(make_ranks, make_relay):
    (rank,) = make_ranks(1)
    client = make_relay().client
    client.select(KEY)
    client.receive(RankInfo)
    refused = {
        "there is no such command": {"name": "rm"},
        "value must be from": {"arguments": (("value", 1 << 40),)},
        "cannot be a knob's name": {"knob": "os.system"},
        "Command.id": {"id": "../../x"},
    }
    for words, changed in refused.items():
        client.write(frame(row_of(commands.make_setting(KNOB, 50), **changed)))
        notice = client.receive(Notice, lambda notice, words=words: words in notice.text)
        assert notice.level == "warning"
        assert notice.text.startswith(f"relay on {socket.gethostname()}: Command")
    good = commands.make_setting(KNOB, 50)
    client.send(good)
    assert rank.next_command().id == good.id


def test_a_read_only_relay_passes_nothing_on(make_ranks, make_process):
    (rank,) = make_ranks(1)
    client = make_process("--readonly").client
    assert client.receive(RelayHello).readonly
    client.select(KEY)
    client.receive(RankInfo)
    client.send(commands.make_setting(KNOB, 50))
    notice = client.receive(Notice)
    assert notice.text.partition(": ")[2] == "set bucket_cap_mb 50: this relay is read-only"
    rank.listen()
    assert rank.commands == []


def test_a_command_that_may_have_waited_while_the_relay_stood_still_is_refused(make_ranks, make_relay):
    (rank,) = make_ranks(1)
    stands_still, was_sent = threading.Event(), threading.Event()

    def jobs():
        if stands_still.is_set():
            stands_still.clear()
            time.sleep(2.5)  # as of a process that was stopped, and of a machine that slept
            was_sent.wait(20)
        return list_jobs()

    client = make_relay(list_jobs=jobs).client
    client.select(KEY)
    client.receive(RankInfo)
    stands_still.set()
    eventually(lambda: not stands_still.is_set())
    client.send(commands.make_setting(KNOB, 50))
    was_sent.set()
    assert client.receive(Notice).text.endswith(
        "set bucket_cap_mb 50 may have waited for long: not passed on"
    )
    rank.listen()
    assert rank.commands == []


def test_without_a_job_it_answers_pings_with_its_own_clock_and_refuses_the_rest(make_relay):
    client = make_relay().client
    client.pings = False
    before_ns = time.time_ns()
    client.send(RelayPing(17), commands.make_setting(KNOB, 50), Watch(detail=True))
    pong = client.receive(RelayPong)
    assert (pong.number, pong.dropped, pong.every) == (17, 0, 1)
    assert before_ns <= pong.received_ns <= pong.sent_ns <= time.time_ns()
    client.until(lambda: len(client.of(Notice)) == 2)
    for notice, end in zip(
        client.of(Notice),
        ("set bucket_cap_mb 50: there is no job", "a Watch is not for a relay"),
        strict=True,
    ):
        assert notice.text.endswith(end)


def test_a_client_that_stops_reading_loses_steps_and_nothing_else(make_ranks, make_relay):
    ranks = make_ranks(2)
    client = make_relay().client
    client.select(KEY, 0, 1)
    client.until(lambda: len(client.of(RankInfo)) == 2 and client.of(HubStatus))
    client.messages.clear()
    for turn in range(60):  # some 2 MB, into a pipe that nobody reads
        for rank in ranks:
            steps = range(turn * 300, turn * 300 + 300)
            rank.send(*(rank.step(step) for step in steps), rank.detail(steps[-1]))
            rank.send(Notice(rank.rank, turn, "info", f"turn {turn} of rank {rank.rank}"))
        client.send(RelayPing(turn, client.received_bytes))
        time.sleep(0.01)
    last = 60 * 300 - 1
    client.until(lambda: len(client.of(Notice)) == 120)
    dropped = client.receive(RelayPong, lambda pong: pong.dropped > 0)
    assert dropped.every > 1
    for rank in range(2):
        notices = [notice.at_ns for notice in client.of(Notice) if notice.rank == rank]
        assert notices == list(range(60))
        steps = steps_of(client, rank)
        assert steps == sorted(set(steps))
        assert len(steps) < last
    assert client.receive(StepDetail, lambda detail: detail.step == last)


def test_one_job_after_another_can_be_selected(hubs, make_rank, make_relay):
    client = make_relay().client
    for key in (KEY, "job-2"):
        hubs.start(key=key)
        rank = make_rank(key=key).greet()
        rank.send(Notice(0, 1, "info", f"this is {key}"))
    for key in ("job-2", KEY):
        client.select(key)
        assert client.receive(Welcome).job == key
        assert client.receive(Notice).text == f"this is {key}"
        client.receive(HubStatus)
        assert {notice.text for notice in client.of(Notice)} == {f"this is {key}"}
    client.messages.clear()
    client.send(RelaySelect(""))
    client.settle()
    client.messages.clear()
    rank.send(Notice(0, 1, "info", "nobody listens"))
    client.receive(RelayJobs)
    assert client.of(Notice) == []


def test_a_job_that_begins_after_it_was_selected_is_joined_and_its_end_told(hubs, make_rank, make_relay):
    client = make_relay().client
    client.send(RelaySelect(KEY))
    assert client.receive(RelayStatus) == RelayStatus(KEY, alive=False, gone=True)
    hubs.start("--linger-s", "0.05")
    rank = make_rank().greet()
    client.receive(RelayStatus, lambda status: status.alive)
    client.receive(RankInfo)
    client.messages.clear()
    rank.send(RankEnd(0, 1, clean=True))
    rank.close()
    client.receive(RankEnd)
    client.receive(RelayStatus, lambda status: not status.alive)
    client.receive(RelayJobs, lambda jobs: jobs.jobs == ())


def test_a_hub_that_is_killed_and_replaced_is_joined_when_it_is_selected_again(hubs, make_rank, make_relay):
    first = hubs.start()
    make_rank().greet()
    client = make_relay().client
    client.select(KEY)
    client.receive(RankInfo)
    os.kill(first.hub_pid, signal.SIGKILL)
    # This process, which asked for the hub, lives on: it could start another.
    assert client.receive(RelayStatus, lambda status: not status.alive) == RelayStatus(
        KEY, alive=False, gone=False
    )
    eventually(lambda: not runs(first.hub_pid))
    second = hubs.start()
    make_rank().greet()
    client.receive(RelayJobs, lambda jobs: [job.hub_pid for job in jobs.jobs] == [second.hub_pid])
    client.select(KEY)
    client.receive(RankInfo)


def test_it_ends_when_its_standard_input_does_and_leaves_nothing_behind(make_ranks, make_process):
    (rank,) = make_ranks(1)
    assert rank.next_watch() is False
    process = make_process()
    process.client.select(KEY, 0)
    process.client.receive(RankInfo)
    assert rank.next_watch() is True
    process.client.close_input()
    assert process.process.wait(20) == 0
    assert process.process.stderr.read() == b""
    assert rank.next_watch() is False, "the hub has forgotten it"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, None], ids=str)
def test_it_ends_by_a_signal_or_where_nobody_reads_any_more(make_process, number):
    process = make_process()
    process.client.receive(RelayHello)
    if number is not None:
        process.process.send_signal(number)
    else:
        os.close(process.client.reads)
        process.client.reads = process.client.writes
    assert process.process.wait(20) == 0
    assert process.process.stderr.read() == b""


def test_it_ends_when_nothing_comes_for_too_long(make_relay):
    began_s = answered_s = time.monotonic()
    relay = make_relay(silence_s=0.5)
    client, number = relay.client, 0
    client.pings = False
    while not client.over and (sent_s := time.monotonic()) < began_s + 1.0:
        number += 1
        with contextlib.suppress(BrokenPipeError):
            client.send(RelayPing(number))
        client.until(
            lambda last=number: client.over or last in {pong.number for pong in client.of(RelayPong)}
        )
        if not client.over:
            answered_s = sent_s
    client.until_over()
    assert time.monotonic() - answered_s >= 0.5
    assert relay.why == "nothing came from the client for 0 s"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), "what came from the client is no frame"),
        (frame(b"rubbish") * 17, "too much came that is no message"),
    ],
    ids=["a length", "rubbish"],
)
def test_what_no_client_sends_ends_it(make_relay, data, why):
    relay = make_relay()
    relay.client.write(data)
    relay.client.until_over()
    assert relay.why.startswith(why)
    assert len(relay.client.of(Notice)) <= 16


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=200)
    | st.lists(messages, max_size=6).map(lambda said: b"".join(frame(encode(each)) for each in said))
    | st.lists(plain, max_size=6).map(lambda said: b"".join(frame(msgpack.packb(each)) for each in said))
    | st.lists(st.binary(max_size=60), max_size=20).map(lambda said: b"".join(map(frame, said)))
)
def test_whatever_comes_in_it_ends_with_its_input_and_a_reason(socket_dir, data):
    reads, client_writes = os.pipe()
    client_reads, writes = os.pipe()
    os.write(client_writes, data[: 1 << 15])
    os.close(client_writes)
    try:
        why = Relay(reads, writes, version="1.0").run()
    finally:
        os.close(writes)
        os.close(reads)
    with os.fdopen(client_reads, "rb") as file:
        assert file.read().startswith(b"\n\x00OVERLAPTOP RELAY 1\n")
    assert why.startswith(
        ("the client closed the connection", "what came from the client is no frame", "too much came")
    )
