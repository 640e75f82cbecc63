"""A change of a running job, before and after: what became of its steps, and is it more than noise.

Before are the steps that ran with the value it took away, after those that ran with the value it brought:
in the two stretches beside the change, at most `MOST_STEPS` each, and in earlier ones where the job went
from one of the two values to the other and back. A verdict thus has to hold for each of these changes
(alternation.py); where there was one only, it takes more steps. Left out are steps that a command
disturbed, on whichever rank, and those that ran with another setting of any knob.

Two jobs, one after the other, are compared by all their steps, and by what the machine drifts (drift.py).

Over the ranks, step by step: the step time, exposed, stall and collectives are the mean of the ranks that
know them, and overlap is the sum of hidden over the sum of comm, as in the job's totals.

A knob may change how much work a step does (batches that share one optimizer step). Times and collectives
of such steps stand side by side without a verdict; overlap is a share, and keeps its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.snapshot import RankView, Snapshot
from overlaptop.stats.alternation import change_by, steps_missing, usable
from overlaptop.stats.drift import FEWEST_BEFORE, WINDOWS, drift
from overlaptop.stats.noise import FEWEST, Difference, Estimate, between, both, estimate
from overlaptop.text import plural, with_unit
from overlaptop.timeline import ratios
from overlaptop.wire.commands import CHANGED
from overlaptop.wire.messages import StepTotals

MOST_STEPS = 384
"""In a stretch."""
MOST_STRETCHES = 8
KEPT_STEPS = 2048
MOST_RANKS = 64
"""Beyond it, as many that are spread evenly stand for all."""
FIRST_LOOK = 16_384
"""Steps of all ranks that are read at once when a job is first seen."""
KEPT_CHANGES = 256
NOT_MEASURED = "not measured"
OTHER_WORK = "not compared: a step does other work"


class VerdictKind(Enum):
    """What a verdict tells, whatever its words."""

    DIFFERENCE = auto()
    """How far the two sides are apart, which may be within noise."""
    NEEDS_STEPS = auto()
    """Nothing yet: more steps will tell."""
    NOT_KNOWN = auto()
    OTHER_WORK = auto()
    """Nothing: the figures stand side by side, but are not of the same thing."""
    NOT_MEASURED = auto()


class _Verdict(NamedTuple):
    kind: VerdictKind
    words: str
    difference: Difference | None = None


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
    """Of every verdict of the kind DIFFERENCE; None with any other."""
    verdict_kind: VerdictKind
    verdict: str
    """In words: ``3.1 % shorter (2.4 to 3.8)``, or why there is no difference to tell of."""
    better: bool | None
    """None: no difference beyond noise, or one that is neither good nor bad."""

    @property
    def needs_steps(self) -> bool:
        """Whether more steps will tell."""
        return self.verdict_kind is VerdictKind.NEEDS_STEPS

    @property
    def is_other_work(self) -> bool:
        """Whether the two sides are not of the same thing."""
        return self.verdict_kind is VerdictKind.OTHER_WORK


@dataclass(frozen=True, slots=True)
class Comparison:
    """The newest change that was made, and what came of it; or two jobs beside each other."""

    command: str
    """The id of the command that asked for it; empty: they are two jobs."""
    title: str
    """``bucket_cap_mb 25 → 50 MiB at step 1,204``."""
    knob: str
    was: str
    becomes: str
    changes: int
    """The change between these values, and those before it that led from one of them to the other: so many
    are judged together."""
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
            return ratios.overlap(self.hidden_ns, self.comm_ns)
        return self.sums[name] / self.known[name] if self.known[name] else None


_Stretch: TypeAlias = list[_Step]
"""Steps of one value, oldest first, undisturbed."""
_Judge: TypeAlias = Callable[[_Kind, Sequence[Sequence[float]], tuple[Estimate, Estimate]], _Verdict]


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
    return _quantities(sides, _judge_jobs, same_work=same_work)


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
        for command in snapshot.changes:
            kept_the_value = _made(command) and command.was == command.becomes
            if command.step is not None and not kept_the_value:
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
        self._stretches: tuple[str, list[_Stretch]] = ("", [])
        """The newest change's id, and the stretches that are compared."""
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
        counting = [at for at, change in enumerate(changes) if _made(change) and not change.search]
        if not counting:
            return None
        at = counting[-1]
        newest, bounds = changes[at], _bounds(changes, at)
        stretches = self._choose(newest.id, bounds)
        if not stretches[-2]:
            return None  # nobody saw what was before
        about = (newest.id, bounds[-1], *(sum(step.ranks for step in stretch) for stretch in stretches))
        if self._latest is None or self._latest[0] != about:
            self._latest = about, _comparison(newest, snapshot, stretches)
        return self._latest[1]

    def _choose(self, change: str, bounds: Sequence[tuple[int, float]]) -> list[_Stretch]:
        """The undisturbed steps of each stretch, oldest first."""
        *between, last = (_undisturbed(self._steps, since, until) for since, until in bounds)
        stretches = [between[0][-MOST_STEPS:], *between[1:], last[:MOST_STEPS]]
        known, kept = self._stretches
        if known == change and len(kept) == len(stretches):
            forgotten = min(self._steps, default=0)
            stretches = [
                old if old and old[0].number < forgotten else new
                for old, new in zip(kept, stretches, strict=True)
            ]
        self._stretches = change, stretches
        return stretches


def _bounds(changes: Sequence[CommandView], at: int) -> list[tuple[int, float]]:
    """The first step and the end of each stretch of one of the two values of this change, in turn, oldest
    first; the last one is that after it.
    """
    change = changes[at]
    steps = [each.step or 0 for each in changes]
    bounds = [(steps[at], min((step for step in steps if step > steps[at]), default=math.inf))]
    for earlier in reversed(changes[:at]):
        if earlier.step is None or earlier.step >= bounds[0][0]:
            continue
        bounds.insert(0, (earlier.step, bounds[0][0]))
        back = (earlier.knob, earlier.was, earlier.becomes) == (change.knob, change.becomes, change.was)
        if not (_made(earlier) and back) or len(bounds) == MOST_STRETCHES:
            return bounds
        change = earlier
    return [(0, bounds[0][0]), *bounds]


def _made(change: CommandView) -> bool:
    return change.done and change.state == CHANGED


def _comparison(change: CommandView, snapshot: Snapshot, stretches: Sequence[_Stretch]) -> Comparison:
    assert change.step is not None
    knob = next((each.knob for each in snapshot.knobs if each.knob.name == change.knob), None)
    becomes = with_unit(change.becomes, knob.unit if knob is not None else "")
    same_work = knob is None or not knob.changes_work
    return Comparison(
        command=change.id,
        title=f"{change.knob} {change.was} → {becomes} at step {change.step:,}",
        knob=change.knob,
        was=change.was,
        becomes=change.becomes,
        changes=usable([len(stretch) for stretch in stretches]) - 1,
        quantities=_quantities(stretches, _judge_change, same_work=same_work),
    )


def _quantities(stretches: Sequence[_Stretch], judge: _Judge, *, same_work: bool) -> tuple[Quantity, ...]:
    return tuple(_quantity(kind, stretches, judge, same_work=same_work) for kind in _KINDS)


def _quantity(kind: _Kind, stretches: Sequence[_Stretch], judge: _Judge, *, same_work: bool) -> Quantity:
    series = [
        [figure for step in steps if (figure := step.figure(kind.name)) is not None] for steps in stretches
    ]
    before, after = (list(chain(*series[first % 2 :: 2])) for first in (len(series), len(series) - 1))
    found = both(before, after)
    first, second = found or (estimate(before), estimate(after))
    if found is None:
        verdict = _Verdict(VerdictKind.NOT_MEASURED, NOT_MEASURED)
    elif not same_work and not kind.is_share:
        verdict = _Verdict(VerdictKind.OTHER_WORK, OTHER_WORK)
    else:
        verdict = judge(kind, series, found)
    apart, better = verdict.difference, None
    if apart is not None and apart.beyond_noise and kind.better:
        better = (apart.change > 0) == (kind.better > 0)
    return Quantity(kind.name, kind.title, first, second, apart, verdict.kind, verdict.words, better)


def _judge_change(
    kind: _Kind, series: Sequence[Sequence[float]], found: tuple[Estimate, Estimate]
) -> _Verdict:
    """The difference that a change made, and the verdict: where it is not known, what is needed."""
    lengths = [len(stretch) for stretch in series]
    number = usable(lengths)
    by_noise = between(*found)
    if kind.better:
        missing = steps_missing(lengths[-number:])
    else:  # the machine adds no collectives
        missing = None if lengths[-2] < FEWEST else max(0, FEWEST - lengths[-1])
    if missing is None:
        return _not_known(f"{lengths[-2]} measured steps before it, {FEWEST} are needed")
    if missing:
        return _not_yet(missing)
    apart = change_by(series[-number:], found[0].centre) if kind.better else by_noise
    assert apart is not None
    if by_noise is not None and by_noise.beyond_noise and not apart.beyond_noise:
        return _not_known(f"the machine drifts by {_share(kind, apart)}")
    return _told(kind, apart)


def _judge_jobs(
    kind: _Kind, series: Sequence[Sequence[float]], found: tuple[Estimate, Estimate]
) -> _Verdict:
    """The difference of two jobs, with the machine's drift in its interval."""
    before, after = map(len, series)
    if before < FEWEST_BEFORE:
        return _not_known(f"{before} measured steps before it, {FEWEST_BEFORE} are needed")
    apart, drifts = between(*found), drift(*series)
    if apart is None or drifts is None:
        return _not_yet(FEWEST - after)
    reach = max((apart.high - apart.low) / 2, drifts)
    wide = Difference(apart.base, apart.change, apart.change - reach, apart.change + reach)
    if apart.beyond_noise and not wide.beyond_noise:
        more = before // WINDOWS - after
        if more > 0:  # shorter windows differ more
            return _not_yet(more)
        return _not_known(f"the machine drifts by {_share(kind, wide)}")
    return _told(kind, wide)


def _not_known(why: str) -> _Verdict:
    return _Verdict(VerdictKind.NOT_KNOWN, f"not known: {why}")


def _not_yet(more: int) -> _Verdict:
    return _Verdict(VerdictKind.NEEDS_STEPS, f"not known yet: {plural(more, 'more step')}")


def _told(kind: _Kind, apart: Difference) -> _Verdict:
    words = apart.words(kind.less, kind.more, points=kind.is_share)
    return _Verdict(VerdictKind.DIFFERENCE, words, apart)


def _share(kind: _Kind, wide: Difference) -> str:
    """How far its interval reaches: ``±12 %``."""
    reach = (wide.high - wide.low) / 2
    unit, of = ("points", 1.0) if kind.is_share else ("%", abs(wide.base))
    if not of:
        return "more"
    percent = 100 * reach / of
    return f"±{percent:.2g} {unit}" if percent < 10 else f"±{percent:,.0f} {unit}"


def _undisturbed(steps: dict[int, _Step], since: int, until: float) -> list[_Step]:
    """Those of ``[since, until)`` that no command disturbed, oldest first."""
    numbers = sorted(number for number in steps if since <= number < until)
    return [steps[number] for number in numbers if not steps[number].disturbed]


def _chosen(ranks: Sequence[RankView]) -> Sequence[RankView]:
    every = -(-len(ranks) // MOST_RANKS)
    return ranks[::every] if every > 1 else ranks
