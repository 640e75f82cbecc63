"""The watched jobs: a row for each job and knob setting, and the steps before and after the newest change.

Means without a verdict: only a trial tells a change from the machine's drift. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from statistics import fmean
from typing import NamedTuple

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.snapshot import HubState, RankView, Snapshot
from overlaptop.fleet.window import longest_going_ns, overlap_of
from overlaptop.report.knobs import short_name
from overlaptop.report.order import all_see_gaps
from overlaptop.text import shortened, with_unit
from overlaptop.wire.commands import CHANGED
from overlaptop.wire.messages import StepTotals

KEPT_STEPS = 256  # Newest steps kept for each rank: enough for means
KEPT_RANKS = 64  # Ranks kept, those with the lowest numbers
MAX_ROWS = 20
_HEAD_CELLS = 28


class Setting(NamedTuple):
    """A knob and its present value."""

    knob: str
    value: str
    changed: bool  # True if it differs from the script's value

    @property
    def words(self) -> str:
        return f"{short_name(self.knob)} {self.value}"


@dataclass(frozen=True, slots=True)
class EarlierJob:
    """A job under one setting of its knobs, the last one unless it was changed since."""

    job: str  # Key; empty for a job that failed before it had one
    label: str  # The request, ``ddp --bucket-cap-mb 50``, else the script
    how: str = ""  # Its end or state; empty: not known
    settings: tuple[Setting, ...] = ()
    since: int = 0
    exact: bool = True  # If False, compute and overlap are upper bounds, and exposed is a lower one
    step_ns: float | None = None
    overlap: float | None = None
    exposed_ns: float | None = None  # Means of its steps; None: not known
    steps_done: int = 0  # Steps of the furthest rank under these settings

    @property
    def key(self) -> tuple[str, int]:
        return self.job or f"{self.label}: {self.how}", self.since

    @property
    def named(self) -> str:
        return ", ".join((self.label, *(setting.words for setting in self.settings)))


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Two groups of steps to compare."""

    title: str  # ``bucket 25 MiB → 50 MiB at step 1,204``
    old: str
    new: str  # The difference, with units
    before: EarlierJob
    after: EarlierJob
    same_work: bool  # True if both do the same work per step; else times are not compared

    @property
    def of_change(self) -> bool:
        """True for a change of a knob, False for two jobs."""
        return self.before.job == self.after.job


class JobsSeen:
    """Follows the watched jobs, and keeps the earlier ones."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, int], EarlierJob] = {}  # By `EarlierJob.key`, oldest first
        self._last: Snapshot | None = None  # The newest snapshot of a job with a step
        self._job = self._script = ""
        self._since = 0  # First step with the job's present settings
        self._descriptions: dict[str, tuple[str, str]] = {}
        """By job started here: the request, and how it ended."""
        self._present: tuple[Snapshot, EarlierJob] | None = None

    def see(self, snapshot: Snapshot) -> None:
        """Add the next snapshot, of any job."""
        if (job := snapshot.job) is None or all(view.last is None for view in snapshot.ranks):
            return
        if self._job != job.job:
            if (present := self.present) is not None:
                self._leave(present)
            self._since = 0
        elif self._last is not None and not snapshot.knobs:
            # Ended ranks have no knobs to change, but the values held until the end.
            snapshot = replace(snapshot, knobs=self._last.knobs)
        self._last, self._job, self._script = snapshot, job.job, job.script
        for change in _changes_made(snapshot):
            until = change.step or 0
            past = (view.last is None or view.ended or view.last.step >= until for view in snapshot.ranks)
            if self._since < until and all(past):
                left = _row(snapshot, self._since, until)
                if left.step_ns is not None and left.key not in self._left:
                    self._leave(left)
                self._since = until

    def describe(self, job: str, label: str, how: str = "") -> None:
        """Record the request of a job that was started here, and how it ended. ``job``: may be empty."""
        if how and all(each.job != job or not job for each in self.all):
            self._leave(EarlierJob(job, label, how))
        else:
            self._descriptions[job] = label, how

    @property
    def present(self) -> EarlierJob | None:
        """Return the watched job; None before its first step."""
        if self._last is None:
            return None
        if self._present is None or self._present[0] is not self._last:
            self._present = self._last, _row(self._last, self._since, None)
        return self._described(self._present[1])

    @property
    def earlier(self) -> EarlierJob | None:
        """Return the newest other job with figures and the same script, or started here as this one was."""
        here = self._job in self._descriptions
        for each in reversed(self._left.values()):
            alike = each.label == self._script or (here and each.job in self._descriptions)
            if alike and each.job != self._job and each.step_ns is not None:
                return self._described(each)
        return None

    def compare(self, snapshot: Snapshot) -> BeforeAfter | None:
        """Return the steps before and after the newest change, else the earlier job and this one."""
        own = (each for each in reversed(self._left.values()) if each.job == self._job)
        before = next((each for each in own if each.since < self._since), None) or self.earlier
        after = self.present
        if before is None or after is None or snapshot.job is None or snapshot.job.job != after.job:
            return None
        return _beside(before, after, snapshot)

    @property
    def all(self) -> list[EarlierJob]:
        """Return earlier, changed and failed jobs in order, the present one last."""
        present, left = self.present, map(self._described, self._left.values())
        if present is None:
            return list(left)
        return [*(each for each in left if each.key != present.key), present]

    def _leave(self, row: EarlierJob) -> None:
        self._left.pop(row.key, None)
        self._left[row.key] = row
        if len(self._left) > MAX_ROWS:
            del self._left[next(iter(self._left))]

    def _described(self, row: EarlierJob) -> EarlierJob:
        label, ended = self._descriptions.get(row.job, (row.label, ""))
        how = row.how if row.how == "changed" else ended or row.how
        return replace(row, label=label, how=how)


def _row(snapshot: Snapshot, since: int, until: int | None) -> EarlierJob:
    """Return the row of the steps ``[since, until)``; ``until`` None: up to the last step."""
    assert snapshot.job is not None
    newest = max((view.last.step for view in snapshot.ranks if view.last is not None), default=-1)
    steps = [step for view in snapshot.ranks[:KEPT_RANKS] for step in _steps(view, since, until)]
    limit_ns = longest_going_ns([step.step_ns for step in steps])
    going = [step for step in steps if step.step_ns <= limit_ns]  # without stalls of the job
    exposed = [step.exposed_ns for step in going if step.exposed_ns is not None]
    return EarlierJob(
        job=snapshot.job.job,
        label=snapshot.job.script,
        how=_how_it_is(snapshot) if until is None else "changed",
        settings=settings(snapshot, since),
        since=since,
        exact=all_see_gaps(snapshot.ranks),
        step_ns=fmean(step.step_ns for step in going) if going else None,
        overlap=overlap_of(going),
        exposed_ns=fmean(exposed) if exposed else None,
        steps_done=max(0, (newest + 1 if until is None else until) - since),
    )


def _changes_made(snapshot: Snapshot) -> Sequence[CommandView]:
    """Return completed changes of knobs, in the order of their steps."""
    made = (each for each in snapshot.changes if each.done and each.state == CHANGED)
    return sorted((each for each in made if each.old != each.new), key=lambda each: each.step or 0)


def settings(snapshot: Snapshot, since: int) -> tuple[Setting, ...]:
    """Return the values from step `since` on.

    A changed value comes from its change, since ranks report a knob's value at slightly different times.
    """
    found, changes = [], _changes_made(snapshot)
    for each in snapshot.knobs:
        knob, text = each.knob, each.knob.value_text
        own = [change for change in changes if change.knob == knob.name]
        if before := [change for change in own if (change.step or 0) <= since]:
            text = before[-1].new
        elif own:
            text = own[0].old
        found.append(Setting(knob.name, with_unit(text, knob.unit), text != knob.original_text))
    return tuple(found)


def _steps(view: RankView, since: int, until: int | None) -> list[StepTotals]:
    """Return the newest of these steps since the last change of a setting that no command disturbed."""
    before = (step for step in reversed(view.history) if until is None or step.step < until)
    unchanged = takewhile(lambda step: step.step >= since and not step.changes_setting, before)
    return list(islice((step for step in unchanged if not step.disturbed), KEPT_STEPS))


def _how_it_is(snapshot: Snapshot) -> str:
    if snapshot.hub_state is HubState.ENDED or all(view.ended for view in snapshot.ranks):
        return "ended"
    return "runs" if snapshot.hub_state is HubState.LIVE else ""


def _beside(before: EarlierJob, after: EarlierJob, snapshot: Snapshot) -> BeforeAfter:
    values = {setting.knob: setting.value for setting in after.settings}
    differ = [each for each in before.settings if values.get(each.knob, each.value) != each.value]
    old, new = before.label, after.label
    title = f"compared with the {'run' if old == new else 'job'} before: {before.named}"
    if before.job == after.job:
        words = [(each.value, values[each.knob]) for each in differ]
        old, new = (", ".join(side) for side in zip(*words, strict=True)) if words else ("before", "now")
        names = " and ".join(short_name(each.knob) for each in differ)
        title = f"{names} {old} → {new} at step {after.since:,}"
    elif old == new:
        old, new = "before", "now"
    # Options may intentionally change a step's work.
    work = {each.knob.name for each in snapshot.knobs if each.knob.changes_work}
    same_work = all(each.knob not in work for each in differ)
    old, new = shortened(old, _HEAD_CELLS), shortened(new, _HEAD_CELLS)
    return BeforeAfter(title, old, new, before, after, same_work)
