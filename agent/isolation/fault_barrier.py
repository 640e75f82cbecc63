"""Keeps the agent's faults from the job: the first one is logged, and the agent disables itself."""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from overlaptop.agent.isolation.job_exceptions import raised_by_job

P = ParamSpec("P")
R = TypeVar("R")

MAX_UNLOGGED = 64

logger = logging.getLogger("overlaptop")
_unlogged: deque[str] = deque(maxlen=MAX_UNLOGGED)
_logging = threading.RLock()
_deferred: dict[int, list[BaseException]] = {}
"""By thread: what the job threw into a callback whose exceptions C code swallows."""


def warn(text: str) -> None:
    """Write a line to the job's log: at once on a thread of the job's, else at its next step or its end."""
    _unlogged.append(text)
    flush_log()


def flush_log() -> None:
    """Write the lines that other threads have left, unless this is one of the agent's.

    Logging asks for the current thread, and one that `threading` does not know (ours, or one of C++) would
    be listed from then on, for good.
    """
    if not _unlogged or not any(each.ident == threading.get_ident() for each in threading.enumerate()):
        return
    if _logging.acquire(blocking=False):  # else another thread does
        try:
            while _unlogged:
                logger.warning("overlaptop: %s", _unlogged.popleft())
        except Exception as fault:  # a handler of the job's raises, which has logged nothing here itself
            if raised_by_job(fault):
                raise
        finally:
            _logging.release()


def defer_exceptions(callback: Callable[P, None]) -> Callable[P, None]:
    """Wrap a callback that C code calls and whose exceptions it swallows: what the job throws into it is
    raised at that thread's next step, and the callback runs to its end.
    """

    @functools.wraps(callback)
    def deferring_callback(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            callback(*args, **kwargs)
        except BaseException as fault:
            if not raised_by_job(fault):
                raise
            raise_later(fault)
            callback(*args, **kwargs)

    return deferring_callback


def raise_later(fault: BaseException) -> None:
    """Raise this at the next step of this thread."""
    _deferred.setdefault(threading.get_ident(), []).append(fault)


def _raise_deferred() -> None:
    thread = threading.get_ident()  # nobody else touches what is this one's
    if (faults := _deferred.pop(thread, None)) is not None:
        if later := faults[1:]:
            _deferred[thread] = later
        raise faults[0]


def discard_deferred() -> None:
    """In a forked child: what is left to log and to raise is its parent's."""
    _unlogged.clear()
    _deferred.clear()


class FaultBarrier:
    """Keeps the agent's faults away from the job.

    Every hook and every thread of the agent runs its own code through `guarded`. What the job itself
    calls inside a hook is never guarded: its exceptions belong to the job.
    """

    def __init__(self, report: Callable[[str, str], None]) -> None:
        """``report(level, text)`` sends a notice to the dashboard; it may be called on any thread."""
        self.active = True
        """False once the agent has disabled itself: hooks then only call the job's own code."""
        self.on_disabled: Callable[[], bool] | None = None
        """Called by the job's threads once the agent has disabled itself, until it returns True: releases
        what only they can release."""
        self.pending: Callable[[], bool] = lambda: False
        """Whether other ranks still wait for something that this one has to do at a step's boundary. Must
        not raise."""
        self._report = report

    def guarded(
        self, where: str, call: Callable[P, R], *, at_boundaries: bool = False
    ) -> Callable[P, R | None]:
        """Wrap `call` so that it does nothing when inactive, and disables the agent when it raises.

        What the job throws into it (a signal handler's exception) goes on to the script.
        ``at_boundaries``: it finds the boundaries of steps, and works for as long as something is pending.
        """

        @functools.wraps(call)
        def guarded_call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            if at_boundaries and (_unlogged or _deferred):
                flush_log()
                _raise_deferred()
            if not self.active:
                self._release()
                if not (at_boundaries and self.pending()):
                    return None
            try:
                return call(*args, **kwargs)
            except Exception as fault:  # whatever it is, it must not reach the job
                if raised_by_job(fault):
                    raise
                self.disable(where, fault)
                return None

        return guarded_call

    def _release(self) -> None:
        try:
            if self.on_disabled is not None and self.on_disabled():
                self.on_disabled = None
        except Exception as fault:  # the first one has been logged
            if raised_by_job(fault):
                raise

    def disable(self, where: str, fault: BaseException) -> None:
        """Stop measuring for good; reported once, to the log and to the dashboard."""
        if not self.active:
            return
        self.active = False
        text = f"agent disabled itself: {type(fault).__name__} in {where}: {fault}"[:400]
        warn(f"{text}; the job goes on unmeasured")
        self._report("error", text)
