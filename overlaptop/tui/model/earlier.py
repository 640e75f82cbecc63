"""What was watched so far: a row for each job and setting of its knobs, with its figures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
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
"""Of each rank, the newest: enough for means."""
KEPT_RANKS = 64
"""Those with the lowest numbers."""
MAX_ROWS = 20
RUNS = "runs"
"""The state of a job that is live."""
CHANGED_SINCE = "changed"
"""The state of the steps before a knob was changed: the job went on with another value."""


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
    def of(cls, steps: Iterable[StepTotals]) -> JobFigures:
        """Means over steps without those in which the job stood still; overlap is of the sums."""
        together = list(steps)
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


_UNKNOWN = JobFigures()


@dataclass(frozen=True, slots=True)
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
    figures: JobFigures = _UNKNOWN
    steps_done: int = 0
    """Under these settings, of the rank that was furthest."""

    @property
    def named(self) -> str:
        return ", ".join((self.label, *(setting.words for setting in self.settings)))


class JobsSeen:
    """Follows what is watched, and keeps what is left behind."""

    def __init__(self) -> None:
        self._left: list[EarlierJob] = []
        self._last: Snapshot | None = None
        """The newest with a job that has made a step."""
        self._since = 0
        """The step from which on that job has the settings that it has now."""
        self._descriptions: dict[str, tuple[str, str]] = {}
        """By job, of those that were started from here: what was asked for, and how it ended."""
        self._places: dict[str, tuple[str, str, str]] = {}
        """By job, its script, folder and host."""
        self._present: tuple[Snapshot, EarlierJob] | None = None
        """Of which snapshot, and what was made of it."""

    def see(self, snapshot: Snapshot, record: JobRecord | None = None) -> None:
        """Take the next snapshot, of whichever job. ``record``: where that runs; None: not known now."""
        if record is not None:
            self._places[record.job] = record.script, record.cwd, record.host
        if snapshot.job is None or all(view.last is None for view in snapshot.ranks):
            return
        if self._present_job != snapshot.job.job:
            if (present := self.present) is not None:
                self._leave(present)
            self._since = 0
        elif self._last is not None and not snapshot.knobs:
            # Of ranks that have ended nothing can be changed any more; the values held to the end.
            snapshot = replace(snapshot, knobs=self._last.knobs)
        self._last = snapshot
        for change in _changes_made(snapshot):
            until = change.step or 0
            past = (view.last is None or view.ended or view.last.step >= until for view in snapshot.ranks)
            if self._since < until and all(past):
                left = _row(snapshot, self._since, until)
                if left.figures.step_ns is not None and all(not _same(left, each) for each in self._left):
                    self._leave(left)
                self._since = until

    def describe(self, job: str, label: str, how: str = "") -> None:
        """Record what a job that was started from here was asked for, and how it ended, if it did."""
        self._descriptions[job] = label, how

    def describe_end(self, job: str, label: str, how: str) -> None:
        """Record how a job ended, also one that never made a step. ``job``: empty without a key."""
        if job and any(each.job == job for each in self.all):
            self.describe(job, label, how)
        else:
            self._leave(EarlierJob(job, label, how))

    @property
    def present(self) -> EarlierJob | None:
        """The job that is watched, as it is now; None before the first step of any."""
        if self._last is None:
            return None
        if self._present is None or self._present[0] is not self._last:
            self._present = self._last, _row(self._last, self._since, None)
        return self._described(self._present[1])

    @property
    def before_change(self) -> EarlierJob | None:
        """The present job under the settings before its newest change; None: it was not seen so."""
        left = (each for each in reversed(self._left) if each.job == self._present_job)
        return next((each for each in left if each.since < self._since), None)

    @property
    def earlier(self) -> EarlierJob | None:
        """The newest other job that the present one can be compared with; None: there was none."""
        left = (each for each in reversed(self._left) if each.figures.step_ns is not None)
        found = next((each for each in left if self._is_alike(each.job)), None)
        return None if found is None else self._described(found)

    @property
    def all(self) -> list[EarlierJob]:
        """Those that were left, changed or that failed, in that order, and last the present one."""
        present = self.present
        left = [self._described(each) for each in self._left if present is None or not _same(each, present)]
        return left if present is None else [*left, present]

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

    def _leave(self, row: EarlierJob) -> None:
        others = [each for each in self._left if not row.job or not _same(each, row)]
        self._left = [*others[1 - MAX_ROWS :], row]

    def _described(self, row: EarlierJob) -> EarlierJob:
        label, ended = self._descriptions.get(row.job, (row.label, ""))
        how = row.how if row.how == CHANGED_SINCE else ended or row.how
        return replace(row, label=label, how=how)


def _row(snapshot: Snapshot, since: int, until: int | None) -> EarlierJob:
    """The job in its steps ``[since, until)``; ``until`` None: to the last one."""
    assert snapshot.job is not None
    newest = max((view.last.step for view in snapshot.ranks if view.last is not None), default=-1)
    return EarlierJob(
        job=snapshot.job.job,
        label=snapshot.job.script,
        how=_how_it_is(snapshot) if until is None else CHANGED_SINCE,
        settings=_settings(snapshot, since),
        since=since,
        exact=all_see_gaps(snapshot.ranks),
        figures=JobFigures.of(
            chain.from_iterable(_steps(view, since, until) for view in snapshot.ranks[:KEPT_RANKS])
        ),
        steps_done=max(0, (newest + 1 if until is None else until) - since),
    )


def _changes_made(snapshot: Snapshot) -> Sequence[CommandView]:
    """Changes of knobs that all ranks have made, in the order of the steps from which on they hold."""
    made = (each for each in snapshot.changes if each.done and each.state == CHANGED)
    return sorted((each for each in made if each.was != each.becomes), key=lambda each: each.step or 0)


def _settings(snapshot: Snapshot, since: int) -> tuple[Setting, ...]:
    """The values that held from step `since` on.

    By what was changed, where it was: ranks report a knob's value a moment sooner or later.
    """
    found, changes = [], _changes_made(snapshot)
    for each in snapshot.knobs:
        knob, text = each.knob, each.knob.value_text
        own = [change for change in changes if change.knob == knob.name]
        if before := [change for change in own if (change.step or 0) <= since]:
            text = before[-1].becomes
        elif own:
            text = own[0].was
        found.append(Setting(knob.name, with_unit(text, knob.unit), text != knob.original_text))
    return tuple(found)


def _steps(view: RankView, since: int, until: int | None) -> Iterable[StepTotals]:
    """The newest of those steps, back to a change of a setting, without those that a command disturbed."""

    def back() -> Iterable[StepTotals]:
        for step in reversed(view.history):
            if until is not None and step.step >= until:
                continue
            if step.step < since or step.changes_setting:
                return
            if not step.disturbed:
                yield step

    return islice(back(), KEPT_STEPS)


def _same(one: EarlierJob, other: EarlierJob) -> bool:
    return one.job == other.job and one.since == other.since


def _how_it_is(snapshot: Snapshot) -> str:
    if snapshot.hub_state is HubState.ENDED or all(view.ended for view in snapshot.ranks):
        return "ended"
    return RUNS if snapshot.hub_state is HubState.LIVE else ""
