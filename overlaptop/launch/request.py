"""Starting jobs from the dashboard: what its screens know of whoever does it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from overlaptop.jobs.record import JobRecord
from overlaptop.workloads.catalog import Workload
from overlaptop.workloads.options import Defaults, OptionsError

MAX_NPROC = 256


class LaunchError(Exception):
    """The job cannot be started, or is not to be had; the message is one clear line."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A workload as somebody wants it to be run."""

    workload: str
    """Its name."""
    options: tuple[str, ...] = ()
    """As on a command line, a word each."""
    nproc: int | None = None
    """Processes; None: as many as suit the machine."""

    @classmethod
    def parse(cls, workload: str, options: str, nproc: str = "") -> LaunchRequest:
        """Of what was typed. Raises LaunchError where it cannot be read."""
        try:
            words = shlex.split(options)
        except ValueError as fault:
            raise LaunchError(f"the options end within a quotation: {fault}") from fault
        count = nproc.strip()
        if count and not (count.isascii() and count.isdecimal() and 0 < int(count[:9]) <= MAX_NPROC):
            raise LaunchError(f"processes: must be a whole number from 1 to {MAX_NPROC}, not {count!r}")
        return cls(workload, tuple(words), int(count) if count else None)

    @property
    def label(self) -> str:
        """``ddp --bucket-cap-mb 50``; with the number of processes where one was asked for."""
        words = shlex.join((self.workload, *self.options))
        if self.nproc is not None:
            words += f" ({self.nproc} processes)"
        return words


def checked(request: LaunchRequest, workloads: Sequence[Workload]) -> tuple[Workload, Mapping[str, object]]:
    """The workload of a request and the values of the options that were given, by Option.name. Raises
    LaunchError.
    """
    workload = next((each for each in workloads if each.name == request.workload), None)
    if workload is None:
        names = ", ".join(each.name for each in workloads)
        raise LaunchError(f"no workload is called {request.workload!r}; there are: {names}")
    try:
        return workload, workload.check(request.options)
    except OptionsError as fault:
        raise LaunchError(str(fault)) from fault


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What would be run for a request."""

    request: LaunchRequest
    fault: str = ""
    """Why it would not, in one line; the rest is then unknown. Empty: it would."""
    command_line: str = ""
    place: str = ""
    """On what, in words: ``2 GPUs, NCCL``."""
    nproc: int = 0
    defaults: Defaults = "cpu"
    """Which defaults the workload takes."""
    given: Mapping[str, object] = field(default_factory=dict)
    """The values of the options that were given, by Option.name."""


class LaunchPhase(Enum):
    """How far the newest request is."""

    NOTHING = "nothing was started"
    ENDING = "the job before is being ended"
    RUNNING = "its processes run"
    OVER = "it ended, or could not be started"


@dataclass(frozen=True, slots=True)
class LaunchStatus:
    """The newest request, and what became of it."""

    phase: LaunchPhase = LaunchPhase.NOTHING
    number: int = 0
    """Counts the requests: two of the same words are two."""
    request: LaunchRequest | None = None
    command_line: str = ""
    """What is run; empty until it is."""
    ending: str = ""
    """The label of the job that still has to end first."""
    failed: bool = False
    """OVER: not of its own will, and not of ours."""
    how: str = ""
    """OVER: how it ended: ``exit status 1``."""

    @property
    def label(self) -> str:
        """The request's own; empty where there is none."""
        return self.request.label if self.request is not None else ""


class JobLauncher(Protocol):
    """Starts a job in place of the one that it started before. It never touches any other job."""

    @property
    def workloads(self) -> Sequence[Workload]:
        """What it can start."""

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """What would be run. May look at the machine for a second: call it on a thread."""

    def start(self, plan: LaunchPlan) -> None:
        """End the job before and start this one; returns at once, ``status`` tells. Raises ValueError for a
        plan with a fault, and ends nothing then.
        """

    def stop(self) -> None:
        """End the job that was started; returns at once."""

    def status(self) -> LaunchStatus:
        """How it goes. Never blocks."""

    def output(self) -> Sequence[str]:
        """The last lines that the newest job wrote; of a failed one those that say why."""

    def owns(self, record: JobRecord) -> bool:
        """Whether this is the job that was started last."""

    @property
    def running(self) -> str:
        """Label of the job that would end with the dashboard, or for another one; empty: none runs."""
