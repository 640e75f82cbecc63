"""A dashboard that watches for long holds as much as one that has just been opened."""

import gc
import tracemalloc

from overlaptop.fleet import rank_state
from overlaptop.tui.draw.themes import DARK, Look, Styles
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.options import TuiOptions
from tests.fleet.builders import info, status, unmeasured, welcome
from tests.fleet.fakes import FakeSession

from .waits import split_step

FIRST_STEP, STEPS, SHOWN_EVERY = 990_000, 2_000, 100  # Of a job that comes to its millionth step


def go_on(dashboard, first, steps):
    """Two ranks make steps, of which one in four is measured; return the bytes held after them."""
    session = dashboard.session
    for number in range(first, first + steps):
        for rank in range(2):
            session.say(*(split_step(rank, number) if number % 4 == 0 else [unmeasured(rank, number)]))
        session.clock.pass_s(0.08)
        if number % SHOWN_EVERY == 0:
            dashboard.read()
            dashboard.update()
    gc.collect()  # or garbage counts that waits for its collection
    return tracemalloc.get_traced_memory()[0]


def test_a_job_of_a_million_steps_leaves_memory_flat(monkeypatch):
    monkeypatch.setattr(rank_state, "MAX_RANK_TIMELINE_BYTES", 1 << 16)  # full after a few hundred steps
    tracemalloc.start()
    try:
        session = FakeSession(welcome(), info(0), info(1), status())
        dashboard = Dashboard(session, TuiOptions(), Look(Styles(DARK)), session.clock.monotonic_s)
        held = [go_on(dashboard, FIRST_STEP + part * STEPS, STEPS) for part in range(3)]
    finally:
        tracemalloc.stop()
    assert held[2] < 1.1 * held[1]
