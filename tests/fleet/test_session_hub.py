"""A JobSession on a real hub, which is killed and replaced under it."""

import os
import signal
import time
from statistics import median

import pytest
from msgspec.structs import replace

from overlaptop.commands.following import settle
from overlaptop.fleet.job_session import JobSession
from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.record import list_jobs
from tests.processes import eventually


@pytest.fixture
def session():
    session = JobSession()
    yield session
    session.close()


def until(session, holds):
    return eventually(lambda: (snapshot := session.tick()) and holds(snapshot) and snapshot)


def test_once_shows_the_step_that_was_newest_when_called(hubs, make_rank, session):
    hubs.start()
    rank, newest = make_rank().greet(), 2_000
    rank.info = replace(rank.info, world_size=1)
    rank.send(*(rank.step(number) for number in range(newest + 1)), rank.info)
    eventually(lambda: list_jobs()[0].rank_pids)
    first = JobSession()
    until(first, lambda s: s.ranks and s.ranks[0].last and s.ranks[0].last.step == newest)
    first.close()
    # Each look is at what has come in a moment, as where the machine is busy.
    assert settle(session).ranks[0].last.step == newest


def test_reading_never_waits_for_a_stopped_hub(hubs, make_rank, session):
    record = hubs.start()
    rank = make_rank().greet()
    rank.send(rank.step(0))
    until(session, lambda s: s.ranks and s.ranks[0].last)
    took_s = []

    def is_stale():
        before_s = time.monotonic()
        state = session.tick().hub_state
        took_s.append(time.monotonic() - before_s)
        return state is HubState.STALE

    os.kill(record.hub_pid, signal.SIGSTOP)
    try:
        eventually(is_stale)
    finally:
        os.kill(record.hub_pid, signal.SIGCONT)
    # A hub that is waited for would be waited for as long as it stands still.
    assert median(took_s) < 0.5
    until(session, lambda s: s.hub_state is HubState.LIVE)
