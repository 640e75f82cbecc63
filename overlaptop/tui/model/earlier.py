"""The jobs that were watched before the present one, a row for each setting of their knobs: what is kept of
them to compare it with. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.snapshot import HubState, RankView, Snapshot
from overlaptop.fleet.window import longest_going_ns
from overlaptop.jobs.record import JobRecord
from overlaptop.report.knobs import short_name
from overlaptop.report.order import all_see_gaps
from overlaptop.text import with_unit
from overlaptop.timeline import ratios
from overlaptop.wire.commands import CHANGED
from overlaptop.wire.messages import StepTotals

KEPT_STEPS = 256
"""Of each rank: enough for means and their spread."""
KEPT_RANKS = 64
"""Those with the lowest numbers."""
RUNS = "runs"
"""The state of a job that is live."""
CHANGED_SINCE = "changed"
"""The state of the steps before a knob was changed: the job went on with another value."""
MAX_JOBS = 20
WITH_STEPS = 3
"""So many of the newest jobs keep their steps; the others only their figures."""


class Setting(NamedTuple):
    """A knob, and the value in force."""

    knob: str
    value: str
    """With its unit."""
    changed: bool
    """It is not what the script gave."""

    @property
    def words(self) -> str:
        """``bucket 25 MiB``."""
        return f"{short_name(self.knob)} {self.value}"


class JobFigures(NamedTuple):
    """What steps amount to; None: not known."""

    step_ns: float | None = None
    overlap: float | None = None
    exposed_ns: float | None = None

    @classmethod
    def of(cls, steps: Mapping[int, Sequence[StepTotals]]) -> JobFigures:
        """Means over ranks and steps without those in which the job stood still; overlap is of the sums."""
        together = [step for each in steps.values() for step in each]
        limit_ns = longest_going_ns([step.step_ns for step in together])
        going = [step for step in together if step.step_ns <= limit_ns]
        if not going:
            return cls()
        exposed = [step.exposed_ns for step in going if step.exposed_ns is not None]
        hidden_ns = sum(step.hidden_ns or 0 for step in going)
        return cls(
            fmean(step.step_ns for step in going),
            ratios.overlap(hidden_ns, sum(step.comm_ns or 0 for step in going)),
            fmean(exposed) if exposed else None,
        )


@dataclass(frozen=True)
class EarlierJob:
    """A job under one setting of its knobs: the last one, unless it was changed since."""

    job: str
    """Its key; empty for one that never came so far."""
    label: str
    """What was asked for, ``ddp --bucket-cap-mb 50``, else the script."""
    how: str = ""
    """What became of it, in a word or two; empty: not known."""
    settings: tuple[Setting, ...] = ()
    """All its knobs."""
    since: int = 0
    """The first step under these settings."""
    exact: bool = True
    """Else compute is an upper bound, and so is overlap; exposed is a lower one."""
    steps: Mapping[int, tuple[StepTotals, ...]] = field(default_factory=dict)
    """By rank, oldest first, KEPT_STEPS at most, without those that a command disturbed."""
    steps_done: int = 0
    """Under these settings, of the rank that was furthest."""
    known: JobFigures | None = None
    """Its figures where they were worked out already: its steps may be gone."""
    number: int = 0
    """Larger for what came later."""

    @cached_property
    def figures(self) -> JobFigures:
        return JobFigures.of(self.steps) if self.known is None else self.known

    @property
    def named(self) -> str:
        return ", ".join((self.label, *(setting.words for setting in self.settings)))


def job_of(snapshot: Snapshot) -> EarlierJob:
    """What is to be kept of the job of a snapshot, under the settings that it has now.

    Raises ValueError where there is none in it.
    """
    changes = _changes_made(snapshot)
    since = changes[-1].step if changes else 0
    return _stretch(snapshot, changes, since or 0, None)


def _changes_made(snapshot: Snapshot) -> list[CommandView]:
    """Changes of knobs that all ranks have made, in the order of the steps from which on they hold."""
    made = [
        each for each in snapshot.changes if each.done and each.state == CHANGED and each.step is not None
    ]
    return sorted((each for each in made if each.was != each.becomes), key=lambda each: each.step or 0)


def _stretch(
    snapshot: Snapshot, changes: Sequence[CommandView], since: int, until: int | None
) -> EarlierJob:
    """The job in its steps ``[since, until)``; ``until`` None: to the last one."""
    if snapshot.job is None:
        raise ValueError("no job in this snapshot")
    views = snapshot.ranks[:KEPT_RANKS]
    newest = max((view.last.step for view in snapshot.ranks if view.last is not None), default=-1)
    return EarlierJob(
        job=snapshot.job.job,
        label=snapshot.job.script,
        how=_how_it_is(snapshot) if until is None else CHANGED_SINCE,
        settings=_settings(snapshot, changes, since),
        since=since,
        exact=all_see_gaps(snapshot.ranks),
        steps={view.rank: steps for view in views if (steps := _steps(view, since, until))},
        steps_done=max(0, (newest + 1 if until is None else until) - since),
    )


def _settings(snapshot: Snapshot, changes: Sequence[CommandView], since: int) -> tuple[Setting, ...]:
    """The values that held from step `since` on.

    By what was changed, where it was: ranks report a knob's value a moment sooner or later.
    """
    found = []
    for each in snapshot.knobs:
        knob, text = each.knob, each.knob.value_text
        own = [change for change in changes if change.knob == knob.name]
        if before := [change for change in own if (change.step or 0) <= since]:
            text = before[-1].becomes
        elif own:
            text = own[0].was
        found.append(Setting(knob.name, with_unit(text, knob.unit), text != knob.original_text))
    return tuple(found)


class JobsSeen:
    """Follows what is watched, and keeps what is left behind."""

    def __init__(self) -> None:
        self._filed: list[EarlierJob] = []
        self._last: Snapshot | None = None
        """The newest with a job that has made a step."""
        self._descriptions: dict[str, tuple[str, str]] = {}
        """By job, of those that were started from here: what was asked for, and how it ended."""
        self._places: dict[str, tuple[str, str, str]] = {}
        """By job, its script, folder and host."""
        self._jobs = 0
        """Counts all jobs, and each setting of theirs."""
        self._present_number = 0
        self._present_since = 0
        """The step from which on the present job has the settings that it has now."""
        self._present: tuple[Snapshot, EarlierJob] | None = None
        """Of which snapshot, and what was made of it."""

    def see(self, snapshot: Snapshot, record: JobRecord | None = None) -> None:
        """Take the next snapshot, of whichever job. ``record``: where that runs; None: not known now."""
        if record is not None:
            self._places[record.job] = record.script, record.cwd, record.host
            while len(self._places) > 2 * MAX_JOBS:
                del self._places[next(iter(self._places))]
        if snapshot.job is None or all(view.last is None for view in snapshot.ranks):
            return
        if self._present_job != snapshot.job.job:
            if self._last is not None:
                self._file(job_of(self._last))
            self._count_on()
            self._present_since = 0
        elif self._last is not None and not snapshot.knobs:
            # Of ranks that have ended nothing can be changed any more; the values held to the end.
            snapshot = replace(snapshot, knobs=self._last.knobs)
        self._last = snapshot
        self._file_settings_before(snapshot)

    def describe(self, job: str, label: str, how: str = "") -> None:
        """Record what a job that was started from here was asked for, and how it ended, if it did."""
        self._descriptions[job] = label, how
        self._present = None
        while len(self._descriptions) > 2 * MAX_JOBS:
            del self._descriptions[next(iter(self._descriptions))]

    def describe_end(self, job: str, label: str, how: str) -> None:
        """Record how a job ended, also one that never made a step. ``job``: empty without a key."""
        if job and (job == self._present_job or any(each.job == job for each in self._filed)):
            self.describe(job, label, how)
        else:
            self._jobs += 1
            self._file(EarlierJob(job, label, how), self._jobs)

    @property
    def present(self) -> EarlierJob | None:
        """The job that is watched, as it is now; None before the first step of any."""
        if self._last is None:
            return None
        if self._present is None or self._present[0] is not self._last:
            present = replace(job_of(self._last), number=self._present_number)
            self._present = self._last, self._described(present)
        return self._present[1]

    @property
    def before_change(self) -> EarlierJob | None:
        """The present job under the settings before its newest change; None: it was not seen so."""
        left = (job for job in reversed(self._filed) if job.job == self._present_job)
        since = self._present_since
        return next((job for job in left if job.how == CHANGED_SINCE and job.since < since), None)

    @property
    def earlier(self) -> EarlierJob | None:
        """The newest other job that the present one can be compared with, and whose steps are known;
        None: there was none.
        """
        left = reversed(self._filed)
        found = next((job for job in left if job.steps and self._is_alike(job.job)), None)
        return None if found is None else self._described(found)

    @property
    def all(self) -> Sequence[EarlierJob]:
        """Those that were left, changed or that failed, and the present one, in the order in which they
        came.
        """
        present = self.present
        left = [self._described(job) for job in self._filed if present is None or not _same(job, present)]
        listed = left if present is None else [*left, present]
        return sorted(listed, key=lambda job: job.number)

    @property
    def _present_job(self) -> str:
        return self._last.job.job if self._last is not None and self._last.job is not None else ""

    def _is_alike(self, job: str) -> bool:
        """Whether a job is not the present one, and they differ only in what was asked for: one was started
        from here in place of the other, or both are of one script, folder and host.
        """
        present = self._present_job
        if job == present:
            return False
        if job in self._descriptions and present in self._descriptions:
            return True
        return job in self._places and self._places[job] == self._places.get(present)

    def _count_on(self) -> None:
        self._jobs += 1
        self._present_number = self._jobs

    def _file_settings_before(self, snapshot: Snapshot) -> None:
        """Of each change that all ranks are past: the steps before it are a row of their own."""
        changes = _changes_made(snapshot)
        for change in changes:
            since, until = self._present_since, change.step or 0
            past = (view.last is None or view.ended or view.last.step >= until for view in snapshot.ranks)
            if since < until and all(past):
                left = _stretch(snapshot, changes, since, until)
                if left.steps and not self._is_filed(left):
                    self._file(replace(left, steps={}, known=left.figures))
                    self._count_on()
                self._present_since = until

    def _is_filed(self, left: EarlierJob) -> bool:
        """Whether it is a row already, and with more steps: the user was here before."""
        return any(_same(each, left) and each.how == CHANGED_SINCE for each in self._filed)

    def _file(self, job: EarlierJob, number: int = 0) -> None:
        """``number``: of a job that was never shown."""
        job = replace(job, known=job.figures, number=number or self._present_number)
        others = [each for each in self._filed if not job.job or not _same(each, job)]
        self._filed = [*others[1 - MAX_JOBS :], job]
        with_steps = [at for at, each in enumerate(self._filed) if each.steps]
        for at in with_steps[:-WITH_STEPS]:
            self._filed[at] = replace(self._filed[at], steps={})

    def _described(self, job: EarlierJob) -> EarlierJob:
        label, ended = self._descriptions.get(job.job, (job.label, ""))
        how = job.how if job.how == CHANGED_SINCE else ended or job.how
        return job if (label, how) == (job.label, job.how) else replace(job, label=label, how=how)


def _same(one: EarlierJob, other: EarlierJob) -> bool:
    return one.job == other.job and one.since == other.since


def _steps(view: RankView, since: int, until: int | None) -> tuple[StepTotals, ...]:
    """The newest of those steps, back to a change of a setting; read from the end: histories are long."""
    found: list[StepTotals] = []
    for step in reversed(view.history):
        if until is not None and step.step >= until:
            continue
        if step.step < since or step.changes_setting or len(found) == KEPT_STEPS:
            break
        if not step.disturbed:
            found.append(step)
    return tuple(reversed(found))


def _how_it_is(snapshot: Snapshot) -> str:
    if snapshot.hub_state is HubState.ENDED or all(view.ended for view in snapshot.ranks):
        return "ended"
    return RUNS if snapshot.hub_state is HubState.LIVE else ""
