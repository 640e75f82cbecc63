"""What a handler raises in our code is told from a fault of our own."""

import collections
import functools
import logging
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from overlaptop.agent.isolation import fault_barrier
from overlaptop.agent.isolation.fault_barrier import FaultBarrier, defer_exceptions
from overlaptop.agent.isolation.job_exceptions import raised_by_job, run_to_completion


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
def handled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR2, function)
    yield
    signal.signal(signal.SIGUSR2, before)


def struck() -> None:
    os.kill(os.getpid(), signal.SIGUSR2)


@pytest.mark.parametrize("name", HANDLERS)
def test_what_a_handler_raises_is_the_jobs(name: str) -> None:
    signal.signal(signal.SIGUSR2, HANDLERS[name])
    with pytest.raises((TimeoutError, KeyboardInterrupt)) as caught:
        struck()
    assert raised_by_job(caught.value)


def wordless() -> None:
    raise RuntimeError


OWN = {
    "of a lookup": lambda: {}["key"],
    "raised without a word": wordless,
    "of C code": lambda: collections.deque().popleft(),
    "of a function that is called": lambda: wordless(),
}


@pytest.mark.parametrize("name", OWN)
def test_a_fault_of_our_own_is_not(name: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any kind
        OWN[name]()
    assert not raised_by_job(caught.value)


def test_hook_passes_the_jobs_exceptions_only() -> None:
    warnings: list[str] = []
    barrier = FaultBarrier(lambda _level, text: warnings.append(text))
    hook = barrier.guarded("a hook", struck)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            hook()
    assert (barrier.active, warnings) == (True, [])
    assert barrier.guarded("a hook", wordless)() is None
    assert (barrier.active, len(warnings)) == (False, 1)


def test_exception_in_a_callback_of_c_is_raised_at_the_next_step() -> None:
    done: list[int] = []

    def callback() -> None:
        done.append(1)
        if len(done) == 1:
            struck()

    barrier = FaultBarrier(lambda *_: None)
    step = barrier.guarded("a step", lambda: done.append(2), at_boundaries=True)
    defer_exceptions(callback)()
    assert done == [1, 1]  # all of it was done
    with pytest.raises(TimeoutError):
        step()
    step()
    assert done == [1, 1, 2]


def test_exception_of_another_thread_waits_for_that_thread() -> None:
    step = FaultBarrier(lambda *_: None).guarded("a step", lambda: "done", at_boundaries=True)
    with ThreadPoolExecutor(1) as other:
        thrown = InterruptedError()
        other.submit(fault_barrier.raise_later, thrown).result()
        assert step() == "done"
        assert other.submit(step).exception() is thrown
        assert other.submit(step).result() == "done"


def test_run_to_completion_raises_afterwards() -> None:
    tried: list[str] = []

    def change() -> None:
        tried.append("begun")
        if len(tried) == 1:
            struck()
        tried.append("done")

    with pytest.raises(TimeoutError):
        run_to_completion(change)
    assert tried == ["begun", "begun", "done"]


def test_raising_log_handler_ends_neither_job_nor_agent() -> None:
    class Strict(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
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
