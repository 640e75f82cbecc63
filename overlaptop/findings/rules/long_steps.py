"""A few steps take much longer than the others: an evaluation, logging, a checkpoint, a slow batch.

If one rank does it, the others wait for it. Few such steps are measured, but each step has its length and
counters. Garbage collections have a rule of their own.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.findings.gains import EXPLAINS
from overlaptop.findings.late import caused_wait_ns, named_late
from overlaptop.findings.lines import Sampled, slow_line
from overlaptop.findings.measures import Measure, delayed_ns, loading_ns, on_host
from overlaptop.findings.rules.data_loading import ADVICE
from overlaptop.fleet.totals import step_of
from overlaptop.timeline.averages import sigma
from overlaptop.wire.messages import RankInfo, StepTotals

LONG, NOISES = 1.5, 5.0
"""A long step is longer than this multiple of the usual length, and than that length by this number of
standard deviations."""
FEWEST, LEAST_STEPS, MOST_SHARE = {True: 4, False: 8}, 30, 0.35
"""Fewest long steps, regular ones or not, fewest steps since the first of them, and their largest share of
these."""
WARM_UP_STEPS = 20  # First steps of a job: they may take longer, on one rank more than on others
LEAST_LOST = {True: 0.05, False: 0.1}
"""Smallest share of the time that regular ones cost, or others: chance may disturb one rank more."""
NEWEST = 8  # Long steps that show what ranks do there. Steps before them may have been others.
REGULAR = 0.8
"""Smallest share of what long steps cost that is lost in every n-th step, for it to be no chance."""
LEAST_BEYOND = 0.2
"""Smallest part of a long step that a rank has more than the others in four of five long steps: all ranks
may evaluate, and one of them longer."""
FEWEST_MEASURED = {True: 2, False: 5}
"""Long steps, regular ones or not, in which the others wait for one and the same rank."""
LOADS, BESIDE = "loads data", "beside training"


@dataclass(frozen=True, slots=True)
class LongSteps:
    """Long steps among the newest of a job."""

    numbers: Sequence[int]
    every: int | None  # From one to the next; None: they are not regular
    steps: int  # Since the first of them
    mean_ns: float  # Length of these steps
    usual_ns: float  # Median length of these steps
    longer_ns: float  # How much longer the newest long ones are: the median
    lost_ns: float  # What they cost per step: the mean

    @property
    def enough_ns(self) -> float:
        """Return the part of a long step that explains it."""
        return EXPLAINS * self.longer_ns

    @property
    def when(self) -> str:
        """Return such as ``every 10th step``."""
        if self.every is not None:
            return f"every {text.ordinal(self.every)} step"
        return f"{len(self.numbers)} of {self.steps} steps"


def look(evidence: Evidence) -> Findings:
    long = long_steps(evidence)
    if long is None or named_late(evidence):
        return
    if _collect(evidence, long) or not _all_take_longer(evidence, long):
        return
    if (cause := _cause(evidence, long)) is not None:
        found, longer_ns = cause
        gain_ns = round(long.lost_ns * min(1.0, longer_ns / long.longer_ns))
        yield replace(found, gain_ns=gain_ns, step_ns=round(long.mean_ns))


def _cause(evidence: Evidence, long: LongSteps) -> tuple[Finding, float] | None:
    """Return the finding, without its gain, and what it explains of a long step."""
    longer = text.duration(long.longer_ns)
    measured = f"{len(long.numbers)} of {long.steps} steps take {longer} longer than the usual "
    measured += text.duration(long.usual_ns)
    if (culprit := _culprit(evidence, long)) is not None:
        rank, does, longer_ns = culprit
        others = evidence.ranks.keys() - {rank}
        line = slow_line(evidence, rank, others, Sampled.ASLEEP) or slow_line(evidence, rank, others)
        where = f"look at {line.place}" if line is not None else f"look at what rank {rank} does there"
        where = f"{where}: do it less often, on all ranks at once, or {BESIDE}"
        return Finding(
            title=f"rank {rank} {does} {text.duration(longer_ns)} longer in {long.when}",
            measured=f"{measured}; {line.describe}" if line is not None else measured,
            advice=ADVICE if does == LOADS else where,
            certainty=Certainty.LIKELY,
            ranks=(rank,),
            why_late=True,
            line=line.line if line is not None else "",
        ), longer_ns
    if all(median(each) >= long.enough_ns for each in _more_ns(evidence, loading_ns, long).values()):
        title = f"ranks load data {longer} longer in {long.when}"
        return Finding(title, measured, ADVICE, Certainty.LIKELY), long.longer_ns
    if long.every is None:
        return None
    advice = "find what the script does there, such as evaluation, logging or checkpoints: do it less "
    advice += f"often, or {BESIDE}"
    title = f"{long.when} takes {longer} longer"
    return Finding(title, measured, advice, Certainty.POSSIBLE), long.longer_ns


def long_steps(evidence: Evidence) -> LongSteps | None:
    """Return the long steps since the job last changed. None: there are none, or they cost little."""
    if evidence.is_trace or not evidence.ranks:
        return None
    history = evidence.ranks[min(evidence.ranks)].history  # all ranks' steps have one length
    first = max(evidence.first, WARM_UP_STEPS)
    steps = [step for step in history if step.step >= first and not step.disturbed]
    if len(steps) < LEAST_STEPS:
        return None
    lengths_ns = [step.step_ns for step in steps]
    usual_ns = median(lengths_ns)
    least_ns = max(LONG * usual_ns, usual_ns + NOISES * sigma(lengths_ns))
    found = {step.step: step.step_ns - usual_ns for step in steps if step.step_ns > least_ns}
    if len(found) < FEWEST[True]:
        return None
    every, more_ns = _regular(found, steps[-1].step)
    is_regular = every is not None
    since = [step.step_ns for step in steps if step.step >= min(more_ns)]
    lost_ns = sum(more_ns.values()) / len(since)
    if len(since) < LEAST_STEPS or lost_ns < LEAST_LOST[is_regular] * usual_ns:
        return None
    if not FEWEST[is_regular] <= len(more_ns) <= MOST_SHARE * len(since):
        return None
    mean_ns = sum(since) / len(since)
    return LongSteps(
        tuple(more_ns), every, len(since), mean_ns, usual_ns, median([*more_ns.values()][-NEWEST:]), lost_ns
    )


def _regular(more_ns: Mapping[int, float], last: int) -> tuple[int | None, Mapping[int, float]]:
    """Return the distance of the newest long steps if they are regular, and these alone; else None and all.
    ``more_ns``: by number, what each takes longer. ``last``: number of the newest step.
    """
    distances = Counter(later - earlier for earlier, later in pairwise(more_ns))
    every = distances.most_common(1)[0][0]
    lost_ns: defaultdict[int, float] = defaultdict(float)
    for number, ns in more_ns.items():
        lost_ns[number % every] += ns
    rest = max(lost_ns, key=lambda each: lost_ns[each])
    first = max(number for number in more_ns if number % every == rest)
    while first - every in more_ns:
        first -= every
    since = {number: ns for number, ns in more_ns.items() if number >= first}
    regular = {number: ns for number, ns in since.items() if number % every == rest}
    is_most = sum(regular.values()) >= REGULAR * sum(since.values())
    lasts = len(regular) >= max(FEWEST[True], (last - first) // every)
    return (every, regular) if every > 1 and is_most and lasts else (None, more_ns)


def _all_take_longer(evidence: Evidence, long: LongSteps) -> bool:
    """Return whether each rank has such long steps, perhaps one earlier or later. Where ranks meet only in
    every n-th step, those who are ahead wait there for what another one does in all steps.
    """
    moved = (replace(long, numbers=[at + by for at in long.numbers]) for by in (0, 1, -1))
    near = [_more_ns(evidence, lambda _, step: step.step_ns, each) for each in moved]
    return all(any(median(more_ns[rank]) >= long.enough_ns for more_ns in near) for rank in evidence.ranks)


def _collect(evidence: Evidence, long: LongSteps) -> bool:
    """Return whether a rank collects garbage in most of the long steps."""
    steps = [[step_of(view, number) for number in long.numbers] for view in evidence.ranks.values()]
    return any(
        2 * sum(bool(step and step.full_collections) for step in of_rank) > len(long.numbers)
        for of_rank in steps
    )


def _culprit(evidence: Evidence, long: LongSteps) -> tuple[int, str, float] | None:
    """Return the rank that the others wait for in the long steps, what it does there, and for how much
    longer than they.
    """
    rank = _awaited(evidence, long)
    ranks = evidence.ranks if rank is None else (rank,)
    counters = {LOADS: loading_ns, "waits for a CPU": delayed_ns, "computes": _cpu_ns_on_host}
    for does, measure in counters.items():
        more_ns = _more_ns(evidence, measure, long)
        most = max(more_ns, key=lambda each: median(more_ns[each]))
        own_ns = more_ns.pop(most)
        together = zip(own_ns, *more_ns.values(), strict=True)
        beyond_ns = sorted(own - max(others, default=0.0) for own, *others in together)
        is_more = beyond_ns[len(beyond_ns) // 5] >= LEAST_BEYOND * long.longer_ns
        if most in ranks and is_more and median(own_ns) >= long.enough_ns:
            return most, does, median(beyond_ns)
    for each in ranks:
        line = slow_line(evidence, each, sampled=Sampled.ASLEEP)
        if line is not None and line.more >= EXPLAINS * long.lost_ns / long.mean_ns:
            return each, "sleeps", long.longer_ns
    return None if rank is None else (rank, "takes", long.longer_ns)


def _awaited(evidence: Evidence, long: LongSteps) -> int | None:
    """Return the one rank that the others wait for in nearly all measured long steps."""
    awaited = [
        rank
        for step in evidence.steps
        if step.number in long.numbers
        and step.waits is not None
        and (rank := step.waits.main_late_rank) is not None
        and caused_wait_ns(step, (rank,)) >= long.enough_ns
    ]
    few = len(awaited) < FEWEST_MEASURED[long.every is not None]
    return awaited[0] if not few and len(set(awaited)) == 1 else None


def _more_ns(evidence: Evidence, measure: Measure, long: LongSteps) -> dict[int, list[float]]:
    """Return what a counter of each rank has more in each of the newest long steps than in others; 0: not
    known.
    """
    more_ns = {}
    for rank, view in evidence.ranks.items():
        counted = (measure(view.info, totals[rank]) for totals in evidence.counted)
        usual = [ns for ns in counted if ns is not None]
        usual_ns = median(usual) if usual else math.inf
        steps = (step_of(view, number) for number in long.numbers[-NEWEST:])
        in_long = (measure(view.info, step) if step is not None else None for step in steps)
        more_ns[rank] = [0.0 if ns is None else max(0.0, ns - usual_ns) for ns in in_long]
    return more_ns


def _cpu_ns_on_host(info: RankInfo | None, step: StepTotals) -> int | None:
    """With a GPU, the training thread's CPU time also grows while it waits."""
    return step.cpu_ns if on_host(info) else None
