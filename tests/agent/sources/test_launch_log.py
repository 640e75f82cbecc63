"""When torch's flight recorder is read: rarely, and by all ranks for the same steps."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from overlaptop.agent.sources import flight_recorder
from overlaptop.agent.sources.flight_recorder import (
    PERIOD_S,
    SHARE,
    WATCHED_PERIOD_S,
    WATCHED_SHARE,
    LaunchLog,
)

STEP_S = 0.05


@pytest.fixture
def steps_read(monkeypatch):
    """Of 60,000 steps, read in batches, for which ones a log was read that takes so long."""

    def run(took_s, watched, batch=3):
        clock = SimpleNamespace(now_s=0.0)

        class Recorder:
            def read(self, from_unix_ns, before_ns):
                clock.now_s += took_s
                return []

        monkeypatch.setattr(flight_recorder, "monotonic", lambda: clock.now_s)
        monkeypatch.setattr(flight_recorder, "FlightRecorder", Recorder)
        log = LaunchLog()
        read = []
        for first in range(0, 60_000, batch):
            steps = range(first, first + batch)
            if log.due(steps, round(STEP_S * 1e9), watched=watched):
                assert log.read(first, 0, 0) == []
                read.append(steps)
        return read

    return run


@pytest.mark.parametrize(("watched", "took_s"), [(False, 0.02), (True, 0.001), (True, 0.2)])
def test_it_is_read_no_more_often_and_no_longer_than_allowed(steps_read, watched, took_s):
    period_s, share = (WATCHED_PERIOD_S, WATCHED_SHARE) if watched else (PERIOD_S, SHARE)
    read = steps_read(took_s, watched)
    assert len(read) > 3
    least = max(period_s, took_s / share) / STEP_S
    assert all(
        least - 3 <= later.start - earlier.start <= 2 * least + 3
        for earlier, later in itertools.pairwise(read[1:])
    )


def test_ranks_that_need_different_times_read_it_for_the_same_steps(steps_read):
    quick = steps_read(0.022, watched=True)
    for took_s, batch in ((0.031, 3), (0.039, 7)):
        slow = steps_read(took_s, watched=True, batch=batch)
        shared = sum(any(set(steps) & set(each) for each in quick) for steps in slow)
        assert shared == len(slow) > 30
