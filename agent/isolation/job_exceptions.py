"""Tells exceptions of the job's signal handlers, raised in the agent's code, from the agent's own faults.

Python runs a signal handler in the middle of whatever its main thread does, including our hooks. A
handler's exception belongs to the script. It may be of any class (often TimeoutError, which is an OSError).
So each ``except`` on the job's threads that could swallow one calls `raised_by_job`.
"""

import signal
from collections.abc import Callable
from types import CodeType
from typing import TypeVar

R = TypeVar("R")

TRIES = 8


def raised_by_job(fault: BaseException) -> bool:
    """Whether ``fault``, caught in our code, comes from a signal handler.

    Its traceback shows this: Python passes a handler the interrupted frame. A handler that has dropped its
    arguments is found among the installed handlers.
    """
    if not isinstance(fault, Exception):
        return True  # KeyboardInterrupt by Python's own handler, which has no frame; we raise none of these
    at, codes = fault.__traceback__, set[CodeType]()
    while at is not None and (into := at.tb_next) is not None:
        interrupted, called = at.tb_frame, into.tb_frame
        for value in called.f_locals.values():
            if any(each is interrupted for each in (value if type(value) is tuple else (value,))):
                return True
        codes.add(called.f_code)
        at = into
    if not codes:
        return False  # the usual case; asking for all handlers takes 0.1 ms
    handlers = map(signal.getsignal, signal.valid_signals())
    return any(getattr(each, "__code__", None) in codes for each in handlers)


def run_to_completion(call: Callable[[], R]) -> R:
    """Run ``call`` to its end. If the job's exception interrupts it, call it again and raise the exception
    afterwards.
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
