"""A job of another host as JobSession sees it: over a real relay and hub, and a connection that is lost."""

import os
import signal
import subprocess
import sys

import pytest

from overlaptop.fleet.snapshot import HubState
from overlaptop.wire import commands
from overlaptop.wire.commands import CHANGED
from overlaptop.wire.knobs import KnobFacts
from overlaptop.wire.messages import (
    HubStatus,
)
from tests.fleet.builders import BUCKET_CAP_MB as KNOB
from tests.hubs import Receiver, hubs, made_and_closed, make_rank, private_sockets
from tests.processes import eventually
from tests.remote.watching import Watching

__all__ = ["hubs", "make_rank", "private_sockets"]  # Fixtures that come with their import


@pytest.fixture
def watch(hubs, socket_dir):
    """Watches this machine's jobs, by a relay at the end of a child process's pipes."""
    options = {"python": sys.executable, "remote_dir": str(socket_dir)}
    yield from made_and_closed(lambda **more: Watching("local://", **options, **more).connect())


def until_step(watched, step):
    """Until this step has come over a connection that is there."""
    watched.until(
        lambda now: (
            now.hub_state is HubState.LIVE
            and any(view.last is not None and view.last.step == step for view in now.ranks)
        )
    )


def capture():
    return commands.make(commands.CAPTURE, {"steps": 3})


def test_steps_and_commands_survive_lost_connections(hubs, make_rank, watch):
    hubs.start()
    ranks = [make_rank(number).greet() for number in range(2)]
    for rank in ranks:
        rank.send(rank.step(0), rank.step(1), KnobFacts(rank.rank, (KNOB,)))
    watched = watch()
    until_step(watched, 1)
    assert watched.host.clock.offset_ns is not None
    assert watched.host.clock.residual_ns is not None
    assert abs(watched.host.clock.offset_ns) <= watched.host.clock.residual_ns + 1, "it is the same clock"
    watched.session.watch([0])
    for rank in ranks:
        rank.send(rank.step(2), rank.detail(2))
    watched.until(lambda snapshot: snapshot.ranks[0].details)
    asked = commands.make_setting(KNOB, 50)
    assert watched.session.send(asked) == ""
    for rank in ranks:
        eventually(lambda rank=rank: watched.tick() and (rank.listen() or rank.commands))
        received = rank.next_command()
        assert received.id == asked.id
        rank.answer(received)
    watched.until(lambda snapshot: [view.state for view in snapshot.commands] == [CHANGED])

    for number in range(3, 6):
        os.kill(watched.host.processes[0].pid, signal.SIGKILL)
        watched.until(lambda _: not watched.host.ready)
        snapshot = watched.tick()
        assert (snapshot.hub_state, snapshot.ranks[0].node_lost) == (HubState.LOST, True)
        assert snapshot.ranks[0].last is not None
        assert snapshot.ranks[0].last.step == number - 1
        assert watched.session.send(capture()) != ""
        for rank in ranks:
            rank.send(rank.step(number))
        watched.session.retry()
        until_step(watched, number)
    assert {*watched.of(0)} == {*range(6)}
    assert watched.session.send(capture()) == ""
    eventually(lambda: watched.tick() and (rank.listen() or rank.commands))


def test_replaced_hub_is_joined_again_until_the_job_is_gone(hubs, watch):
    starter = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    first = hubs.start(starter_pid=starter.pid)
    watched = watch()
    watched.until(lambda snapshot: snapshot.hub_state is HubState.LIVE)
    os.kill(first.hub_pid, signal.SIGKILL)
    watched.until(lambda snapshot: snapshot.hub_state is HubState.LOST)
    assert not watched.host.is_gone(first)
    second = hubs.start(starter_pid=starter.pid)
    watched.until(lambda snapshot: snapshot.hub_state is HubState.LIVE)
    starter.communicate(b"\n")
    os.kill(second.hub_pid, signal.SIGKILL)
    watched.until(lambda snapshot: snapshot.hub_state is HubState.ENDED)
    assert watched.host.is_gone(second)


def test_read_only_connection_takes_no_commands(hubs, make_rank, watch):
    hubs.start()
    rank = make_rank().greet()
    rank.send(rank.step(1))
    watched = watch(readonly=True)
    until_step(watched, 1)
    assert watched.host.readonly
    assert "is read-only" in watched.session.send(capture())
    # Whatever the client is made to believe, the hub takes none.
    hub = watched.host.open_hub(watched.host.list_jobs()[0])
    received = Receiver()
    received.poll = lambda: received.messages.extend(
        watched.pool.poll() or watched.pool.receive() or hub.poll()
    )
    before = received.receive(HubStatus).dropped
    assert hub.send(capture())
    received.receive(HubStatus, lambda status: status.dropped > before)
    rank.listen()
    assert rank.commands == []
