"""Tells exceptions that the job throws into the agent's code from the agent's own faults.

Python runs a handler in the middle of whatever its main thread does, so also of a hook of ours; and a
thread may throw an exception into another (PyThreadState_SetAsyncExc). Neither is a fault of ours, and both
belong to the script. A handler's exception may be of any class (TimeoutError, which is an OSError, is
usual), so each ``except`` on the job's threads that could swallow one calls `raised_by_job`.
"""

from __future__ import annotations

import functools
import opcode
import signal
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, TypeVar

R = TypeVar("R")

TRIES = 8
_SIGNAL_CHECKS = ("RESUME", "JUMP_BACKWARD")
"""Instructions that raise nothing by themselves, and at which Python handles signals."""
_WITHOUT_MESSAGE = (MemoryError, StopIteration)
"""What C code raises without a message."""


def raised_by_job(fault: BaseException) -> bool:
    """Whether ``fault``, caught in our code, was thrown into it from outside. Goes by its traceback."""
    handlers: frozenset[CodeType] | None = None
    at = fault.__traceback__
    while at is not None:
        instruction = opcode.opname[at.tb_frame.f_code.co_code[at.tb_lasti]]
        if instruction in _SIGNAL_CHECKS:
            return True
        if at.tb_next is None:
            # From C code that was called here, which would have a message; or thrown in by a thread.
            return "CALL" in instruction and not fault.args and not isinstance(fault, _WITHOUT_MESSAGE)
        handlers = _handlers() if handlers is None else handlers
        called = at.tb_next.tb_frame
        if called.f_code in handlers or _takes_frame(called, at.tb_frame):
            return True
        at = at.tb_next
    return False


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


def _takes_frame(called: FrameType, interrupted: FrameType) -> bool:
    """Whether a function has its caller's frame as an argument: handlers have, and hardly anything else."""
    code = called.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)  # 4: *arguments
    there = called.f_locals
    for name in code.co_varnames[:count]:
        value = there.get(name)
        if value is interrupted or (type(value) is tuple and any(each is interrupted for each in value)):
            return True
    return False


def _handlers() -> frozenset[CodeType]:
    """The code of the handlers that are installed."""
    found = map(_code_of, map(signal.getsignal, signal.valid_signals()))
    return frozenset(code for code in found if code is not None)


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if callable(handler) and not isinstance(handler, FunctionType | MethodType):
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)
