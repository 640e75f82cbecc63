"""Tells exceptions that the job's signal handlers raise in the agent's code from the agent's own faults.

Python runs a handler in the middle of whatever its main thread does, so also of a hook of ours. What it
raises is no fault of ours and belongs to the script. It may be of any class (TimeoutError, which is an
OSError, is usual), so each ``except`` on the job's threads that could swallow one calls `raised_by_job`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import CodeType
from typing import TypeVar

R = TypeVar("R")

TRIES = 8


def raised_by_job(fault: BaseException) -> bool:
    """Whether ``fault``, caught in our code, comes from a signal handler, by its traceback: Python gives a
    handler the frame that it interrupts. One that has dropped its arguments is found among those installed.
    """
    if not isinstance(fault, Exception):
        return True  # KeyboardInterrupt, by Python's own handler, which has no frame; none of these is ours
    at, codes = fault.__traceback__, set[CodeType]()
    while at is not None and (into := at.tb_next) is not None:
        interrupted, called = at.tb_frame, into.tb_frame
        for value in called.f_locals.values():
            if any(each is interrupted for each in (value if type(value) is tuple else (value,))):
                return True
        codes.add(called.f_code)
        at = into
    if not codes:
        return False  # nearly all that are expected: to ask for all handlers takes 0.1 ms
    handlers = map(signal.getsignal, signal.valid_signals())
    return any(getattr(each, "__code__", None) in codes for each in handlers)


def run_to_completion(call: Callable[[], R]) -> R:
    """Call what must not be left half done: again where the job throws something into it, which is raised
    once the call has returned.
    """
    thrown: BaseException | None = None
    for left in reversed(range(TRIES)):
        try:
            done = call()
            break
        except BaseException as fault:
            if not left or not raised_by_job(fault):
                raise
            thrown = fault
    if thrown is not None:
        raise thrown
    return done
