"""A JobSession on a real hub, which is killed and replaced under it."""

import io
import json
import os
import signal
import subprocess
import time

import pytest
from msgspec.structs import replace

from overlaptop.console.once import settle
from overlaptop.console.stream import RecordWriter
from overlaptop.fleet.job_session import JobSession
from overlaptop.fleet.snapshot import LinkState
from overlaptop.wire.endpoints import list_jobs
from tests.hub.conftest import Rank, eventually


@pytest.fixture
def session():
    session = JobSession()
    yield session
    session.close()


def until(session, holds):
    return eventually(lambda: (snapshot := session.tick()) and holds(snapshot) and snapshot)


def test_once_shows_the_step_that_was_the_newest_when_it_was_called(hubs, session):
    hubs.start()
    rank, newest = Rank().greet(), 2_000
    rank.info = replace(rank.info, world_size=1)
    rank.send(*(rank.step(number) for number in range(newest + 1)), rank.info)
    eventually(lambda: list_jobs()[0].rank_pids)
    first = JobSession()
    until(first, lambda s: s.ranks and s.ranks[0].last and s.ranks[0].last.step == newest)
    first.close()
    # Each look is at what has come in a moment, as where the machine is busy.
    assert settle(session).ranks[0].last.step == newest
    rank.close()


def test_a_killed_hub_is_missed_and_its_successor_joined(hubs, session):
    first = hubs.start()
    rank = Rank().greet()
    rank.send(rank.step(0))
    until(session, lambda s: s.ranks and s.ranks[0].last)
    os.kill(first.hub_pid, signal.SIGKILL)
    lost = until(session, lambda s: s.link is LinkState.LOST)
    assert lost.ranks[0].last.step == 0

    hubs.start()
    again = Rank().greet()
    again.send(again.step(1))
    found = until(session, lambda s: s.ranks[0].last.step == 1)
    assert found.link is LinkState.LIVE
    assert [step.step for step in found.ranks[0].history] == [0, 1]
    rank.close()
    again.close()


def test_steps_lost_while_nobody_reads_and_with_a_hub_are_counted_in_the_records(hubs, session):
    first = hubs.start()
    rank = Rank().greet()
    out = io.StringIO()
    writer = RecordWriter(out)

    def write_until(step):
        until(
            session,
            lambda s: writer.write(s) or (s.ranks and s.ranks[0].last and s.ranks[0].last.step == step),
        )

    rank.send(*(rank.step(number) for number in range(5)))
    write_until(4)
    for beginning in range(5, 40_005, 1_000):  # more than the hub holds for one that does not read
        rank.send(*(rank.step(number) for number in range(beginning, beginning + 1_000)))
    rank.send(rank.info)
    write_until(40_004)
    os.kill(first.hub_pid, signal.SIGKILL)
    until(session, lambda s: s.link is LinkState.LOST)
    hubs.start()
    again = Rank().greet()
    again.send(again.step(40_105))
    write_until(40_105)
    rank.close()
    again.close()

    records = [json.loads(line) for line in out.getvalue().splitlines()]
    lost_there = 40_005 - (len(records) - 1)
    assert lost_there > 1_000
    assert [record["dropped"] for record in records[-2:]] == [lost_there, lost_there + 100]


def test_a_job_that_is_killed_together_with_its_hub_has_ended(hubs, session):
    process = subprocess.Popen(["sleep", "1000"])
    try:
        record = hubs.start(starter_pid=process.pid)
        rank = Rank()
        rank.info = replace(rank.info, pid=process.pid)
        rank.greet()
        rank.send(rank.step(0))
        until(session, lambda s: s.ranks and s.ranks[0].last)
        os.kill(record.hub_pid, signal.SIGKILL)
        assert until(session, lambda s: s.link is not LinkState.LIVE).link is LinkState.LOST
    finally:
        process.kill()
        process.wait()
    assert until(session, lambda s: s.link is LinkState.ENDED).ranks[0].last.step == 0
    rank.close()


def test_reading_never_waits_for_a_stopped_hub(hubs, session):
    record = hubs.start()
    rank = Rank().greet()
    rank.send(rank.step(0))
    until(session, lambda s: s.ranks and s.ranks[0].last)
    os.kill(record.hub_pid, signal.SIGSTOP)
    try:
        slowest_s = 0.0
        deadline_s = time.monotonic() + 20
        while session.tick().link is not LinkState.STALE:
            before_s = time.monotonic()
            session.tick()
            slowest_s = max(slowest_s, time.monotonic() - before_s)
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
    finally:
        os.kill(record.hub_pid, signal.SIGCONT)
    # A hub that is waited for would be waited for as long as it stands still.
    assert slowest_s < 1
    until(session, lambda s: s.link is LinkState.LIVE)
    rank.close()
