"""What a handler raises in our code is told from a fault of our own."""

import functools
import logging
import os
import signal
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest

from overlaptop.agent.isolation import fault_barrier
from overlaptop.agent.isolation.fault_barrier import FaultBarrier, defer_exceptions
from overlaptop.agent.isolation.job_exceptions import raised_by_job


def function(_number, _frame):
    raise TimeoutError


def forgetful(number, frame):
    del number, frame
    raise TimeoutError


def replaces_itself(_number, _frame):
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    raise TimeoutError


HANDLERS = {
    "a function": function,
    "one that drops its arguments": forgetful,
    "one that is gone by then": replaces_itself,
    "a partial": functools.partial(function),
    "Python's own": signal.default_int_handler,
    "a lambda": lambda *arguments: function(*arguments),
}


@pytest.fixture(autouse=True)
def handled():
    before = signal.signal(signal.SIGUSR2, function)
    yield
    signal.signal(signal.SIGUSR2, before)


def struck():
    os.kill(os.getpid(), signal.SIGUSR2)


@pytest.mark.parametrize("name", HANDLERS)
def test_what_a_handler_raises_is_the_jobs(name):
    signal.signal(signal.SIGUSR2, HANDLERS[name])
    with pytest.raises((TimeoutError, KeyboardInterrupt)) as caught:
        struck()
    assert raised_by_job(caught.value)


def wordless():
    raise RuntimeError


@pytest.mark.parametrize("fails", [lambda: {}["key"], wordless, lambda: wordless(), deque().pop])
def test_a_fault_of_our_own_is_not(fails):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any kind
        fails()
    assert not raised_by_job(caught.value)


def change_that_is_struck(done):
    done.append("begun")
    if len(done) == 1:
        struck()
    done.append("done")


def test_exception_in_a_callback_of_c_is_raised_at_its_threads_next_step():
    done = []
    step = FaultBarrier(lambda *_: None).guarded("a step", lambda: "done", at_boundaries=True)
    defer_exceptions(change_that_is_struck)(done)
    assert done == ["begun", "begun", "done"]
    with ThreadPoolExecutor(1) as other:
        assert other.submit(step).result() == "done"
    with pytest.raises(TimeoutError):
        step()
    assert step() == "done"


def test_raising_log_handler_ends_neither_job_nor_agent():
    class Strict(logging.Handler):
        def emit(self, record):
            raise AssertionError(f"nothing may be logged: {record.getMessage()}")

    barrier, strict = FaultBarrier(lambda *_: None), Strict()
    boundary = barrier.guarded("a step", lambda: "done", at_boundaries=True)
    fault_barrier.logger.addHandler(strict)
    try:
        fault_barrier.warn("something is missing")
        assert (boundary(), barrier.active) == ("done", True)
        assert barrier.guarded("a fault", lambda: 1 / 0)() is None
        assert boundary() is None
    finally:
        fault_barrier.logger.removeHandler(strict)
