"""Steps before and after the newest change; or a job and the previous one. Means without a verdict: only a
trial tells a change from the machine's drift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.report.knobs import short_name
from overlaptop.text import shortened
from overlaptop.tui.model.earlier import EarlierJob, JobsSeen

EVERY_S = 1.0
"""Shortest interval between two computations."""
_HEAD_CELLS = 28


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Two groups of steps to compare."""

    title: str
    """``bucket 25 MiB → 50 MiB at step 1,204``."""
    old: str
    new: str
    """The difference, with units."""
    before: EarlierJob
    after: EarlierJob
    same_work: bool
    """True if both do the same work per step; else times are not compared."""

    @property
    def of_change(self) -> bool:
        """True for a change of a knob, False for two jobs."""
        return self.before.job == self.after.job

    @property
    def key(self) -> tuple[str, int, str]:
        """Identifies the compared groups."""
        return self.before.job, self.before.since, self.after.job


class Comparing:
    """Compares at each redraw, and computes figures at most once in EVERY_S."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._shown: BeforeAfter | None = None
        self._shown_s = 0.0

    def take(self, snapshot: Snapshot, seen: JobsSeen) -> BeforeAfter | None:
        """Return the newest change, else this job and the earlier one; None: neither."""
        before = seen.before_change or seen.earlier
        if before is None or snapshot.job is None:
            return None
        key, now_s = (before.job, before.since, snapshot.job.job), self._clock_s()
        if self._shown is None or self._shown.key != key or now_s - self._shown_s >= EVERY_S:
            after = seen.present
            if after is None or after.job != snapshot.job.job:
                return None
            self._shown, self._shown_s = _beside(before, after, snapshot), now_s
        return self._shown


def _beside(before: EarlierJob, after: EarlierJob, snapshot: Snapshot) -> BeforeAfter:
    values = {setting.knob: setting.value for setting in after.settings}
    differ = [each for each in before.settings if values.get(each.knob, each.value) != each.value]
    old, new = before.label, after.label
    title = f"beside the job before: {before.named}"
    if before.job == after.job:
        words = [(each.value, values[each.knob]) for each in differ]
        if len(differ) > 1:
            words = [(each.words, f"{short_name(each.knob)} {values[each.knob]}") for each in differ]
        old, new = (", ".join(side) for side in zip(*words, strict=True)) if words else ("before", "now")
        names = " and ".join(short_name(each.knob) for each in differ)
        title = f"{names} {old} → {new} at step {after.since:,}"
    elif old == new:
        old, new = "before", "now"
    # Options may intentionally change a step's work.
    work = {each.knob.name for each in snapshot.knobs if each.knob.changes_work}
    same_work = all(each.knob not in work for each in differ)
    return BeforeAfter(
        title, shortened(old, _HEAD_CELLS), shortened(new, _HEAD_CELLS), before, after, same_work
    )
