"""Whether few hardware connections are seen in the marks of recorded steps."""

from __future__ import annotations

import random

import pytest

from overlaptop.agent.sources.assemble import RecordedCollective, RecordedStep
from overlaptop.agent.sources.base import CollectiveCall, Wait
from overlaptop.agent.sources.connections import Connections

MS = 1_000_000
CALL = CollectiveCall("allreduce_", 64, "0", True, "nccl", "cuda", 0)


def ddp_step(chance, *, held_back=False, waits=False, bound_by="compute"):
    """Six buckets of a backward pass: the marks when they were issued, and when their all-reduces ended."""
    step = RecordedStep(0, True, 0, end=200 * MS)
    at_ns, free_ns = 20 * MS, 0
    for _ in range(6):
        length_ns = round((3 if bound_by == "compute" else 14) * MS * chance.uniform(0.8, 1.2))
        end_ns = max(at_ns, free_ns) + length_ns
        step.collectives.append(RecordedCollective(CALL, at_ns, end_ns, "0", begins_on_compute=True))
        computed_ns = at_ns + round(8 * MS * chance.uniform(0.5, 1.5))
        if waits:
            step.waits.append((computed_ns, max(computed_ns, end_ns), Wait.PURE))
        at_ns = max(computed_ns, end_ns) if held_back or waits else computed_ns
        if held_back:  # the work of this bucket was behind the event of the one before it
            at_ns = end_ns + round(chance.uniform(2_000, 30_000))
        free_ns = end_ns
    return step


@pytest.mark.parametrize("bound_by", ["compute", "communication"])
def test_marks_that_pass_just_as_the_collective_before_them_ends_show_few_connections(bound_by):
    chance = random.Random(0)
    connections = Connections()
    for _ in range(3):
        connections.note(ddp_step(chance, held_back=True, bound_by=bound_by))
    assert connections.few


@pytest.mark.parametrize("bound_by", ["compute", "communication"])
@pytest.mark.parametrize("waits", [False, True])
def test_healthy_jobs_show_none_not_even_where_they_wait_for_each_collective_themselves(bound_by, waits):
    chance = random.Random(1)
    connections = Connections()
    for _ in range(200):
        connections.note(ddp_step(chance, waits=waits, bound_by=bound_by))
        assert not connections.few


def test_one_step_is_not_enough():
    connections = Connections()
    connections.note(ddp_step(random.Random(2), held_back=True))
    assert not connections.few
