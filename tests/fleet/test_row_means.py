"""A rank's row: its means over the window of the job's totals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.fleet.past import over_window
from overlaptop.fleet.snapshot import Window
from overlaptop.fleet.totals import with_means
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import T0, info, status, step, unmeasured, welcome
from tests.fleet.fakes import FakeSession
from tests.tui.waits import split_step, waiting_job


def job():
    return FakeSession(welcome(world_size=2), status(), info(0), info(1))


@given(lengths_ms=st.lists(st.integers(2, 90), min_size=3, max_size=20))
def test_the_totals_are_the_mean_of_the_rows(lengths_ms):
    session = job()
    for number, length_ms in enumerate(lengths_ms):
        session.say(step(0, number, hidden=10), step(1, number, comm=length_ms, hidden=1))
    session.say(unmeasured(0, len(lengths_ms), ms=200), unmeasured(1, len(lengths_ms), ms=200))
    snapshot = with_means(session.tick())
    rows = [view.row for view in snapshot.ranks]
    for name in ("step_ns", "exposed_ns", "stall_ns", "idle_ns"):
        mean = sum(getattr(row, name) for row in rows) / len(rows)
        assert abs(mean - getattr(snapshot.totals, name)) <= 1
    assert sum(row.hidden_ns for row in rows) / sum(row.comm_ns for row in rows) == pytest.approx(
        snapshot.totals.overlap
    )


def test_ended_rank_keeps_the_means_of_its_own_last_steps():
    session = job()
    session.say(*(step(rank, number) for number in range(5) for rank in (0, 1)))
    session.say(RankEnd(1, T0, clean=True), *(step(0, number, idle=90) for number in range(5, 40)))
    running, ended = with_means(session.tick()).ranks
    assert ended.row.step_ns == step().step_ns
    assert running.row.step_ns > ended.row.step_ns


def test_waiting_and_transfer_add_up_to_what_is_exposed():
    session = waiting_job()
    for rank in range(4):
        session.say(split_step(rank, 8, late_ms=4)[0])
    means = with_means(session.tick())
    for view in means.ranks:
        assert abs(view.row_waits.exposed_ns - view.row.exposed_ns) <= 3
    alone = with_means(over_window(means, Window.STEP))
    assert all(view.row is view.measured and view.row_waits is view.waits for view in alone.ranks)
