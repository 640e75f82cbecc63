"""Why a rank is late: what it does longer than the others, step by step.

A rank can start a collective late for three reasons, looked at in this order: it launched late (its CPU
loaded data, collected garbage, or stood still), it computed longer, or it waited for yet another rank in
another group; then that one is the late rank (timeline/echoes.py), and the first only passes that on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from statistics import fmean, median, quantiles

from overlaptop import text
from overlaptop.findings.evidence import Evidence, JobStep
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.gains import EXPLAINS, OwnTime, gain_ns, own_times
from overlaptop.findings.launching import is_launch_bound, long_pauses_ns
from overlaptop.findings.lines import SlowLine, slow_line
from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.waits import LATE_SHARE
from overlaptop.report.order import sees_gaps
from overlaptop.wire.messages import RankInfo, StepTotals

STEADY = 0.8
"""A rank does something longer where it does so in this share of the steps: on a busy machine the medians
of two ranks that are alike may be apart, too."""
VARIES = 1.2
"""What a rank computes longer varies where its middle three fifths spread over so many times its median. A
slow GPU is slower by about the same in each step."""
SLACK_OF_WAIT, SLACK_OF_STEP = 0.25, 0.1
"""A wait costs nothing if less than both is lost."""
LOW_CLOCK = 0.95
"""A clock is low below this share of the other ranks' median."""


Measure = Callable[[RankInfo | None, StepTotals], int | None]
"""Of one rank in one step; None: not known."""


class Cause(Enum):
    """Why a rank is late, in the order in which they are looked for."""

    LOADING = "loading"
    """Its training thread waits for data."""
    COLLECTING = "collecting"
    """Its interpreter collects garbage."""
    PLACEMENT = "placement"
    """It may not run where it should."""
    DELAYED = "delayed"
    """Its training thread is ready to run and waits for a CPU."""
    STANDING = "standing"
    """It launches late: its GPU is idle, or its training thread sleeps, for another reason."""
    LAUNCHING = "launching"
    """It launches late, and its GPU is idle in short pauses only: its CPU is too slow."""
    LOW_CLOCK = "low clock"
    """It computes longer, and its GPU's clock is lower than the others'."""
    UNEVEN = "uneven"
    """It computes longer, and by another time in each step."""
    COMPUTING = "computing"
    """It computes longer."""


OF_THE_HOST = (Cause.LOADING, Cause.COLLECTING, Cause.STANDING, Cause.LAUNCHING, None)
"""Causes that a line of the script may explain; without a GPU what it computes, too."""


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank for which the others wait, and what it does longer than they do in a step: the median over
    steps, negative where shorter. None: not seen.
    """

    rank: int
    others: tuple[int, ...]
    """Those with which it is compared."""
    late: int
    collectives: int
    """In so many of which it was late."""
    step_ns: float
    own: Mapping[int, OwnTime]
    """By rank: its own, and the others'."""
    waits: str
    """What they wait in words, at least."""
    slows_ns: int
    """By how much longer the others compute beside waiting for it; 0 where they do not clearly."""
    beside_ns: int
    """And for how much longer they have communication beside compute."""
    computes_ns: int | None
    busy_ns: int | None
    """As `computes_ns`; without a GPU with what it waits for a CPU."""
    stands_ns: int | None
    loads_ns: int | None
    delays_ns: int | None
    collections: float | None
    """Full garbage collections in one of its steps."""
    cause: Cause | None
    """None: nothing that it does longer explains it."""
    passed_on_by: tuple[int, ...] = ()
    """Ranks that are late since they wait for it, or for the next one of these; the last one waits for
    it."""
    in_turn: tuple[int, ...] = ()
    """Those that are late in turn, it among them; empty where it alone is late."""
    line: SlowLine | None = None
    """Where its host is late: the line of the script at which it is longer than the others."""

    def gain_ns(self, cause_ns: int | None = None) -> int:
        """How much shorter the step is without its cause; None: if nobody is late any more."""
        stay = self.others if cause_ns is None else self.own.keys() - {self.rank}
        return gain_ns(self.step_ns, [self.own[rank] for rank in stay], self.own[self.rank], cause_ns)

    @property
    def is_slack(self) -> bool:
        """Whether next to nothing is won if it is late no more."""
        wait_ns = self.step_ns - max((self.own[rank].gpu_ns for rank in self.others), default=0.0)
        return bool(self.others) and self.gain_ns() < min(
            SLACK_OF_WAIT * wait_ns, SLACK_OF_STEP * self.step_ns
        )

    @property
    def in_words(self) -> str:
        """``rank 2 is late in 71 of 75 collectives; the others wait 12.1 ms a step``."""
        late = f"rank {self.rank} is late in {self.late} of {self.collectives} collectives"
        waits = "waits" if len(self.others) == 1 else "wait"
        others = f"{self.than} {waits} {self.waits} a step"
        if self.in_turn:  # what is known is what ranks wait for all of these
            others = f"others wait {self.waits} a step for {text.named_ranks(self.in_turn)} together"
        if self.passed_on_by:
            passes = "passes" if len(self.passed_on_by) == 1 else "pass"
            others = f"{text.named_ranks(self.passed_on_by)} {passes} that on, and {others}"
        return f"{late}; {others}"

    @property
    def than(self) -> str:
        """With whom it is compared: ``the others``, ``rank 0``; ``ranks 0, 3`` where more are late."""
        named = len(self.others) == 1 or (self.others and self.in_turn)
        return text.named_ranks(self.others) if named else "the others"

    @property
    def whose(self) -> str:
        """``the others'``, ``rank 0's``."""
        return f"{self.than}'" if self.than.endswith("s") else f"{self.than}'s"

    @property
    def takes_ns(self) -> int:
        """By how much longer it takes between collectives, whatever it does."""
        return max(self.busy_ns or 0, self.stands_ns or 0)

    @property
    def takes_in_words(self) -> str:
        """``between collectives it takes 12.1 ms a step longer than the others``."""
        return f"between collectives it takes {text.duration(self.takes_ns)} a step longer than {self.than}"

    def finding(
        self, does: str, longer_ns: int | None, advice: str, certainty: Certainty, more: str = ""
    ) -> Finding:
        """Why it is late. ``does``: what follows its name in the title; ``longer_ns``: what is won where it
        does that no longer than the others; ``more``: what was measured besides.
        """
        return Finding(
            title=f"rank {self.rank}{does}",
            measured="; ".join(
                filter(None, (self.in_words, more, self.line.in_words if self.line else ""))
            ),
            advice=advice,
            certainty=certainty,
            gain_ns=self.gain_ns(longer_ns),
            ranks=(self.rank,),
            why_late=True,
            line=self.line.line if self.line is not None else "",
        )


def late_ranks(evidence: Evidence) -> tuple[LateRank, ...]:
    """Those of `named_late` that cost time."""
    return tuple(each for each in named_late(evidence) if not each.is_slack)


def trailing(evidence: Evidence) -> tuple[LateRank, ...]:
    """Those of `named_late` that cost nothing."""
    return tuple(each for each in named_late(evidence) if each.is_slack)


@lru_cache(maxsize=1)
def named_late(evidence: Evidence) -> tuple[LateRank, ...]:
    """The one that the first line names, or those that are late by turns, whatever that costs."""
    window = evidence.window
    if window is None:
        return ()
    echo = window.echo
    found = {
        each.rank: tuple(link.rank for link in echo.chain) if echo and echo.root == each.rank else ()
        for each in window.late
        if each.rank in evidence.ranks
    }
    involved = frozenset(found).union(*found.values())
    in_turn = tuple(sorted(found)) if len(found) > 1 else ()
    late = (_late_rank(evidence, rank, chain, involved, found) for rank, chain in found.items())
    return tuple(replace(each, in_turn=in_turn) for each in late)


def late_by(evidence: Evidence, cause: Cause) -> list[LateRank]:
    """Those of this cause."""
    return [each for each in late_ranks(evidence) if each.cause is cause]


def caused_wait_ns(step: JobStep, ranks: Collection[int]) -> int:
    """What the others waited for these ranks in a step; 0 where it is not known."""
    lateness = step.waits.lateness if step.waits is not None else None
    return sum(each.caused_wait_ns for each in lateness.ranks if each.rank in ranks) if lateness else 0


def on_host(info: RankInfo | None) -> bool:
    """Whether its spans come from the host's clock: it has no GPU."""
    return info is not None and info.source == "host"


def computing_ns(info: RankInfo | None, step: StepTotals) -> int | None:
    """How long the rank computed: by its kernels, without a GPU by its training thread's CPU time. None
    where its source does not see it.
    """
    if info is None or info.compute_exact:
        return step.compute_ns
    return step.cpu_ns if on_host(info) else None


def standing_ns(info: RankInfo | None, step: StepTotals) -> int | None:
    """How long its GPU was idle; without a GPU, how long its training thread slept and waited for no other
    rank. None where its source does not see it.
    """
    if info is None or info.compute_exact:
        return step.idle_ns
    if not on_host(info) or step.cpu_ns is None or step.exposed_ns is None:
        return None
    return max(0, step.step_ns - step.exposed_ns - step.cpu_ns - (step.delayed_ns or 0))


def loading_ns(_info: RankInfo | None, step: StepTotals) -> int | None:
    """What its training thread spent in a DataLoader's ``next``."""
    return step.loading_ns


def delayed_ns(_info: RankInfo | None, step: StepTotals) -> int | None:
    """How long its training thread waited for a CPU."""
    return step.delayed_ns


def full_collections(_info: RankInfo | None, step: StepTotals) -> int | None:
    """Its interpreter's garbage collections of the oldest generation."""
    return step.full_collections


def _busy_ns(info: RankInfo | None, step: StepTotals) -> int | None:
    """How long it computed; without a GPU with what it waited for a CPU, which grows with it."""
    own_ns = computing_ns(info, step)
    if own_ns is None or not on_host(info):
        return own_ns
    return own_ns + (step.delayed_ns or 0)


def _unexplained_ns(info: RankInfo | None, step: StepTotals) -> int | None:
    """Of `standing_ns`, what neither data, a CPU nor garbage explain: these may not be steady yet."""
    stands_ns = standing_ns(info, step)
    if stands_ns is None or step.full_collections:
        return stands_ns and 0
    delayed_ns = 0 if on_host(info) else step.delayed_ns or 0  # on a host that is off already
    return max(0, stands_ns - (step.loading_ns or 0) - delayed_ns)


def cpus_are_short(evidence: Evidence) -> bool:
    """Whether ranks without a GPU wait for a CPU longer than for one another: what they do differently is
    then what the machine happens to do.
    """
    return (cpu_delay_ns(evidence) or 0) > evidence.exposed_wait_ns


def cpu_delay_ns(evidence: Evidence) -> float | None:
    """How long ranks without a GPU wait for a CPU in a step; 0 where ranks have GPUs, and None where it is
    not known.
    """
    on_hosts = [
        [totals.delayed_ns for totals in each.totals.values() if totals.delayed_ns is not None]
        for each in evidence.steps
        if all(on_host(evidence.ranks[rank].info) for rank in each.totals)
    ]
    delays_ns = [fmean(known) for known in on_hosts if known]
    if on_hosts and not delays_ns:
        return None
    return median(delays_ns) if delays_ns else 0.0


def misplacement(evidence: Evidence, rank: int, others: Collection[int]) -> str:
    """How its CPUs are worse than the others', as `finding` takes it; empty: they are not, or not known."""
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
    """The rank's SM clock as a share of the others', by medians of the last minute; None: not known."""
    own = _clock_hz(evidence.ranks[rank])
    theirs = [hz for other in others if (hz := _clock_hz(evidence.ranks[other])) is not None]
    return own / median(theirs) if own is not None and theirs else None


def _late_rank(
    evidence: Evidence,
    rank: int,
    chain: tuple[int, ...],
    involved: frozenset[int],
    found: Collection[int],
) -> LateRank:
    assert evidence.window is not None
    late = evidence.window.lateness.of(rank)
    assert late is not None
    others = evidence.ranks.keys() - involved
    measured = [step.totals for step in evidence.steps]
    counted = evidence.counted or measured  # counters are known of steps that are not measured, too
    longer = {
        name: excess(evidence, rank, others, measure, steps)
        for name, measure, steps in (
            ("computes", computing_ns, measured),
            ("busy", _busy_ns, measured),
            ("stands", standing_ns, measured),
            ("unexplained", _unexplained_ns, measured),
            ("loads", loading_ns, counted),
            ("delays", delayed_ns, counted),
            ("collections", full_collections, counted),
        )
    }
    middle = {name: round(median(each)) if each else None for name, each in longer.items()}
    slows_ns, beside_ns = _slows_ns(evidence, rank, others, longer["computes"])
    collections = longer["collections"]
    own = own_times(evidence, found, others, slows_ns)
    lost_ns = min(evidence.exposed_wait_ns, gain_ns(evidence.step_ns, (own[other] for other in others)))
    cause = _cause(evidence, rank, others, longer, EXPLAINS * lost_ns)
    computes_there = cause is Cause.COMPUTING and on_host(evidence.ranks[rank].info)
    is_of_host = cause in OF_THE_HOST or computes_there
    return LateRank(
        rank,
        tuple(sorted(others)),
        late.late,
        late.collectives,
        evidence.step_ns,
        own,
        evidence.wait_in_words,
        slows_ns,
        beside_ns,
        middle["computes"],
        middle["busy"],
        middle["stands"],
        middle["loads"],
        middle["delays"],
        sum(collections) / len(collections) if collections else None,
        cause,
        chain,
        line=_line(evidence, rank, others, cause) if is_of_host else None,
    )


def _line(evidence: Evidence, rank: int, others: Collection[int], cause: Cause | None) -> SlowLine | None:
    stands = cause is Cause.STANDING
    found = slow_line(evidence, rank, others, standing=True) if stands else None
    return found or slow_line(evidence, rank, others)


def _cause(
    evidence: Evidence,
    rank: int,
    others: Collection[int],
    longer: dict[str, list[float]],
    enough_ns: float,
) -> Cause | None:
    busy_ns, stands_ns, loads_ns, delays_ns = (
        steady_excess(longer[name]) for name in ("busy", "stands", "loads", "delays")
    )
    info = evidence.ranks[rank].info
    if info is not None and info.compute_exact:
        loads_ns = min(loads_ns, stands_ns)  # what its CPU does while the GPU has work costs nothing
    if loads_ns >= enough_ns:
        return Cause.LOADING
    if max(busy_ns, stands_ns) < enough_ns:
        return None
    if stands_ns > busy_ns or on_host(info):
        collects = longer["collections"]
        if collects and sum(each > 0 for each in collects) >= LATE_SHARE * len(collects):
            return Cause.COLLECTING
        if misplacement(evidence, rank, others):
            return Cause.PLACEMENT
    # Who computes longer waits longer for a CPU, too.
    if stands_ns > busy_ns or median(longer["computes"]) < enough_ns:
        # What it sleeps is but what is left of a step: noise of all the rest adds up in it.
        sleeps_ns = steady_excess(longer["unexplained"], enough_ns / 2 if on_host(info) else 0.0)
        if max(delays_ns, sleeps_ns) < enough_ns:
            return None
        if delays_ns >= sleeps_ns:
            return Cause.DELAYED
        usual_ns = median(long_pauses_ns(evidence, each) for each in others)
        stands_long = long_pauses_ns(evidence, rank) - usual_ns >= enough_ns
        return Cause.LAUNCHING if is_launch_bound(evidence, rank) and not stands_long else Cause.STANDING
    if cpus_are_short(evidence):
        return None
    if (share := clock_share(evidence, rank, others)) is not None and share < LOW_CLOCK:
        return Cause.LOW_CLOCK
    return Cause.UNEVEN if _varies(longer["computes"]) else Cause.COMPUTING


def _slows_ns(
    evidence: Evidence, rank: int, others: Collection[int], computes_ns: Sequence[float]
) -> tuple[int, int]:
    """By how much longer the others compute than the rank, and have communication beside compute, in the
    median step; 0 where the former is not steadily explained by the latter. ``computes_ns``: by how much
    longer the rank computes, in each step.
    """
    if not all(sees_gaps(evidence.ranks[each]) for each in (rank, *others)):
        return 0, 0
    measured = [step.totals for step in evidence.steps]
    hides_ns = excess(evidence, rank, others, lambda _info, step: step.hidden_ns, measured)
    slowed = sum(0 > own_ns >= beside_ns for own_ns, beside_ns in zip(computes_ns, hides_ns, strict=False))
    if not slowed or slowed < STEADY * len(computes_ns):
        return 0, 0
    return round(-median(computes_ns)), round(-median(hides_ns))


def steady_excess(more: list[float], least: float = 0.0) -> float:
    """The median of what `excess` gives; 0 where it is not steadily more than the least, or not known."""
    steady = more and sum(each > least for each in more) >= STEADY * len(more)
    return median(more) if steady else 0.0


def _varies(longer_ns: list[float]) -> bool:
    fifths = quantiles(longer_ns, n=5) if len(longer_ns) > 1 else [0.0]
    return fifths[-1] - fifths[0] > VARIES * median(longer_ns)


def excess(
    evidence: Evidence,
    rank: int,
    others: Collection[int],
    measure: Measure,
    steps: Iterable[Mapping[int, StepTotals]],
) -> list[float]:
    """By how much more of it the rank has than the others in their median, in each of these steps where it
    is known.
    """

    def of(each: int, step: StepTotals) -> int | None:
        return measure(evidence.ranks[each].info, step)

    more: list[float] = []
    for totals in steps:
        own = of(rank, totals[rank])
        theirs = [value for other in others if (value := of(other, totals[other])) is not None]
        if own is not None and theirs:
            more.append(own - median(theirs))
    return more


def _cpus(view: RankView) -> int | None:
    """On how many CPUs it may run."""
    return sum(share.amount for share in view.numa.cpu_nodes) or None if view.numa is not None else None


def _clock_hz(view: RankView) -> float | None:
    known = [sample.sm_clock_hz for sample in view.samples if sample.sm_clock_hz is not None]
    return median(known) if known else None
