"""Why a rank is late: what takes longer on it than on the others, in each step.

`Cause` lists the causes, and `_cause` checks them in that order: a rule about late ranks begins there. If a
rank only waited for another one in another group, that one is late (timeline/passed_on_waits.py).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from statistics import median, quantiles

from overlaptop import text
from overlaptop.findings.evidence import Evidence, JobStep
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.gains import EXPLAINS, OwnTime, gain_ns, own_times
from overlaptop.findings.launching import is_launch_bound, long_pauses_ns
from overlaptop.findings.lines import Sampled, SlowLine, slow_line
from overlaptop.findings.measures import (
    STEADY,
    Measure,
    busy_ns,
    computing_ns,
    copying_ns,
    cpus_are_short,
    delayed_ns,
    excess,
    full_collections,
    hidden_ns,
    idling_ns,
    loading_ns,
    on_host,
    steady_excess,
    unexplained_ns,
)
from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.waits import ALWAYS, LATE_SHARE
from overlaptop.report.order import sees_gaps

VARIES = 1.2
"""Extra compute varies if its middle three fifths spread over more than this multiple of the median."""
SLACK_OF_WAIT, SLACK_OF_STEP = 0.25, 0.1
"""A wait costs nothing if the gain is below both shares."""
LOW_CLOCK = 0.95
"""A clock is low below this share of the other ranks' median."""
OF_MEASURED = (computing_ns, busy_ns, idling_ns, unexplained_ns, copying_ns)
OF_EACH_STEP = (loading_ns, delayed_ns, full_collections)
"""Measures that unmeasured steps have, too."""


class Cause(Enum):
    """Why a rank is late, in the order of the checks."""

    LOADING = "loading"
    """Its training thread loads data or waits for it."""
    COPYING = "copying"
    """Its GPU copies longer, with nothing beside the copies."""
    COLLECTING = "collecting"
    """Its interpreter collects garbage."""
    PLACEMENT = "placement"
    """Its CPUs are too few or on the wrong NUMA node."""
    DELAYED = "delayed"
    """Its training thread is ready to run and waits for a CPU."""
    SLEEPING = "sleeping"
    """It launches late: its GPU is idle, or its training thread sleeps, for another reason."""
    LAUNCHING = "launching"
    """It launches late, and its GPU is idle only in short pauses: its CPU is too slow."""
    LOW_CLOCK = "low clock"
    """It computes longer, and its GPU's clock is lower than the others'."""
    UNEVEN = "uneven"
    """It computes longer, by a different time in each step."""
    COMPUTING = "computing"


OF_THE_HOST = (Cause.LOADING, Cause.SLEEPING, Cause.LAUNCHING, None)
"""Causes that a script line may explain, and None, an unexplained lateness; without a GPU its compute, too.
Not a garbage collection: it holds the GIL, so that no stack is sampled meanwhile, and another line would be
named."""

OF_COMPUTE = (Cause.LOW_CLOCK, Cause.UNEVEN, Cause.COMPUTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A rank that something takes longer on than on others."""

    rank: int
    others: tuple[int, ...]
    cause: Cause | None
    """None: nothing measured explains it."""
    line: SlowLine | None
    """If its host is late: the script line with the largest excess over the others."""
    in_turn: tuple[int, ...] = ()
    """Ranks that are late in turn, this one included; empty if only this one is late."""

    @property
    def versus(self) -> str:
        """Return the ranks compared with: ``the others``, ``rank 0``; ``ranks 0, 3`` if more are late."""
        named = len(self.others) == 1 or (self.others and self.in_turn)
        return text.named_ranks(self.others) if named else "the others"

    @property
    def whose(self) -> str:
        """Return such as ``the others'`` or ``rank 0's``."""
        return text.possessive(self.versus)

    def blamed(
        self, does: str, measured: str, advice: str, certainty: Certainty, gain_ns: int | None
    ) -> Finding:
        """Return the finding that says why it is late. ``does``: the title after the rank's name."""
        line = self.line.line if self.line is not None else ""
        title, ranks = f"rank {self.rank}{does}", (self.rank,)
        return Finding(title, measured, advice, certainty, gain_ns, ranks, why_late=True, line=line)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRank(Suspect):
    """A rank that the others wait for."""

    late_count: int
    collectives: int
    step_ns: float
    usual_ns: float
    own: Mapping[int, OwnTime]
    """By rank: this rank's and the others'."""
    wait_ns: int
    """The others' wait, a lower bound."""
    slows_ns: int
    """Extra compute of the others while they wait; 0 if not clear."""
    beside_ns: int
    """Extra time of the others' communication beside compute."""
    excesses: Mapping[Measure, list[float]]
    """By measure: its excess over the others in each step; negative if it takes less time."""
    passed_on_by: tuple[int, ...]
    """Ranks that are late because they wait for this one: each for the next, the last for this rank."""

    def excess_ns(self, measure: Measure) -> int | None:
        """Return the median of its excess over the others; None: not measured."""
        each = self.excesses[measure]
        return round(median(each)) if each else None

    def gain_without(self, cause_ns: int | None = None) -> int:
        """Return how much shorter the step is without this cause, in ns; None: without any late rank."""
        stay = self.others if cause_ns is None else self.own.keys() - {self.rank}
        return gain_ns(self.step_ns, [self.own[rank] for rank in stay], self.own[self.rank], cause_ns)

    @property
    def is_slack(self) -> bool:
        """Return whether fixing the rank gains almost nothing."""
        lost_ns = self.gain_without() + max(0.0, self.usual_ns - self.step_ns)
        most_ns = min(SLACK_OF_WAIT * self.wait_ns, SLACK_OF_STEP * self.step_ns)
        return bool(self.others) and lost_ns < most_ns

    @property
    def describe(self) -> str:
        """Return such as ``rank 2 is late in 71 of 75 collectives; the others wait 12.1 ms a step``."""
        late = f"rank {self.rank} is late in {self.late_count} of {self.collectives} collectives"
        waits = "waits" if len(self.others) == 1 else "wait"
        wait_text = text.duration(self.wait_ns)
        others = f"{self.versus} {waits} {wait_text} a step"
        if self.in_turn:  # the wait is only known for all of them together
            others = f"others wait {wait_text} a step for {text.named_ranks(self.in_turn)} together"
        if self.passed_on_by:
            passes = "passes" if len(self.passed_on_by) == 1 else "pass"
            others = f"{text.named_ranks(self.passed_on_by)} {passes} that on, and {others}"
        return f"{late}; {others}"

    @property
    def takes_ns(self) -> int:
        """Return its excess time between collectives, for any cause."""
        return max(self.excess_ns(each) or 0 for each in (busy_ns, idling_ns, copying_ns))

    @property
    def takes_text(self) -> str:
        """Return such as ``between collectives it takes 12.1 ms a step longer than the others``."""
        return (
            f"between collectives it takes {text.duration(self.takes_ns)} a step longer than {self.versus}"
        )

    def finding(
        self, does: str, longer_ns: int | None, advice: str, certainty: Certainty, more: str = ""
    ) -> Finding:
        """``does``: the title after the rank's name. ``longer_ns``: to remove. ``more``: measurements."""
        measured = filter(None, (self.describe, more, self.line.describe if self.line else ""))
        return self.blamed(does, "; ".join(measured), advice, certainty, self.gain_without(longer_ns))


def late_ranks(evidence: Evidence) -> tuple[LateRank, ...]:
    """Return the ranks of `named_late` that cost time."""
    return tuple(each for each in named_late(evidence) if not each.is_slack)


def trailing(evidence: Evidence) -> tuple[LateRank, ...]:
    """Return the ranks of `named_late` that cost nothing."""
    return tuple(each for each in named_late(evidence) if each.is_slack)


@lru_cache(maxsize=1)
def named_late(evidence: Evidence) -> tuple[LateRank, ...]:
    """Return the late rank of the first line, or the ranks that are late in turn, whatever their cost."""
    window = evidence.window
    if window is None:
        return ()
    passed_on = window.passed_on_wait
    found = {
        each.rank: tuple(link.rank for link in passed_on.chain)
        if passed_on and passed_on.root == each.rank
        else ()
        for each in window.late
        if each.rank in evidence.ranks
    }
    involved = frozenset(found).union(*found.values())
    return tuple(_late_rank(evidence, rank, chain, involved, found) for rank, chain in found.items())


def late_by(evidence: Evidence, cause: Cause) -> list[LateRank]:
    return [each for each in late_ranks(evidence) if each.cause is cause]


def caused_wait_ns(step: JobStep, ranks: Collection[int]) -> int:
    """Return the others' wait for these ranks in a step; 0 if not known."""
    lateness = step.waits.lateness if step.waits is not None else None
    return sum(each.caused_wait_ns for each in lateness.ranks if each.rank in ranks) if lateness else 0


def misplacement(evidence: Evidence, rank: int, others: Collection[int]) -> str:
    """Return how its CPUs are worse than the others', for a title; empty: not worse, or not known."""
    numa = evidence.ranks[rank].numa
    if numa is None:
        return ""
    if numa.state == "wrong node":
        return f" {numa.reason}"
    own, theirs = _cpus(evidence.ranks[rank]), [_cpus(evidence.ranks[other]) for other in others]
    known = [cpus for cpus in theirs if cpus is not None]
    if own is not None and known and 2 * own <= median(known):
        return f" may run on {text.plural(own, 'CPU')}, others on {round(median(known))}"
    return ""


def clock_share(evidence: Evidence, rank: int, others: Collection[int]) -> float | None:
    """Return its SM clock as a share of the others', by medians of the last minute."""
    own = _clock_hz(evidence.ranks[rank])
    theirs = [hz for other in others if (hz := _clock_hz(evidence.ranks[other])) is not None]
    return own / median(theirs) if own is not None and theirs else None


def _late_rank(
    evidence: Evidence, rank: int, chain: tuple[int, ...], involved: frozenset[int], found: Collection[int]
) -> LateRank:
    assert evidence.window is not None
    late = evidence.window.lateness.of(rank)
    assert late is not None
    others = evidence.ranks.keys() - involved
    measured = [step.totals for step in evidence.steps]
    counted = evidence.counted or measured
    longer = {
        measure: excess(evidence, rank, others, measure, steps)
        for measures, steps in ((OF_MEASURED, measured), (OF_EACH_STEP, counted))
        for measure in measures
    }
    slows_ns, beside_ns = _slows_ns(evidence, rank, others)
    own = own_times(evidence, found, others, slows_ns, work_stays=False)
    most_ns = evidence.exposed_wait_ns + evidence.window.bared_share * evidence.step_ns
    lost_ns = min(most_ns, gain_ns(evidence.step_ns, (own[other] for other in others)))
    asleep = slow_line(evidence, rank, others, Sampled.ASLEEP)
    cause = _cause(evidence, rank, others, longer, EXPLAINS * lost_ns, sleeps=asleep is not None)
    if cause not in OF_COMPUTE and evidence.on_shared_gpus:
        own = own_times(evidence, found, others, slows_ns)
    computes_there = cause is Cause.COMPUTING and on_host(evidence.ranks[rank].info)
    line = asleep if cause is Cause.SLEEPING else None
    if line is None and (cause in OF_THE_HOST or computes_there):
        line = slow_line(evidence, rank, others, Sampled.AWAKE if computes_there else Sampled.ALL)
    return LateRank(
        rank=rank,
        others=tuple(sorted(others)),
        cause=cause,
        line=line,
        in_turn=tuple(sorted(found)) if len(found) > 1 else (),
        late_count=late.late_count,
        collectives=late.collectives,
        step_ns=evidence.step_ns,
        usual_ns=evidence.usual_ns,
        own=own,
        wait_ns=evidence.exposed_wait_ns,
        slows_ns=slows_ns,
        beside_ns=beside_ns,
        excesses=longer,
        passed_on_by=chain,
    )


def _cause(
    evidence: Evidence,
    rank: int,
    others: Collection[int],
    longer: Mapping[Measure, list[float]],
    enough_ns: float,
    *,
    sleeps: bool,
) -> Cause | None:
    """``sleeps``: samples find it asleep at a line longer than the others. ``enough_ns`` is 0 if its
    lateness costs nothing.
    """
    if not enough_ns:
        return None
    works_ns, idle_ns, copies_ns, loads_ns, delays_ns = (
        steady_excess(longer[each]) for each in (busy_ns, idling_ns, copying_ns, loading_ns, delayed_ns)
    )
    info = evidence.ranks[rank].info
    if info is not None and info.compute_exact:
        loads_ns = min(loads_ns, idle_ns)  # CPU time beside a busy GPU costs nothing
    if loads_ns >= enough_ns:
        return Cause.LOADING
    if copies_ns >= max(enough_ns, works_ns, idle_ns):
        return Cause.COPYING
    if max(works_ns, idle_ns) < enough_ns:
        return None
    if idle_ns > works_ns or on_host(info):
        collects = longer[full_collections]
        if collects and sum(each > 0 for each in collects) >= LATE_SHARE * len(collects):
            return Cause.COLLECTING
        if misplacement(evidence, rank, others):
            return Cause.PLACEMENT
    # Longer compute means a longer wait for a CPU, too.
    if idle_ns > works_ns or median(longer[computing_ns]) < enough_ns:
        # Sleep is the remainder of a step, so the noise of all other parts adds up in it.
        sleeps_ns = steady_excess(longer[unexplained_ns], enough_ns / 2 if on_host(info) else 0.0)
        if max(delays_ns, sleeps_ns) < enough_ns:
            return None
        if delays_ns >= sleeps_ns:
            return Cause.DELAYED
        usual_ns = median(long_pauses_ns(evidence, each) for each in others)
        idles_long = long_pauses_ns(evidence, rank) - usual_ns >= enough_ns
        is_slow = is_launch_bound(evidence, rank) and not (idles_long or sleeps)
        return Cause.LAUNCHING if is_slow else Cause.SLEEPING
    late = evidence.window.lateness.of(rank) if evidence.window is not None else None
    if cpus_are_short(evidence) and (late is None or late.share < ALWAYS):
        return None
    if (share := clock_share(evidence, rank, others)) is not None and share < LOW_CLOCK:
        return Cause.LOW_CLOCK
    return Cause.UNEVEN if _varies(longer[computing_ns]) else Cause.COMPUTING


def _slows_ns(evidence: Evidence, rank: int, others: Collection[int]) -> tuple[int, int]:
    """Return the others' extra compute and extra overlap per step; 0 if one does not explain the other."""
    if not all(sees_gaps(evidence.ranks[each]) for each in (rank, *others)):
        return 0, 0
    pairs = [
        (computes_ns, hides_ns)
        for step in evidence.steps
        for computes_ns in excess(evidence, rank, others, computing_ns, [step.totals])
        for hides_ns in excess(evidence, rank, others, hidden_ns, [step.totals])
    ]
    slowed = sum(0 > computes_ns >= hides_ns for computes_ns, hides_ns in pairs)
    if not slowed or slowed < STEADY * len(pairs):
        return 0, 0
    computes_ns, hides_ns = (round(-median(each)) for each in zip(*pairs, strict=True))
    return computes_ns, hides_ns


def _varies(longer_ns: list[float]) -> bool:
    fifths = quantiles(longer_ns, n=5) if len(longer_ns) > 1 else [0.0]
    return fifths[-1] - fifths[0] > VARIES * median(longer_ns)


def _cpus(view: RankView) -> int | None:
    return sum(share.amount for share in view.numa.cpu_nodes) or None if view.numa is not None else None


def _clock_hz(view: RankView) -> float | None:
    known = [sample.sm_clock_hz for sample in view.samples if sample.sm_clock_hz is not None]
    return median(known) if known else None
