"""The agent is a guest: a fault of its own is caught, said once, and the agent steps aside."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("overlaptop")


class Guest:
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
        what only they can let go of. Must not raise."""
        self.owes: Callable[[], bool] = lambda: False
        """Whether other ranks still wait for something that this one has to do at a step's boundary. Must
        not raise."""
        self._report = report

    def guarded(self, where: str, call: Callable[P, R], *, kept: bool = False) -> Callable[P, R | None]:
        """Wrap `call` so that it does nothing when inactive and steps aside when it raises.

        ``kept``: it finds the boundaries of steps, and goes on for as long as something is owed.
        """

        @functools.wraps(call)
        def guarded_call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            if not self.active:
                if self.parting is not None and self.parting():
                    self.parting = None
                if not (kept and self.owes()):
                    return None
            try:
                return call(*args, **kwargs)
            except Exception as fault:  # noqa: BLE001 - whatever it is, it must not reach the job
                self.step_aside(where, fault)
                return None

        return guarded_call

    def step_aside(self, where: str, fault: BaseException) -> None:
        """Stop measuring for good and say so once, to the log and to the dashboard."""
        if not self.active:
            return
        self.active = False
        text = f"agent stepped aside: {type(fault).__name__} in {where}: {fault}"[:400]
        logger.warning("overlaptop: %s; the job goes on unmeasured", text)
        self._report("error", text)
