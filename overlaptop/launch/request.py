"""Requests for jobs, plans for them, and their progress."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from overlaptop.workloads.options import Defaults

MAX_NPROC = 256


class LaunchError(Exception):
    """The job cannot be started, or is not available. The message is one clear line."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A workload with the requested options."""

    workload: str
    options: tuple[str, ...] = ()
    nproc: int | None = None  # Number of processes. None: a suitable number for the machine.

    @classmethod
    def parse(cls, workload: str, options: str, nproc: str = "") -> "LaunchRequest":
        """Parse the user's input. Raises LaunchError if it is invalid."""
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
        """``ddp --bucket-cap-mb 50``, with the number of processes if one was requested."""
        processes = "" if self.nproc is None else f" ({self.nproc} processes)"
        return shlex.join((self.workload, *self.options)) + processes


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The command and placement for a request."""

    request: LaunchRequest
    fault: str = ""  # Why it cannot run, as one line; the other fields are then not valid. Empty if it can.
    command_line: str = ""
    place: str = ""  # Devices as text: ``2 GPUs, NCCL``
    nproc: int = 0
    defaults: Defaults = "cpu"  # Which of the workload's defaults apply
    given: Mapping[str, object] = field(default_factory=dict)  # Values of the given options, by Option.name


class LaunchPhase(Enum):
    """Progress of the newest request."""

    NOTHING = "nothing was started"
    ENDING = "the job before is being ended"
    RUNNING = "its processes run"
    OVER = "it ended, or could not be started"


@dataclass(frozen=True, slots=True)
class LaunchStatus:
    """The newest request and its progress."""

    phase: LaunchPhase = LaunchPhase.NOTHING
    number: int = 0  # Counts the requests, so that two equal ones differ
    request: LaunchRequest | None = None
    ending: str = ""  # Label of the job that still has to end first
    failed: bool = False  # OVER: the job neither finished nor was stopped by us
    how: str = ""  # OVER: how it ended, such as ``exit status 1``

    @property
    def label(self) -> str:
        return self.request.label if self.request is not None else ""
