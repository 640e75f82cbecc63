"""The steps before the newest change and after it; or a job beside the one before it. Means, no verdict: a
trial tells a change from the machine's drift, these do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.report.knobs import short_name
from overlaptop.text import shortened

if TYPE_CHECKING:
    from overlaptop.tui.model.earlier import EarlierJob, JobFigures, JobsSeen, Setting

EVERY_S = 1.0
"""All figures are worked out anew, no more often."""
DEFAULTS = "the defaults"
"""Heads the job that was asked for nothing that the other was not."""
_HEAD_CELLS = 28


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Two stretches of steps."""

    key: tuple[str, int, str]
    """The same as long as these two stretches are compared."""
    title: str
    """``bucket 25 MiB → 50 MiB at step 1,204``."""
    was: str
    becomes: str
    """What tells one from the other, with units."""
    before: JobFigures
    after: JobFigures
    steps: tuple[int, int]
    """Of each."""
    of_change: bool
    """A knob was changed; else the two are jobs."""
    same_work: bool
    """A step does as much in both: else times are not compared."""


class Comparing:
    """Asked at each redraw; works figures out now and then."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._shown: BeforeAfter | None = None
        self._shown_s = 0.0

    def take(self, snapshot: Snapshot, seen: JobsSeen) -> BeforeAfter | None:
        """The newest change of the job, else this job beside the earlier one; None: neither."""
        before = seen.before_change or seen.earlier
        if before is None or snapshot.job is None:
            return None
        key = (before.job, before.since, snapshot.job.job)
        now_s = self._clock_s()
        if self._shown is None or self._shown.key != key or now_s - self._shown_s >= EVERY_S:
            after = seen.present
            if after is None or after.job != snapshot.job.job:
                return None
            of_change = before.job == after.job
            was, becomes = what_differs(before, after) or ("before", "now")
            title = f"beside the job before: {before.named}"
            knobs = _knobs_that_differ(before, after)
            if of_change:
                if len(knobs) == 1:
                    was, becomes = (setting.value for setting in knobs[0])
                names = " and ".join(short_name(left.knob) for left, _ in knobs)
                title = f"{names} {was} → {becomes} at step {after.since:,}"
            work = {each.knob.name for each in snapshot.knobs if each.knob.changes_work}
            self._shown_s = now_s
            self._shown = BeforeAfter(
                key,
                title,
                was,
                becomes,
                before.figures,
                after.figures,
                (before.steps_done, after.steps_done),
                of_change,
                # Options may have a step do more: that was asked for.
                all(left.knob not in work for left, _ in knobs),
            )
        return self._shown


def _knobs_that_differ(one: EarlierJob, other: EarlierJob) -> list[tuple[Setting, Setting]]:
    return [
        (left, right)
        for left in one.settings
        for right in other.settings
        if left.knob == right.knob and left.value != right.value
    ]


def what_differs(one: EarlierJob, other: EarlierJob) -> tuple[str, str] | None:
    """What each of two jobs was asked for and the other was not, and the knobs that differ, in short:
    ``bucket 50 MiB``, ``--layers 2``. None: nothing is known to differ.
    """
    knobs = _knobs_that_differ(one, other)
    named = {left.knob for left, _ in knobs}
    sides = ([left.words for left, _ in knobs], [right.words for _, right in knobs])
    parts = [_parts(each.label) for each in (one, other)]
    for side, own, others in zip(sides, parts, reversed(parts), strict=True):
        side += [
            part
            for part in own
            if part not in others and part[2:].split()[0].replace("-", "_") not in named
        ]
    if not any(sides):
        return None
    first, second = (shortened(" ".join(side) or DEFAULTS, _HEAD_CELLS) for side in sides)
    return first, second


def _parts(label: str) -> list[str]:
    """``ddp --layers 2 --deterministic``: ``ddp``, ``--layers 2``, ``--deterministic``."""
    name, *options = label.split(" --")
    return [name, *(f"--{option}" for option in options)]
