"""What the barrier itself does on the job's threads never harms them."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from overlaptop.agent.isolation import fault_barrier
from overlaptop.agent.isolation.fault_barrier import FaultBarrier, raise_later
from tests.agent.interleaving import in_the_middle


def boundary_of(barrier):
    return barrier.guarded("a test", lambda: "done", at_boundaries=True)


@pytest.fixture
def barrier():
    yield FaultBarrier(lambda _level, _text: None)
    fault_barrier.discard_deferred()


def test_another_thread_s_exception_waits_for_it_whatever_both_do_meanwhile(barrier):
    boundary, tried = boundary_of(barrier), 0
    with ThreadPoolExecutor(1) as other:
        for run in in_the_middle(fault_barrier, boundary):
            thrown = [InterruptedError(str(number)) for number in range(2)]
            for each in thrown:
                other.submit(raise_later, each).result()
            raised = []

            def step_of_the_other(raised=raised):
                raised.append(other.submit(boundary).exception())

            assert run(step_of_the_other) == "done"
            while len(raised) < 2:
                step_of_the_other()
            assert raised == thrown
            assert other.submit(boundary).result() == "done"
            tried += 1
    assert tried > 10


def test_a_handler_of_the_job_s_that_raises_ends_neither_the_job_nor_the_agent(barrier):
    class Strict(logging.Handler):
        def emit(self, record):
            raise AssertionError(f"nothing may be logged: {record.getMessage()}")

    strict, boundary = Strict(), boundary_of(barrier)
    fault_barrier.logger.addHandler(strict)
    try:
        fault_barrier.warn("something is missing")
        assert boundary() == "done"
        assert barrier.active
        assert barrier.guarded("a fault", lambda: 1 / 0)() is None
        assert boundary() is None
    finally:
        fault_barrier.logger.removeHandler(strict)
