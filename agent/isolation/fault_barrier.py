"""Keeps the agent's faults from the job: the first one is logged, then the agent disables itself."""

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
"""By thread: the job's exceptions, raised inside callbacks whose exceptions C code swallows."""


def warn(text: str) -> None:
    """Write a line to the job's log: at once on a job thread, else at the job's next step or end."""
    _unlogged.append(text)
    flush_log()


def flush_log() -> None:
    """Write the lines that other threads have left, unless this is an agent thread.

    Logging asks for the current thread. A thread unknown to `threading` (the agent's, or one of C++) would
    be listed from then on.
    """
    if not _unlogged or not any(each.ident == threading.get_ident() for each in threading.enumerate()):
        return
    if _logging.acquire(blocking=False):  # otherwise another thread is writing
        try:
            while _unlogged:
                logger.warning("overlaptop: %s", _unlogged.popleft())
        except Exception as fault:  # the job's log handler raised
            if raised_by_job(fault):
                raise
        finally:
            _logging.release()


def defer_exceptions(callback: Callable[P, None]) -> Callable[P, None]:
    """Wrap a callback whose exceptions its C caller swallows. The job's exceptions are raised at the
    thread's next step instead, and the callback runs to its end.
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
    """Raise this at this thread's next step."""
    _deferred.setdefault(threading.get_ident(), []).append(fault)


def _raise_deferred() -> None:
    thread = threading.get_ident()  # no other thread touches this thread's entry
    if (faults := _deferred.pop(thread, None)) is not None:
        if later := faults[1:]:
            _deferred[thread] = later
        raise faults[0]


def discard_deferred() -> None:
    """In a forked child: drop lines and exceptions that belong to the parent."""
    _unlogged.clear()
    _deferred.clear()


class FaultBarrier:
    """Keeps the agent's faults away from the job.

    Every agent hook and thread runs its own code through `guarded`. The job's code that runs inside a hook
    is never guarded: its exceptions belong to the job.
    """

    def __init__(self, report: Callable[[str, str], None]) -> None:
        """``report(level, text)`` sends a notice to the dashboard; it may be called on any thread."""
        self.active = True
        """False once the agent has disabled itself: hooks then only call the job's own code."""
        self.on_disabled: Callable[[], bool] | None = None
        """Called on the job's threads once the agent is disabled, until it returns True. It releases
        resources that only those threads can release."""
        self.pending: Callable[[], bool] = lambda: False
        """Whether other ranks still wait for this one to act at a step boundary. Must not raise."""
        self._report = report

    def guarded(
        self, where: str, call: Callable[P, R], *, at_boundaries: bool = False
    ) -> Callable[P, R | None]:
        """Wrap `call`: it does nothing if the agent is inactive, and disables the agent if it raises.

        Exceptions of the job's signal handlers pass through to the script. ``at_boundaries``: `call` finds
        step boundaries, and keeps working while `pending`.
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
            except Exception as fault:  # no fault of ours may reach the job
                if raised_by_job(fault):
                    raise
                self.disable(where, fault)
                return None

        return guarded_call

    def _release(self) -> None:
        try:
            if self.on_disabled is not None and self.on_disabled():
                self.on_disabled = None
        except Exception as fault:  # the first fault is logged already
            if raised_by_job(fault):
                raise

    def disable(self, where: str, fault: BaseException) -> None:
        """Stop measuring for good; reported once, to the log and the dashboard."""
        if not self.active:
            return
        self.active = False
        text = f"agent disabled itself: {type(fault).__name__} in {where}: {fault}"[:400]
        warn(f"{text}; the job goes on unmeasured")
        self._report("error", text)
