"""A job of another host as JobSession sees it: over a connection that may be lost and had again."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

from overlaptop.fleet.job_session import JobSession
from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.record import JobRecord
from overlaptop.remote.connection import ConnectionState
from overlaptop.remote.host import RemoteHost
from overlaptop.remote.pool import ConnectionPool
from overlaptop.remote.targets import Target
from overlaptop.wire import commands
from overlaptop.wire.codec import WireError
from overlaptop.wire.commands import Command, CommandOutcome
from overlaptop.wire.messages import HubStatus, Notice, StackSamples, Standstill, Welcome
from tests.hubs import Hubs, Rank, Receiver, hubs, make_rank, private_sockets
from tests.remote.connections import Connections, eventually
from tests.remote.fake_relays import AHEAD_NS, DEADLY, JOB, STARTED_NS

__all__ = ["hubs", "make_rank", "private_sockets"]
"""Fixtures that come with their import."""

T = TypeVar("T")


class Watched(Receiver):
    """A host, a hub connection to its only job, and what has come over that."""

    def __init__(self, connections: Connections, behaviour: str) -> None:
        super().__init__()
        self.connections = connections
        self.connection = connections(behaviour)
        self.host = RemoteHost(self.connection)
        self.record = eventually(lambda: next(iter(self.host.list_jobs()), None))
        self.hub = self.host.open_hub(self.record)

    def poll(self) -> None:
        self.messages += self.hub.poll()

    def receive(self, kind: type[T]) -> T:
        """The next message of this kind that comes from now on."""
        self.messages.clear()
        return super().receive(kind)

    def is_told(self, text: str) -> None:
        self.until(lambda: any(notice.text == text for notice in self.of(Notice)))

    def lose(self) -> None:
        os.kill(self.connection.processes[0].pid, signal.SIGKILL)
        self.until(lambda: self.connection.state is ConnectionState.DOWN)

    def lose_and_reconnect(self) -> None:
        self.lose()
        self.connections.now_s += 10
        self.until(lambda: self.host.up)


@pytest.fixture
def watched(connections: Connections) -> Watched:
    return Watched(connections, "plain")


def command() -> Command:
    return commands.make(commands.CAPTURE, {"steps": 3})


def test_a_host_that_was_not_reached_yet_has_no_jobs_and_a_note(connections: Connections) -> None:
    host = RemoteHost(connections("mute"))
    assert (host.list_jobs(), host.known, host.up, host.connecting) == ([], False, False, True)
    failed = RemoteHost(connections("failing"))
    eventually(lambda: failed.poll() or failed.note)
    assert failed.note == "/tmp/x belongs to uid 7, not to you"
    assert (failed.up, failed.connecting) == (False, True)


def test_a_hosts_jobs_are_listed_and_joining_one_brings_its_hubs_messages(watched: Watched) -> None:
    assert watched.host.known
    offset_ns = watched.host.offset_ns or 0
    assert watched.record == replace(JobRecord.of_remote(JOB), started_ns=STARTED_NS - offset_ns)
    assert watched.receive(Welcome).job == "job-1"
    # It was still on its way when this job was selected.
    assert "of another job" not in {notice.text for notice in watched.of(Notice)}
    assert watched.hub.alive
    assert watched.hub.last_received_s == 0.0
    watched.connections.now_s += 1.5
    assert watched.hub.last_received_s == 1.5
    watched.receive(HubStatus)
    assert watched.hub.last_received_s == 0.0
    watched.hub.watch([3, 1, 3])
    watched.is_told("joined 1,3")


def test_times_of_the_other_clock_become_times_of_this_one(connections: Connections) -> None:
    watched = Watched(connections, "ahead")
    welcome = watched.receive(Welcome)
    residual_ns = watched.host.residual_ns
    assert residual_ns is not None
    assert residual_ns < AHEAD_NS // 2, "else this proves nothing"
    assert watched.host.offset_ns is not None
    assert abs(watched.host.offset_ns - AHEAD_NS) <= residual_ns + 1
    assert abs(welcome.started_ns - STARTED_NS) <= AHEAD_NS // 2
    (group,) = watched.until(lambda: watched.of(Standstill))[0].groups
    assert [abs(call.at_ns - STARTED_NS) <= AHEAD_NS // 2 for call in group.calls] == [True]
    (stacks,) = watched.until(lambda: watched.of(StackSamples))
    assert abs(stacks.from_ns - STARTED_NS) <= AHEAD_NS // 2
    assert stacks.from_ns <= stacks.to_ns
    assert abs(watched.host.list_jobs()[0].started_ns - (STARTED_NS - AHEAD_NS)) <= AHEAD_NS // 2


def test_commands_reach_the_hub_once_it_has_answered(watched: Watched) -> None:
    assert not watched.hub.send(command()), "it has said nothing yet"
    for joined in (False, True):
        if joined:
            watched.receive(Welcome)
        with pytest.raises(WireError):
            watched.hub.send(replace(command(), name="reboot"))
    asked = command()
    assert watched.hub.send(asked)
    assert watched.receive(CommandOutcome).command == asked.id


def test_a_hub_connection_lives_through_a_drop_of_its_connection(watched: Watched) -> None:
    watched.receive(Welcome)
    watched.hub.watch([1])
    watched.lose()
    assert watched.hub.alive, "nobody knows of a death"
    assert not watched.hub.send(command())
    assert (watched.host.up, bool(watched.host.note)) == (False, True)
    assert not watched.host.is_gone(watched.record)
    assert [record.job for record in watched.host.list_jobs()] == ["job-1"]
    watched.connections.now_s += 2
    watched.receive(Welcome)
    assert watched.host.up
    watched.is_told("joined 1")
    assert watched.hub.send(command())
    watched.receive(CommandOutcome)


def test_a_hub_that_has_ended_and_a_job_that_is_gone_are_told_apart(watched: Watched) -> None:
    watched.receive(Welcome)
    assert not watched.host.is_gone(watched.record)
    watched.host.limit(DEADLY)
    watched.until(lambda: not watched.hub.alive)
    assert watched.host.is_gone(watched.record)
    assert not watched.host.is_gone(replace(watched.record, job="job-2"))


def test_another_hub_connection_takes_the_place_of_the_one_before_and_counts_anew(watched: Watched) -> None:
    watched.receive(Welcome)
    watched.until(lambda: watched.connection.dropped == 3)
    first = watched.hub
    first.close()
    assert first.poll() == []
    watched.hub = watched.host.open_hub(watched.record)
    assert watched.hub.dropped == 0
    watched.receive(Welcome)
    first.close()
    assert watched.hub.send(command())
    watched.receive(CommandOutcome)


def test_a_limit_is_sent_now_and_to_each_relay_that_follows(watched: Watched) -> None:
    watched.host.limit(1000)
    watched.until(lambda: watched.host.note == "limit 1000")
    watched.lose_and_reconnect()
    watched.until(lambda: watched.host.note == "limit 1000")
    with pytest.raises(WireError):
        watched.host.limit(-1)


def test_a_real_hub_is_joined_through_a_real_relay(
    hubs: Hubs, make_rank: Callable[..., Rank], socket_dir: Path
) -> None:
    """From a rank to the session, from the session to the rank, and again after the connection was lost."""
    hubs.start()
    rank = make_rank().greet()
    rank.send(rank.step(1))
    pool = ConnectionPool(
        [Target.parse("local://")], print, python=sys.executable, remote_dir=str(socket_dir)
    )
    pool.connect(interactive=False)
    connection = pool.connections[0]
    host = RemoteHost(connection)
    session = JobSession(list_jobs=host.list_jobs, open_hub=host.open_hub, is_gone=host.is_gone)
    seen: set[int] = set()

    def sees(step: int) -> bool:
        snapshot = session.tick()
        seen.update(totals.step for totals in snapshot.fresh)
        return step in seen and snapshot.hub_state is HubState.LIVE

    eventually(lambda: sees(1))
    rank.send(rank.step(2))
    eventually(lambda: sees(2))
    session.watch([0])
    asked = command()
    assert session.send(asked) == ""
    eventually(lambda: session.tick() and (rank.listen() or rank.commands))
    assert [received.id for received in rank.commands] == [asked.id]
    assert host.offset_ns is not None
    assert host.residual_ns is not None
    assert abs(host.offset_ns) <= host.residual_ns + 1, "it is the same clock"
    os.kill(connection.processes[0].pid, signal.SIGKILL)
    eventually(lambda: session.tick() and not host.up)
    rank.send(rank.step(3))
    eventually(lambda: sees(3))
    session.close()
    pool.close()
