"""The jobs that were watched before the present one: what is kept of them to compare it with. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from statistics import median
from typing import NamedTuple

from overlaptop.fleet.snapshot import LinkState, RankView, Snapshot
from overlaptop.wire.messages import StepTotals

KEPT_STEPS = 256
"""Of each rank: enough for medians and their spread."""
KEPT_RANKS = 64
"""Those with the lowest numbers."""
RUNS = "runs"
"""What is said of a job that is live."""
MAX_JOBS = 20
WITH_STEPS = 3
"""So many of the newest keep their steps; the others only their figures."""


@dataclass(frozen=True, slots=True)
class EarlierJob:
    """A job as it was when it was last watched, under the last settings that it had."""

    job: str
    """Its key; empty for one that never came so far."""
    label: str
    """What was asked for, ``ddp --bucket-cap-mb 50``, else the script."""
    command_line: str = ""
    """Empty where somebody else started it."""
    how: str = ""
    """What became of it, in a word or two; empty: not known."""
    changed: str = ""
    """What was changed of it while it ran: ``bucket_cap_mb 50``."""
    steps: Mapping[int, tuple[StepTotals, ...]] = field(default_factory=dict)
    """By rank, oldest first, KEPT_STEPS at most, without those that a command disturbed."""
    steps_done: int = 0
    """Of the rank that was furthest."""
    step_ns: float | None = None
    """Median over ranks of the median of their kept steps."""
    overlap: float | None = None
    """Of all kept steps: hidden over communication."""
    exposed_ns: float | None = None
    """Median over ranks of the median of their kept steps."""


def job_of(snapshot: Snapshot) -> EarlierJob:
    """What is to be kept of the job of a snapshot. Raises ValueError where there is none in it."""
    if snapshot.job is None:
        raise ValueError("no job in this snapshot")
    kept = {view.rank: steps for view in snapshot.ranks[:KEPT_RANKS] if (steps := _of_last_settings(view))}
    measured = [step for steps in kept.values() for step in steps if step.measured]
    comm_ns = sum(step.comm_ns or 0 for step in measured)
    hidden_ns = sum(step.hidden_ns or 0 for step in measured)
    changed = [
        f"{each.knob.name} {each.knob.value_text}"
        for each in snapshot.knobs
        if each.knob.value_text != each.knob.original_text
    ]
    return EarlierJob(
        job=snapshot.job.job,
        label=snapshot.job.script,
        changed=", ".join(changed),
        how=_how_it_is(snapshot),
        steps=kept,
        steps_done=max((view.last.step + 1 for view in snapshot.ranks if view.last is not None), default=0),
        step_ns=_median([_median([step.step_ns for step in steps]) for steps in kept.values()]),
        overlap=hidden_ns / comm_ns if comm_ns else None,
        exposed_ns=_median(
            [
                _median([step.exposed_ns for step in steps if step.exposed_ns is not None])
                for steps in kept.values()
            ]
        ),
    )


class JobsSeen:
    """Follows what is watched, and keeps what is left behind."""

    def __init__(self) -> None:
        self._filed: list[_Filed] = []
        self._last: Snapshot | None = None
        """The newest with a job that has made a step."""
        self._told: dict[str, _Told] = {}
        """By job, of those that were started from here."""
        self._jobs = 0
        """Counts all jobs."""
        self._number_in_sight = 0

    def see(self, snapshot: Snapshot) -> None:
        """Take the next snapshot, of whichever job."""
        if snapshot.job is None or all(view.last is None for view in snapshot.ranks):
            return
        if self._job_in_sight != snapshot.job.job:
            if self._last is not None:
                self._file(self._number_in_sight, job_of(self._last))
            self._jobs += 1
            self._number_in_sight = self._jobs
        self._last = snapshot

    def tell(self, job: str, label: str, command_line: str, how: str = "") -> None:
        """Say what was asked for, of a job that was started from here, and how it ended, if it did."""
        self._told[job] = _Told(label, command_line, how)
        while len(self._told) > 2 * MAX_JOBS:
            del self._told[next(iter(self._told))]

    def tell_end(self, job: str, label: str, command_line: str, how: str) -> None:
        """Say how a job ended; one that never made a step is listed too. `job` is empty where it had no key
        yet.
        """
        if job and (job == self._job_in_sight or any(each.job.job == job for each in self._filed)):
            self.tell(job, label, command_line, how)
        else:
            self._jobs += 1
            self._file(self._jobs, EarlierJob(job, label, command_line, how))

    @property
    def present(self) -> EarlierJob | None:
        """The job that is watched, as it is now; None before the first step of any."""
        return None if self._last is None else self._as_told(job_of(self._last))

    @property
    def earlier(self) -> EarlierJob | None:
        """The newest of the other jobs whose steps are known; None: there was none."""
        left = (each.job for each in reversed(self._filed))
        found = next((job for job in left if job.steps and job.job != self._job_in_sight), None)
        return None if found is None else self._as_told(found)

    @property
    def all(self) -> Sequence[EarlierJob]:
        """Those that were left or that failed and the present one, in the order in which they came."""
        here = self._job_in_sight
        listed = [_Filed(each.number, self._as_told(each.job)) for each in self._filed]
        listed = [each for each in listed if not here or each.job.job != here]
        if (present := self.present) is not None:
            listed.append(_Filed(self._number_in_sight, present))
        return [each.job for each in sorted(listed, key=lambda each: each.number)]

    @property
    def _job_in_sight(self) -> str:
        return self._last.job.job if self._last is not None and self._last.job is not None else ""

    def _file(self, number: int, job: EarlierJob) -> None:
        others = [each for each in self._filed if not job.job or each.job.job != job.job]
        self._filed = [*others[1 - MAX_JOBS :], _Filed(number, job)]
        with_steps = [at for at, each in enumerate(self._filed) if each.job.steps]
        for at in with_steps[:-WITH_STEPS]:
            number, left = self._filed[at]
            self._filed[at] = _Filed(number, replace(left, steps={}))

    def _as_told(self, job: EarlierJob) -> EarlierJob:
        told = self._told.get(job.job)
        if told is None:
            return job
        return replace(job, label=told.label, command_line=told.command_line, how=told.how or job.how)


class _Filed(NamedTuple):
    number: int
    """Larger for a job that came later."""
    job: EarlierJob


class _Told(NamedTuple):
    label: str
    command_line: str
    how: str


def _of_last_settings(view: RankView) -> tuple[StepTotals, ...]:
    newest_first = takewhile(lambda step: not step.transitional, reversed(view.history))
    kept = [step for step in newest_first if not step.disturbed][:KEPT_STEPS]
    return tuple(reversed(kept))


def _how_it_is(snapshot: Snapshot) -> str:
    if snapshot.link is LinkState.ENDED or all(view.ended for view in snapshot.ranks):
        return "ended"
    return RUNS if snapshot.link is LinkState.LIVE else ""


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
