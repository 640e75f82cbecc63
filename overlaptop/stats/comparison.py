"""A change of a running job, before and after: what became of its steps, and is it more than noise.

Before are the steps nearest to the change that ran with the value it took away, after those nearest to it
that ran with the value it brought; at most `MOST_STEPS` each, so that the two lie close together in time.
Left out are steps that a command disturbed, on whichever rank, and those that ran with an earlier or a
later setting of any knob. What the machine drifts meanwhile is still in the difference, so there is no
verdict on one that is not larger than that (drift.py); only a search, which measures in turn, can tell the
two apart.

Over the ranks, step by step: the step time, exposed, stall and collectives are the mean of the ranks that
know them, and overlap is the sum of hidden over the sum of comm, as in the job's totals.

A knob may change how much work a step does (batches that share one optimizer step). Times and collectives
of such steps stand side by side without a verdict; overlap is a share, and keeps its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.snapshot import RankView, Snapshot
from overlaptop.stats.drift import FEWEST_BEFORE, WINDOWS, drift
from overlaptop.stats.noise import FEWEST, Difference, Estimate, between, both, estimate
from overlaptop.text import plural
from overlaptop.wire.commands import CHANGED
from overlaptop.wire.messages import StepTotals

MOST_STEPS = 512
"""On each side."""
KEPT_STEPS = 4 * MOST_STEPS
MOST_RANKS = 64
"""Beyond it, as many that are spread evenly stand for all."""
FIRST_LOOK = 16_384
"""Steps of all ranks that are read at once when a job is first seen."""
KEPT_CHANGES = 256
NOT_MEASURED = "not measured"
NOT_KNOWN_YET = "not known yet: {more}"
NOT_KNOWN = "not known: {why}"
OTHER_WORK = "not compared: a step does other work"


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure of the steps, on both sides."""

    name: str
    """``step_ns``, ``overlap``, ``exposed_ns``, ``stall_ns`` or ``collectives``: the unit is in it."""
    title: str
    before: Estimate | None
    """None: no step knows it."""
    after: Estimate | None
    difference: Difference | None
    """None where it is not known whether there is one, or where its verdict is OTHER_WORK."""
    verdict: str
    """In words: ``3.1 % shorter (2.4 to 3.8)``; what is still needed where it is not known yet; OTHER_WORK
    where the two are not of the same thing."""
    better: bool | None
    """None: no difference beyond noise, or one that is neither good nor bad."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The newest change that was made, and what came of it."""

    command: str
    """The id of the command that asked for it."""
    title: str
    """``bucket_cap_mb 25 → 50 MiB at step 1,204``."""
    knob: str
    was: str
    becomes: str
    step: int
    """The agreed one: from it on the change was made."""
    quantities: tuple[Quantity, ...]
    """Step time, overlap, exposed, stall, collectives."""


class _Kind(NamedTuple):
    name: str
    title: str
    less: str
    more: str
    better: int
    """-1: less is better; 1: more is; 0: neither."""

    @property
    def is_share(self) -> bool:
        """Of the step's own communication: whatever work that does."""
        return self.name == "overlap"


_KINDS = (
    _Kind("step_ns", "step time", "shorter", "longer", -1),
    _Kind("overlap", "overlap", "less", "more", 1),
    _Kind("exposed_ns", "exposed", "less", "more", -1),
    _Kind("stall_ns", "stall", "less", "more", -1),
    _Kind("collectives", "collectives a step", "fewer", "more", 0),
)
_SUMMED = ("step_ns", "exposed_ns", "stall_ns", "collectives")


class _Step:
    """One step over the ranks."""

    __slots__ = ("comm_ns", "disturbed", "hidden_ns", "known", "number", "ranks", "sums")

    def __init__(self, number: int) -> None:
        self.number = number
        self.disturbed = False
        self.ranks = self.hidden_ns = self.comm_ns = 0
        self.sums, self.known = dict.fromkeys(_SUMMED, 0), dict.fromkeys(_SUMMED, 0)

    def add(self, step: StepTotals) -> None:
        """Take one rank's part."""
        self.disturbed |= step.disturbed
        self.ranks += 1
        if step.comm_ns is not None and step.hidden_ns is not None:
            self.comm_ns += step.comm_ns
            self.hidden_ns += step.hidden_ns
        for name in _SUMMED:
            if (figure := getattr(step, name)) is not None:
                self.sums[name] += figure
                self.known[name] += 1

    def figure(self, name: str) -> float | None:
        """Of all ranks that know it together; None: no rank does."""
        if name == "overlap":
            return self.hidden_ns / self.comm_ns if self.comm_ns else None
        return self.sums[name] / self.known[name] if self.known[name] else None


def compare_steps(
    before: Iterable[StepTotals], after: Iterable[StepTotals], *, same_work: bool = True
) -> tuple[Quantity, ...]:
    """Two stretches of steps, of one job or of two: any ranks, in order of their steps rank by rank.

    Steps that a command disturbed are left out. ``same_work``: a step does as much in both.
    """
    sides = []
    for steps in (before, after):
        together: dict[int, _Step] = {}
        for step in steps:
            together.setdefault(step.step, _Step(step.step)).add(step)
        sides.append(_undisturbed(together, 0, math.inf))
    return _quantities(*sides, same_work=same_work)


class Comparer:
    """Follows a job from snapshot to snapshot: it still knows the steps before a change when the fleet's
    history has let go of them.
    """

    def __init__(self) -> None:
        self._job: str | None = None
        self._forget(None)

    def take(self, snapshot: Snapshot) -> Comparison | None:
        """Take what is new; returns the newest change that was completed; None: there is none.

        Cheap enough for each redraw: a step is read once, and figures are worked out anew only when one
        came that counts.
        """
        ranks = _chosen(snapshot.ranks)
        if self._restarted(snapshot, ranks):
            self._forget(snapshot.job.job if snapshot.job is not None else None)
        self._read(ranks)
        for command in snapshot.commands:
            if command.knob and command.step is not None:
                self._changes[command.id] = command
        while len(self._changes) > KEPT_CHANGES:
            del self._changes[next(iter(self._changes))]
        return self._newest(snapshot)

    def _forget(self, job: str | None) -> None:
        self._job = job
        self._steps: dict[int, _Step] = {}
        self._seen: dict[int, int] = {}
        """Rank -> its newest step that was read."""
        self._changes: dict[str, CommandView] = {}
        self._sides: tuple[str, list[_Step], list[_Step]] = ("", [], [])
        """The newest change's id, the steps before it and after."""
        self._latest: tuple[object, Comparison] | None = None
        """What the figures were worked out from, and they."""

    def _restarted(self, snapshot: Snapshot, ranks: Sequence[RankView]) -> bool:
        if snapshot.job is not None and snapshot.job.job != self._job:
            return True
        return any(
            view.last is not None and view.last.step < self._seen.get(view.rank, -1) for view in ranks
        )

    def _read(self, ranks: Sequence[RankView]) -> None:
        first_look = max(1, FIRST_LOOK // max(1, len(ranks)))
        for view in ranks:
            seen = self._seen.get(view.rank)
            newest = reversed(view.history)
            for step in islice(newest, first_look if seen is None else None):
                if seen is not None and step.step <= seen:
                    break
                self._steps.setdefault(step.step, _Step(step.step)).add(step)
            if view.last is not None:
                self._seen[view.rank] = view.last.step
        if len(self._steps) > KEPT_STEPS:
            for number in sorted(self._steps)[: len(self._steps) - KEPT_STEPS]:
                del self._steps[number]

    def _newest(self, snapshot: Snapshot) -> Comparison | None:
        changes = sorted(self._changes.values(), key=lambda change: (change.step or 0, change.at_ns))
        newest = next((change for change in reversed(changes) if _counts(change)), None)
        if newest is None or newest.step is None:
            return None
        since = max((c.step for c in changes if c.step is not None and c.step < newest.step), default=0)
        until = min((c.step for c in changes if c.step is not None and c.step > newest.step), default=None)
        before, after = self._choose(newest.id, since, newest.step, until)
        if not before:
            return None  # nobody saw what was before
        about = (newest.id, until, sum(s.ranks for s in before), sum(s.ranks for s in after))
        if self._latest is None or self._latest[0] != about:
            self._latest = about, _comparison(newest, snapshot, before, after)
        return self._latest[1]

    def _choose(
        self, change: str, since: int, step: int, until: int | None
    ) -> tuple[list[_Step], list[_Step]]:
        """The steps before and after, each oldest first and undisturbed."""
        before = _undisturbed(self._steps, since, step)
        after = _undisturbed(self._steps, step, math.inf if until is None else until)
        known, kept_before, kept_after = self._sides
        if known == change and kept_before and min(self._steps) > kept_before[0].number:
            before, after = kept_before, kept_after  # the first steps are being forgotten
        self._sides = change, before[-MOST_STEPS:], after[:MOST_STEPS]
        return self._sides[1:]


def _counts(change: CommandView) -> bool:
    made = change.done and change.state == CHANGED and change.was != change.becomes
    return made and not change.search


def _comparison(
    change: CommandView, snapshot: Snapshot, before: list[_Step], after: list[_Step]
) -> Comparison:
    assert change.step is not None
    knob = next((each.knob for each in snapshot.knobs if each.knob.name == change.knob), None)
    becomes = f"{change.becomes} {knob.unit}" if knob is not None and knob.unit else change.becomes
    same_work = knob is None or not knob.changes_work
    return Comparison(
        command=change.id,
        title=f"{change.knob} {change.was} → {becomes} at step {change.step:,}",
        knob=change.knob,
        was=change.was,
        becomes=change.becomes,
        step=change.step,
        quantities=_quantities(before, after, same_work=same_work),
    )


def _quantities(
    before: Sequence[_Step], after: Sequence[_Step], *, same_work: bool
) -> tuple[Quantity, ...]:
    return tuple(_quantity(kind, before, after, same_work=same_work) for kind in _KINDS)


def _quantity(kind: _Kind, before: Sequence[_Step], after: Sequence[_Step], *, same_work: bool) -> Quantity:
    sides = [
        [figure for step in steps if (figure := step.figure(kind.name)) is not None]
        for steps in (before, after)
    ]
    found = both(*sides)
    if found is None:
        first, second = (estimate(side) for side in sides)
        return Quantity(kind.name, kind.title, first, second, None, NOT_MEASURED, None)
    if not same_work and not kind.is_share:
        return Quantity(kind.name, kind.title, *found, None, OTHER_WORK, None)
    apart, verdict = _judged(kind, sides, between(*found))
    better = None
    if apart is not None and apart.beyond_noise and kind.better:
        better = (apart.change > 0) == (kind.better > 0)
    return Quantity(kind.name, kind.title, *found, apart, verdict, better)


def _judged(
    kind: _Kind, sides: Sequence[Sequence[float]], apart: Difference | None
) -> tuple[Difference | None, str]:
    """The difference with the machine's drift in its interval, and the verdict; None: not known, which says
    what is still needed.
    """
    before, after = map(len, sides)
    if before < FEWEST_BEFORE:
        return None, NOT_KNOWN.format(why=f"{before} measured steps before it, {FEWEST_BEFORE} are needed")
    drifts = drift(*sides)
    if apart is None or drifts is None:
        return None, NOT_KNOWN_YET.format(more=plural(FEWEST - after, "more step"))
    reach = max((apart.high - apart.low) / 2, drifts)
    wide = Difference(apart.base, apart.change, apart.change - reach, apart.change + reach)
    if apart.beyond_noise and not wide.beyond_noise:
        more = before // WINDOWS - after
        if more > 0:  # shorter windows differ more
            return None, NOT_KNOWN_YET.format(more=plural(more, "more step"))
        return None, NOT_KNOWN.format(why=f"the machine drifts by {_share(kind, wide)}")
    return wide, wide.words(kind.less, kind.more, points=kind.is_share)


def _share(kind: _Kind, wide: Difference) -> str:
    """How far its interval reaches: ``±12 %``."""
    reach = (wide.high - wide.low) / 2
    if kind.is_share:
        return f"±{100 * reach:.2g} points"
    return f"±{100 * reach / abs(wide.base):.2g} %" if wide.base else "more"


def _undisturbed(steps: dict[int, _Step], since: int, until: float) -> list[_Step]:
    """Those of ``[since, until)`` that no command disturbed, oldest first."""
    numbers = sorted(number for number in steps if since <= number < until)
    return [steps[number] for number in numbers if not steps[number].disturbed]


def _chosen(ranks: Sequence[RankView]) -> Sequence[RankView]:
    every = -(-len(ranks) // MOST_RANKS)
    return ranks[::every] if every > 1 else ranks
