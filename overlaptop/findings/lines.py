"""The script line where a rank spends more of its step than the others, from stack samples."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import inf, sqrt
from statistics import median

from overlaptop import text
from overlaptop.findings.finding import Evidence
from overlaptop.timeline.averages import median_without
from overlaptop.wire.messages import StackLine

FEWEST_SAMPLES = 8
LEAST_MORE, ERRORS = 0.08, 3.0
"""Smallest excess over the others' median: as a share of the samples, and in standard errors. Of a dozen
lines, one differs by two errors by chance."""
NEWEST_NS = 8_000_000_000
"""Age limit of samples of a sleeping thread: older ones would hide a stall that has just begun."""
MOSTLY = 0.5  # Compare two ranks' lines if more than this share of each rank's samples is at known lines
NEAR = 0.4
"""A line explains a part of the step if its share of the samples is within this relative distance."""


class Sampled(Enum):
    """Which samples of a thread count."""

    ALL = "all"
    ASLEEP = "asleep"  # Those of the last seconds that found it asleep
    AWAKE = "awake"  # Those that did not find it asleep: it may compute

    def of(self, line: StackLine) -> int:
        awake = line.samples - line.asleep
        return {Sampled.ALL: line.samples, Sampled.ASLEEP: line.asleep, Sampled.AWAKE: awake}[self]


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """A script line and the share of the step spent there."""

    line: str  # ``train.py:57 in collate``
    share: float  # Share of the rank's step; the smallest if there are several ranks
    whose: str  # ``rank 1's``, ``each rank's``
    others_share: float = 0.0  # Median share of the steps of the ranks compared with

    @property
    def more(self) -> float:
        return self.share - self.others_share

    @property
    def place(self) -> str:
        """Return such as ``train.py:57``."""
        return self.line.rpartition(" in ")[0] or self.line

    @property
    def describe(self) -> str:
        """Return such as ``train.py:57 in collate: 71 % of rank 1's step``."""
        return f"{self.line}: {text.whole_percent(self.share)} of {self.whose} step"


def slow_line(
    evidence: Evidence, rank: int, others: Collection[int] = (), sampled: Sampled = Sampled.ALL
) -> ScriptLine | None:
    """Return the line with the largest excess over ``others``, or over all other ranks. None: none is
    clear, or there are too few samples.
    """
    every = _every_share(evidence, sampled)
    own = every.get(rank)
    if own is None or max(own.of_line.values(), default=0.0) < LEAST_MORE:
        return None
    theirs = [every[other] for other in others or evidence.ranks.keys() - {rank} if other in every]
    if not theirs:
        return None
    if len(theirs) == len(every) - 1:
        ordered = _ordered_shares(evidence, sampled)
        usual = {line: median_without(ordered[line], share) for line, share in own.of_line.items()}
    else:
        usual = {line: median(each.of_line.get(line, 0.0) for each in theirs) for line in own.of_line}
    line = max(usual, key=lambda each: own.of_line[each] - usual[each])
    share, others_share = own.of_line[line], usual[line]
    samples = min(each.samples for each in (own, *theirs))
    error = sqrt((share * (1 - share) + others_share * (1 - others_share)) / samples)
    if share - others_share < max(LEAST_MORE, ERRORS * error):
        return None
    return ScriptLine(text.printable(line), share, f"rank {rank}'s", others_share)


def apart(evidence: Evidence, rank: int, other: int) -> tuple[float, float] | None:
    """Return the largest difference between two ranks' lines as a share of the step, 0 if none is clear,
    and an upper bound of the standard error. None: too few samples.
    """
    every = _every_share(evidence, Sampled.ALL)
    both = [every[each] for each in (rank, other) if each in every]
    if len(both) < 2 or any(sum(each.of_line.values()) <= MOSTLY for each in both):
        return None
    lines = slow_line(evidence, rank, (other,)), slow_line(evidence, other, (rank,))
    more = max((line.more for line in lines if line is not None), default=0.0)
    return more, sqrt(0.5 / min(each.samples for each in both))


def common_line(evidence: Evidence, share: float) -> ScriptLine | None:
    """Return the line where every rank spends about this share of its step. None: none within NEAR, or too
    few samples. A line with a larger share may wait for the GPU.
    """
    known = [each.of_line for each in _every_share(evidence, Sampled.ALL).values() if each.of_line]
    if not known or len(known) < len(evidence.ranks):
        return None
    least = {line: min(each.get(line, 0.0) for each in known) for line in known[0]}
    line = min(least, key=lambda each: abs(least[each] - share))
    is_near = abs(least[line] - share) <= NEAR * share
    return ScriptLine(text.printable(line), least[line], "each rank's") if is_near else None


@dataclass(frozen=True, slots=True)
class _Shares:
    of_line: dict[str, float]
    samples: int


@lru_cache(maxsize=3)
def _every_share(evidence: Evidence, sampled: Sampled) -> Mapping[int, _Shares]:
    """Return each rank's shares of samples since the job's last change, without ranks that have too few."""
    firsts = [*(step.totals for step in evidence.steps[:1]), *evidence.counted[:1]]
    since_ns: float = min((step.start_ns for totals in firsts for step in totals.values()), default=inf)
    end_ns, views = inf, evidence.ranks.values()
    if sampled is Sampled.ASLEEP:
        newest_ns = max((view.stacks[-1].to_ns for view in views if view.stacks), default=0)
        since_ns = max(since_ns, newest_ns - NEWEST_NS)
        # A rank that sleeps longer than any step hangs: samples after the last step tell nothing of steps.
        end_ns = max((each.start_ns + each.step_ns for view in views if (each := view.last)), default=0)
    every: dict[int, _Shares] = {}
    for view in views:
        seconds = [each for each in view.stacks if 2 * since_ns <= each.from_ns + each.to_ns <= 2 * end_ns]
        samples = sum(each.samples for each in seconds)
        counts: Counter[str] = Counter()
        for line in (line for second in seconds for line in second.lines):
            counts[line.line] += sampled.of(line)
        if samples >= FEWEST_SAMPLES:
            every[view.rank] = _Shares({name: count / samples for name, count in counts.items()}, samples)
    return every


@lru_cache(maxsize=3)
def _ordered_shares(evidence: Evidence, sampled: Sampled) -> Mapping[str, list[float]]:
    every = _every_share(evidence, sampled).values()
    lines = {line for each in every for line in each.of_line}
    return {line: sorted(each.of_line.get(line, 0.0) for each in every) for line in lines}
