"""The agent is a guest: a fault of its own is caught, said once, and the agent steps aside."""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from overlaptop.agent.isolation.job_exceptions import is_the_jobs

P = ParamSpec("P")
R = TypeVar("R")

MAX_UNSAID = 64

logger = logging.getLogger("overlaptop")
_unsaid: deque[str] = deque(maxlen=MAX_UNSAID)
_saying = threading.RLock()
_held: deque[tuple[int, BaseException]] = deque()
"""By thread: what the job threw into a callback whose exceptions C code swallows."""


def warn(text: str) -> None:
    """Say a line in the job's log: at once on a thread of the job's, else at its next step or its end."""
    _unsaid.append(text)
    say_due()


def say_due() -> None:
    """Say what other threads have left to say, unless this is one of them.

    Logging asks for the current thread, and one that `threading` does not know (ours, or one of C++) would
    be listed from then on, for good.
    """
    if not _unsaid or not any(each.ident == threading.get_ident() for each in threading.enumerate()):
        return
    if _saying.acquire(blocking=False):  # else another thread says it
        try:
            while _unsaid:
                logger.warning("overlaptop: %s", _unsaid.popleft())
        finally:
            _saying.release()


def sheltered(callback: Callable[P, None]) -> Callable[P, None]:
    """Wrap what C code calls and does not listen to: what the job throws into it is raised at the next step
    of that thread, and the callback is done all the same.
    """

    @functools.wraps(callback)
    def sheltered_callback(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            callback(*args, **kwargs)
        except BaseException as fault:
            if not is_the_jobs(fault):
                raise
            hold(fault)
            callback(*args, **kwargs)

    return sheltered_callback


def hold(fault: BaseException) -> None:
    """Raise this at the next step of this thread."""
    _held.append((threading.get_ident(), fault))


def _raise_held() -> None:
    for _ in range(len(_held)):
        thread, fault = _held.popleft()
        if thread == threading.get_ident():
            raise fault
        _held.append((thread, fault))


def forget_due() -> None:
    """In a forked child: what is left to say and to raise is its parent's."""
    _unsaid.clear()
    _held.clear()


class FaultBarrier:
    """Keeps the agent's faults away from the job.

    Every hook and every thread of the agent runs its own code through `guarded`. What the job itself
    calls inside a hook is never guarded: its exceptions belong to the job.
    """

    def __init__(self, report: Callable[[str, str], None]) -> None:
        """``report(level, text)`` carries a notice to the dashboard; it may be called on any thread."""
        self.active = True
        """False once the agent has stepped aside: hooks then do nothing but call the job's own code."""
        self.parting: Callable[[], bool] | None = None
        """Called by the job's threads once the agent has stepped aside, until it returns True: lets go of
        what only they can let go of."""
        self.owes: Callable[[], bool] = lambda: False
        """Whether other ranks still wait for something that this one has to do at a step's boundary. Must
        not raise."""
        self._report = report

    def guarded(self, where: str, call: Callable[P, R], *, kept: bool = False) -> Callable[P, R | None]:
        """Wrap `call` so that it does nothing when inactive and steps aside when it raises.

        What the job throws into it (a signal handler's exception) goes on to the script. ``kept``: it finds
        the boundaries of steps, and goes on for as long as something is owed.
        """

        @functools.wraps(call)
        def guarded_call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            if kept and (_unsaid or _held):
                say_due()
                _raise_held()
            if not self.active:
                self._part()
                if not (kept and self.owes()):
                    return None
            try:
                return call(*args, **kwargs)
            except Exception as fault:  # whatever it is, it must not reach the job
                if is_the_jobs(fault):
                    raise
                self.disable(where, fault)
                return None

        return guarded_call

    def _part(self) -> None:
        try:
            if self.parting is not None and self.parting():
                self.parting = None
        except Exception as fault:  # the log has been told of the first one
            if is_the_jobs(fault):
                raise

    def disable(self, where: str, fault: BaseException) -> None:
        """Stop measuring for good and say so once, to the log and to the dashboard."""
        if not self.active:
            return
        self.active = False
        text = f"agent stepped aside: {type(fault).__name__} in {where}: {fault}"[:400]
        warn(f"{text}; the job goes on unmeasured")
        self._report("error", text)
