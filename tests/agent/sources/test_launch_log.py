"""When torch's flight recorder is read: rarely, and by all ranks for the same bursts."""

from __future__ import annotations

import itertools

import pytest

from overlaptop.agent.sources import launch_log
from overlaptop.agent.sources.flight_recorder import FlightRecorderError
from overlaptop.agent.sources.launch_log import (
    PERIOD_S,
    SHARE,
    WATCHED_PERIOD_S,
    WATCHED_SHARE,
    LaunchLog,
)


class Clock:
    now_s = 0.0


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(launch_log, "monotonic", lambda: clock.now_s)
    return clock


@pytest.fixture
def log_that_takes(clock, monkeypatch):
    """Makes a log of which each reading takes so long."""

    def make(took_s):
        class Recorder:
            def read(self, from_unix_ns):
                clock.now_s += took_s
                return []

        monkeypatch.setattr(launch_log, "FlightRecorder", Recorder)
        return LaunchLog()

    return make


def bursts_read(log, watched, bursts=400, period_s=2.0, began_s=1_000_000.0):
    """Of bursts at whole multiples of their period, when those began for which it was read."""
    read = []
    for number in range(bursts):
        at_s = began_s + number * period_s + 0.003
        if log.due(at_s, watched=watched):
            assert log.read(at_s, 0) == []
            read.append(at_s)
    return read


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("took_s", [0.001, 0.02, 0.2])
def test_it_is_read_no_more_often_and_no_longer_than_allowed(log_that_takes, watched, took_s):
    period_s, share = (WATCHED_PERIOD_S, WATCHED_SHARE) if watched else (PERIOD_S, SHARE)
    read = bursts_read(log_that_takes(took_s), watched)
    assert len(read) > 8
    least_s = max(period_s, took_s / share)
    assert all(least_s <= later - earlier <= 2 * least_s for earlier, later in itertools.pairwise(read[1:]))


def test_ranks_that_need_different_times_read_it_for_the_same_bursts(log_that_takes):
    quick = bursts_read(log_that_takes(0.022), watched=True)
    for took_s, began_s in ((0.031, 1_000_000.0), (0.039, 1_000_006.0)):
        slow = bursts_read(log_that_takes(took_s), watched=True, began_s=began_s)
        assert len(set(slow[2:-5]) - set(quick)) == 0
        assert len(slow) > 100


def test_nobody_asks_again_where_there_is_none(monkeypatch):
    def refuse():
        raise FlightRecorderError("this torch has none")

    monkeypatch.setattr(launch_log, "FlightRecorder", refuse)
    log = LaunchLog()
    assert not log.due(1e9, watched=True)
    assert log.reason == "collectives have no names: this torch has none"
