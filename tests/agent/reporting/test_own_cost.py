"""What is told of the agent's own cost, as far as it is known."""

import pytest

from overlaptop.agent.reporting import reporter
from overlaptop.agent.sources.own_cost import CostMeter, Treatment


def meter(turns, *, detailed, watched=True):
    """Of a job in whose steps of 100 ms the agent takes 1 ms, and 2 where one is measured in detail."""
    made = CostMeter()
    made.follow(watched=watched, known=True)
    for _ in range(turns):
        for step in range(20):
            if detailed and step % 2:
                made.note(102_000_000, Treatment.MEASURED)
            else:
                made.note(101_000_000, Treatment.USUAL)
        for _ in range(5):
            made.note(100_000_000, Treatment.PAUSED)
    made.note(101_000_000, Treatment.USUAL)
    return made


def test_nothing_is_told_of_a_few_turns():
    assert reporter.own_cost(meter(3, detailed=True), rank=1) is None


def test_the_cost_of_all_steps_and_of_those_that_are_measured():
    cost = reporter.own_cost(meter(8, detailed=True), rank=1)
    assert (cost.rank, cost.watched) == (1, True)
    assert cost.change == pytest.approx(0.015 * 20 / 25)
    assert cost.measured_change == pytest.approx(0.02)


def test_where_no_step_is_measured_the_cost_of_all_is_told():
    cost = reporter.own_cost(meter(8, detailed=False), rank=1)
    assert cost.change == pytest.approx(0.01 * 20 / 25)
    assert (cost.measured_change, cost.measured_error) == (None, None)


def test_it_is_told_by_which_budget_it_is():
    assert reporter.own_cost(meter(8, detailed=True, watched=False), rank=1).watched is False
    made = meter(8, detailed=True, watched=False)
    made.follow(watched=True, known=True)
    assert reporter.own_cost(made, rank=1) is None  # of that budget nothing is known yet
