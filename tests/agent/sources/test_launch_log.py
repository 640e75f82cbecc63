"""When torch's flight recorder is read: rarely, and by all ranks for the same bursts."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from overlaptop.agent.sources import launch_log
from overlaptop.agent.sources.launch_log import (
    PERIOD_S,
    SHARE,
    WATCHED_PERIOD_S,
    WATCHED_SHARE,
    LaunchLog,
)


@pytest.fixture
def bursts_read(monkeypatch):
    """Of 400 bursts, two seconds apart, when those began for which a log was read that takes so long."""

    def run(took_s, watched, began_s=1_000_000.0):
        clock = SimpleNamespace(now_s=0.0)

        class Recorder:
            def read(self, from_unix_ns):
                clock.now_s += took_s
                return []

        monkeypatch.setattr(launch_log, "monotonic", lambda: clock.now_s)
        monkeypatch.setattr(launch_log, "FlightRecorder", Recorder)
        log = LaunchLog()
        read = []
        for number in range(400):
            at_s = began_s + number * 2.0 + 0.003
            if log.due(at_s, watched=watched):
                assert log.read(at_s, 0) == []
                read.append(at_s)
        return read

    return run


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("took_s", [0.001, 0.02, 0.2])
def test_it_is_read_no_more_often_and_no_longer_than_allowed(bursts_read, watched, took_s):
    period_s, share = (WATCHED_PERIOD_S, WATCHED_SHARE) if watched else (PERIOD_S, SHARE)
    read = bursts_read(took_s, watched)
    assert len(read) > 8
    least_s = max(period_s, took_s / share)
    assert all(least_s <= later - earlier <= 2 * least_s for earlier, later in itertools.pairwise(read[1:]))


def test_ranks_that_need_different_times_read_it_for_the_same_bursts(bursts_read):
    quick = bursts_read(0.022, watched=True)
    for took_s, began_s in ((0.031, 1_000_000.0), (0.039, 1_000_006.0)):
        slow = bursts_read(took_s, watched=True, began_s=began_s)
        assert len(set(slow[2:-5]) - set(quick)) == 0
        assert len(slow) > 100
