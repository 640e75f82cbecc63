"""What a change brought, before and after, as the panel shows it; or a job beside the one before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.text import shortened, with_unit
from overlaptop.wire.commands import CHANGED

if TYPE_CHECKING:
    from overlaptop.stats.comparison import Comparer, Comparison
    from overlaptop.tui.workloads.earlier import EarlierJob, Setting

EVERY_S = 2.0
"""Two jobs' steps are compared no more often: all figures are worked out anew."""
DEFAULTS = "the defaults"
"""Heads the job that was asked for nothing that the other was not."""
_HEAD_CELLS = 28


class Comparing:
    """Asked at each redraw; works figures out only where steps came that count."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._comparer: Comparer | None = None
        self._beside: tuple[str, Comparison] | None = None
        self._beside_s = 0.0

    def take(
        self, snapshot: Snapshot, earlier: EarlierJob | None, present: EarlierJob | None
    ) -> Comparison | None:
        """The newest change that was made, its values with their unit, else this job, which is `present`,
        beside the earlier one; None: neither.
        """
        changed = any(each.state == CHANGED and not each.search for each in snapshot.changes)
        if self._comparer is None and changed:
            # numpy takes 100 ms to import: not before there is something to compare.
            from overlaptop.stats.comparison import Comparer

            self._comparer = Comparer()
        found = self._comparer.take(snapshot) if self._comparer is not None else None
        if found is None:
            return self._take_beside(snapshot, earlier, present)
        unit = next((each.knob.unit for each in snapshot.knobs if each.knob.name == found.knob), "")
        return replace(found, was=with_unit(found.was, unit), becomes=with_unit(found.becomes, unit))

    def _take_beside(
        self, snapshot: Snapshot, earlier: EarlierJob | None, present: EarlierJob | None
    ) -> Comparison | None:
        if earlier is None or present is None or snapshot.job is None or earlier.job == snapshot.job.job:
            return None
        now_s = self._clock_s()
        if self._beside is None or self._beside[0] != earlier.job or now_s - self._beside_s >= EVERY_S:
            from overlaptop.stats.comparison import Comparison, compare_steps

            before = [step for steps in earlier.steps.values() for step in steps]
            after = [step for view in snapshot.ranks for step in view.history]
            title = f"beside the job before: {earlier.named}"
            was, becomes = what_differs(earlier, present) or ("before", "now")
            quantities = compare_steps(before, after, same_work=_same_work(snapshot, earlier, present))
            result = Comparison("", title, "", was, becomes, 1, quantities)
            self._beside, self._beside_s = (earlier.job, result), now_s
        return self._beside[1]


def _same_work(snapshot: Snapshot, one: EarlierJob, other: EarlierJob) -> bool:
    """Whether no knob has a step do more in one of two jobs than in the other. Options may: that was asked
    for.
    """
    work = {each.knob.name for each in snapshot.knobs if each.knob.changes_work}
    return all(left.knob not in work for left, _ in _knobs_that_differ(one, other))


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
