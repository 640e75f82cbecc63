"""Why a rank is late: what takes longer on it than on the others, in each step.

`Cause` lists the causes, and `_cause` checks them in that order: a rule about late ranks begins there. If a
rank only waited for another one in another group, that one is late (timeline/arrivals.py).

Every step has counters, and stacks are sampled all the time. So `slow_host` knows a cause before any step
is measured. Measured steps then confirm it, or show that the GPU's work hides it. Of ranks that share a
GPU, compute counts, too: the others' kernels may wait for it on the GPU, and not in collectives.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from statistics import median, quantiles

from overlaptop import text
from overlaptop.findings.exposure import exposure
from overlaptop.findings.finding import Certainty, Evidence, Finding, JobStep
from overlaptop.findings.gains import EXPLAINS, OwnTime, gain_ns, own_times
from overlaptop.findings.lines import Sampled, ScriptLine, slow_line
from overlaptop.findings.measures import (
    STEADY,
    Measure,
    busy_ns,
    computing_ns,
    copying_ns,
    cpu_ns,
    cpus_are_short,
    delayed_ns,
    excess,
    excess_over,
    full_collections,
    hidden_ns,
    idling_ns,
    is_launch_bound,
    loading_ns,
    long_pauses_ns,
    on_host,
    steady_excess,
    unexplained_ns,
)
from overlaptop.fleet.wait_breakdown import hides_nothing
from overlaptop.fleet.waits import ALWAYS, LATE_SHARE
from overlaptop.report.order import sees_gaps
from overlaptop.timeline.arrivals import RankLateness

VARIES = 1.2
"""Extra compute varies if its middle three fifths spread over more than this multiple of the median."""
SLACK_OF_WAIT, SLACK_OF_STEP = 0.25, 0.1  # A wait costs nothing if the gain is below both shares
LOW_CLOCK = 0.95  # A clock is low below this share of the other ranks' median

# By counters alone:
LEAST_STEPS, LEAST_MEASURED = 8, 4
"""Fewest steps, and fewest measured ones: kernels' times vary less than hosts'."""
ALONE_SHARE = 0.5  # Smallest share of the step. A GPU with queued work hides less.
BARE_SHARE = 0.15
"""The same if nothing hides the training thread's work: without a GPU, if it waits for each launch, or if
measured steps show that the others wait for this rank."""
COMPUTES_SHARE = 0.1  # The same for compute on a shared GPU
DELAYED_SHARE = 0.3
"""With or without a GPU, a rank is named for BARE_SHARE more of waits for a CPU if its own take this share:
transfers may be slow then, and nobody late."""
ITS_OWN = 2 / 3  # Without a GPU also if this share of its waits is more than the others'
SAMPLED = 1 / 4
"""Smallest share of these in each step: samples ten a second tell inexactly which step had the wait."""
BARE_ASLEEP_SHARE = 0.1
"""The same for stack samples of a sleeping thread: other ranks do not sleep near that line."""
BARE_COLLECTS_SHARE = 0.05  # The same for a rank that collects garbage in each step: others do not
HALF_A_COLLECTION = 0.5  # Steps have whole collections, but the others' median may lie between two numbers


class Cause(Enum):
    """Why a rank is late, in the order of the checks. Of each: the measure whose excess is its time, and
    whether a script line may explain it. Without a measure, all of the rank's excess time counts.
    """

    LOADING = "loading", loading_ns, True  # Its training thread loads data or waits for it
    COPYING = "copying", copying_ns  # Its GPU copies longer, with nothing beside the copies
    COLLECTING = ("collecting",)
    """Its interpreter collects garbage. It holds the GIL meanwhile: no stack is sampled, and another line
    would be named."""
    PLACEMENT = ("placement",)  # Its CPUs are too few or on the wrong NUMA node
    DELAYED = "delayed", delayed_ns  # Its training thread is ready to run and waits for a CPU
    SLEEPING = "sleeping", idling_ns, True
    """It launches late: its GPU is idle, or its training thread sleeps, for another reason."""
    LAUNCHING = "launching", idling_ns, True
    """It launches late, and its GPU is idle only in short pauses: its CPU is too slow."""
    LOW_CLOCK = "low clock", computing_ns  # It computes longer, and its GPU's clock is below the others'
    UNEVEN = "uneven", computing_ns  # It computes longer, by a different time in each step
    COMPUTING = "computing", computing_ns

    def __init__(self, _name: str, measure: Measure | None = None, has_line: bool = False) -> None:
        self.measure, self.has_line = measure, has_line


OF_COMPUTE = (Cause.LOW_CLOCK, Cause.UNEVEN, Cause.COMPUTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A rank that something takes longer on than on others, by counters alone."""

    rank: int
    others: tuple[int, ...]  # The ranks compared with
    cause: Cause | None  # None: nothing measured explains it
    line: ScriptLine | None  # If its host is late: the script line with the largest excess over the others
    longer_ns: int | None  # Its excess over the others by its cause in a step; None: no cause
    in_turn: tuple[int, ...] = ()
    """Ranks that are late in turn, this one included; empty if only this one is late."""
    certainty: Certainty | None = None  # None: measured steps confirm it, and the rule says how sure it is
    gain_ns: int | None
    measured: str

    @property
    def versus(self) -> str:
        """Return the ranks compared with: ``the others``, ``rank 0``; ``ranks 0, 3`` if more are late."""
        named = len(self.others) == 1 or (self.others and self.in_turn)
        return text.named_ranks(self.others) if named else "the others"

    @property
    def whose(self) -> str:
        """Return such as ``the others'`` or ``rank 0's``."""
        return f"{self.versus}'" if self.versus.endswith("s") else f"{self.versus}'s"

    @property
    def longer(self) -> str:
        return f"{text.duration(self.longer_ns)} a step longer"

    def finding(self, does: str, advice: str, certainty: Certainty, more: str = "") -> Finding:
        """Return the finding that says why it is late. ``does``: the title after the rank's name.
        ``certainty``: in measured steps. ``more``: what else was measured in these.
        """
        measured = [self.measured]
        if self.certainty is None:
            measured += [more, self.line.describe if self.line is not None else ""]
        return Finding(
            title=f"rank {self.rank}{does}",
            measured="; ".join(filter(None, measured)),
            advice=advice,
            certainty=self.certainty or certainty,
            gain_ns=self.gain_ns,
            ranks=(self.rank,),
            why_late=True,
            line=self.line.line if self.line is not None else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRank(Suspect):
    """A rank that the others wait for in measured steps, which tell its gain."""

    lateness: RankLateness
    own: Mapping[int, OwnTime]  # By rank: this rank's and the others'
    is_slack: bool  # Fixing the rank gains almost nothing
    takes_ns: int  # Its excess time between collectives, for any cause
    slowed_ns: tuple[int, int]
    """The others' extra compute and extra overlap per step while they wait; 0 if not clear."""

    @property
    def takes_text(self) -> str:
        """Return such as ``between collectives it takes 12.1 ms a step longer than the others``."""
        return (
            f"between collectives it takes {text.duration(self.takes_ns)} a step longer than {self.versus}"
        )


def suspects(evidence: Evidence, cause: Cause) -> list[Suspect]:
    """Return the ranks that are late by this cause: by measured steps, then by counters alone."""
    every = (*late_ranks(evidence), slow_host(evidence))
    return [each for each in every if each is not None and each.cause is cause]


def late_ranks(evidence: Evidence) -> tuple[LateRank, ...]:
    """Return the ranks of `named_late` that cost time."""
    return tuple(each for each in named_late(evidence) if not each.is_slack)


@lru_cache(maxsize=1)
def named_late(evidence: Evidence) -> tuple[LateRank, ...]:
    """Return the late rank of the first line, or the ranks that are late in turn, whatever their cost."""
    window = evidence.window
    if window is None:
        return ()
    late = [each for each in window.late if each.rank in evidence.ranks]
    ranks = tuple(sorted(each.rank for each in late))
    passed_on = window.passed_on_wait
    chain = tuple(link.rank for link in passed_on.chain if passed_on.root in ranks) if passed_on else ()
    others = tuple(sorted(evidence.ranks.keys() - {*ranks, *chain}))
    roots = {passed_on.root: chain} if passed_on else {}
    return tuple(_late_rank(evidence, each, ranks, others, roots.get(each.rank, ())) for each in late)


def caused_wait_ns(step: JobStep, ranks: Collection[int]) -> int:
    """Return the others' wait for these ranks in a step; 0 if not known."""
    lateness = step.waits.lateness if step.waits is not None else None
    return sum(each.caused_wait_ns for each in lateness.ranks if each.rank in ranks) if lateness else 0


def misplacement(evidence: Evidence, rank: int, others: Collection[int]) -> str:
    """Return how its CPUs are worse than the others', for a title; empty: not worse, or not known."""
    numas = [evidence.ranks[each].numa for each in (rank, *others)]
    own, *theirs = (sum(share.amount for share in numa.cpu_nodes) if numa else 0 for numa in numas)
    if numas[0] is not None and numas[0].state == "wrong node":
        return f" {numas[0].reason}"
    known = [cpus for cpus in theirs if cpus]
    if own and known and 2 * own <= median(known):
        return f" may run on {text.plural(own, 'CPU')}, others on {round(median(known))}"
    return ""


def clock_share(evidence: Evidence, rank: int, others: Collection[int]) -> float | None:
    """Return its SM clock as a share of the others', by medians of the last minute."""
    samples = (evidence.ranks[each].samples for each in (rank, *others))
    clocks = ([sample.sm_clock_hz for sample in each if sample.sm_clock_hz is not None] for each in samples)
    own, *theirs = (median(each) if each else None for each in clocks)
    known = [hz for hz in theirs if hz is not None]
    return own / median(known) if own is not None and known else None


def _late_rank(
    evidence: Evidence,
    lateness: RankLateness,
    late: tuple[int, ...],
    others: tuple[int, ...],
    passed_on_by: tuple[int, ...],
) -> LateRank:
    """``late``: the ranks that are late in turn. ``passed_on_by``: ranks that are late because they wait
    for this one: each for the next, the last for this rank.
    """
    assert evidence.window is not None
    rank, step_ns = lateness.rank, evidence.step_ns
    slowed = _slowed_ns(evidence, rank, others)
    own = own_times(evidence, late, others, slowed[0], work_stays=False)
    most_ns = evidence.exposed_wait_ns + evidence.window.bared_share * step_ns
    lost_ns = min(most_ns, gain_ns(step_ns, (own[other] for other in others)))
    asleep = slow_line(evidence, rank, others, Sampled.ASLEEP)
    cause = _cause(evidence, lateness, others, EXPLAINS * lost_ns, sleeps=asleep is not None)
    if cause not in OF_COMPUTE and evidence.on_shared_gpus:
        own = own_times(evidence, late, others, slowed[0])
    line = asleep if asleep and cause is Cause.SLEEPING else _line(evidence, rank, others, cause)
    takes_ns = max(
        _median_ns(excess_over(evidence, rank, others, each)) for each in (busy_ns, idling_ns, copying_ns)
    )
    costs_ns = gains_ns = gain_ns(step_ns, (own[other] for other in others))
    longer_ns = None
    if cause is not None:
        measure = cause.measure
        longer_ns = _median_ns(excess_over(evidence, rank, others, measure)) if measure else takes_ns
        saved_ns = longer_ns
        if line is not None and cause is Cause.SLEEPING and is_launch_bound(evidence, rank):
            saved_ns = min(longer_ns, round(line.more * step_ns))
        stay = (of for other, of in own.items() if other != rank)
        gains_ns = gain_ns(step_ns, stay, own[rank], saved_ns)
    costs_ns += max(0, round(evidence.usual_ns - step_ns))
    least_ns = min(SLACK_OF_WAIT * evidence.exposed_wait_ns, SLACK_OF_STEP * step_ns)
    found = LateRank(
        rank=rank,
        others=others,
        cause=cause,
        line=line,
        longer_ns=longer_ns,
        in_turn=late if len(late) > 1 else (),
        gain_ns=gains_ns,
        measured="",
        lateness=lateness,
        own=own,
        is_slack=bool(others) and costs_ns < least_ns,
        takes_ns=takes_ns,
        slowed_ns=slowed,
    )
    return replace(found, measured=_describe(evidence, found, passed_on_by))


def _line(evidence: Evidence, rank: int, others: tuple[int, ...], cause: Cause | None) -> ScriptLine | None:
    """Return the line that may explain the cause; without a GPU compute has one, too."""
    if cause is Cause.COMPUTING and on_host(evidence.ranks[rank].info):
        return slow_line(evidence, rank, others, Sampled.AWAKE)
    return slow_line(evidence, rank, others) if cause is None or cause.has_line else None


def _describe(evidence: Evidence, late: LateRank, passed_on_by: tuple[int, ...]) -> str:
    """Return such as ``rank 2 is late in 71 of 75 collectives; the others wait 12.1 ms a step``."""
    often = f"late in {late.lateness.late_count} of {late.lateness.collectives} collectives"
    others = f"{late.versus} {'waits' if len(late.others) == 1 else 'wait'} {evidence.wait_text} a step"
    if late.in_turn:  # the wait is only known for all of them together
        others = f"others wait {evidence.wait_text} a step for {text.named_ranks(late.in_turn)} together"
    if passed_on_by:
        passes = "passes" if len(passed_on_by) == 1 else "pass"
        others = f"{text.named_ranks(passed_on_by)} {passes} that on, and {others}"
    return f"rank {late.rank} is {often}; {others}"


def _median_ns(excesses_ns: list[float]) -> int:
    """Return 0 if it is not known."""
    return round(median(excesses_ns)) if excesses_ns else 0


def _cause(
    evidence: Evidence, late: RankLateness, others: tuple[int, ...], enough_ns: float, *, sleeps: bool
) -> Cause | None:
    """``sleeps``: samples find it asleep at a line longer than the others. ``enough_ns`` is 0 if its
    lateness costs nothing.
    """
    if not enough_ns:
        return None
    rank = late.rank

    def more(measure: Measure) -> list[float]:
        return excess_over(evidence, rank, others, measure)

    works_ns, idle_ns, copies_ns, loads_ns, delays_ns = (
        steady_excess(more(each)) for each in (busy_ns, idling_ns, copying_ns, loading_ns, delayed_ns)
    )
    info = evidence.ranks[rank].info
    if sees_gaps(evidence.ranks[rank]):
        loads_ns = min(loads_ns, idle_ns)  # CPU time beside a busy GPU costs nothing
    if loads_ns >= enough_ns:
        return Cause.LOADING
    if copies_ns >= max(enough_ns, works_ns, idle_ns):
        return Cause.COPYING
    if max(works_ns, idle_ns) < enough_ns:
        return None
    if idle_ns > works_ns or on_host(info):
        collects = more(full_collections)
        if collects and sum(each > 0 for each in collects) >= LATE_SHARE * len(collects):
            return Cause.COLLECTING
        if misplacement(evidence, rank, others):
            return Cause.PLACEMENT
    # Longer compute means a longer wait for a CPU, too.
    if idle_ns > works_ns or median(more(computing_ns)) < enough_ns:
        # Sleep is the remainder of a step, so the noise of all other parts adds up in it.
        sleeps_ns = steady_excess(more(unexplained_ns), enough_ns / 2 if on_host(info) else 0.0)
        if max(delays_ns, sleeps_ns) < enough_ns:
            return None
        if delays_ns >= sleeps_ns:
            return Cause.DELAYED
        usual_ns = median(long_pauses_ns(evidence, each) for each in others)
        idles_long = long_pauses_ns(evidence, rank) - usual_ns >= enough_ns
        is_slow = is_launch_bound(evidence, rank) and not (idles_long or sleeps)
        return Cause.LAUNCHING if is_slow else Cause.SLEEPING
    if cpus_are_short(evidence) and late.share < ALWAYS:
        return None
    if (share := clock_share(evidence, rank, others)) is not None and share < LOW_CLOCK:
        return Cause.LOW_CLOCK
    return Cause.UNEVEN if _varies(more(computing_ns)) else Cause.COMPUTING


def _slowed_ns(evidence: Evidence, rank: int, others: tuple[int, ...]) -> tuple[int, int]:
    """Return `LateRank.slowed_ns`: it is clear if the overlap explains the compute."""
    if not all(sees_gaps(evidence.ranks[each]) for each in (rank, *others)):
        return 0, 0
    pairs = [
        (computes_ns, hides_ns)
        for step in evidence.steps
        for computes_ns in excess(evidence, computing_ns, [step.totals], (rank,), (rank, *others))[rank]
        for hides_ns in excess(evidence, hidden_ns, [step.totals], (rank,), (rank, *others))[rank]
    ]
    slowed = sum(0 > computes_ns >= hides_ns for computes_ns, hides_ns in pairs)
    if not slowed or slowed < STEADY * len(pairs):
        return 0, 0
    computes_ns, hides_ns = (round(-median(each)) for each in zip(*pairs, strict=True))
    return computes_ns, hides_ns


def _varies(longer_ns: list[float]) -> bool:
    fifths = quantiles(longer_ns, n=5) if len(longer_ns) > 1 else [0.0]
    return fifths[-1] - fifths[0] > VARIES * median(longer_ns)


@lru_cache(maxsize=1)
def slow_host(evidence: Evidence) -> Suspect | None:
    """Return the rank that loses most by one counter. None: there is none, another rank is late or this one
    for the same reason or by compute, or measured steps show that nobody waits for it.
    """
    steps = evidence.counted
    if len(steps) < LEAST_STEPS or len(evidence.ranks) < 2:
        return None
    step_ns = median(totals.step_ns for step in steps for totals in step.values())
    in_pipeline = evidence.window is not None and evidence.window.in_receives
    sharing = () if in_pipeline else evidence.on_shared_gpus
    measures = loading_ns, delayed_ns, full_collections, cpu_ns, *((computing_ns,) if sharing else ())
    ranks = evidence.ranks
    excesses = {measure: excess(evidence, measure, steps, ranks, ranks) for measure in measures}
    found = [
        (longer_ns, rank, cause)
        for rank in evidence.ranks
        for longer_ns, cause in _loses(evidence, rank, step_ns, excesses, shares=rank in sharing)
    ]
    longer_ns, rank, cause = max(found, key=lambda each: each[0])
    late = {each.rank: each.cause for each in named_late(evidence)}
    if not longer_ns or late.get(rank, cause if late else None) in (cause, *OF_COMPUTE):
        return None
    others = tuple(sorted(evidence.ranks.keys() - {rank}))
    sleeps = cause is Cause.SLEEPING
    sampled = Sampled.ASLEEP if sleeps else Sampled.ALL
    line = slow_line(evidence, rank, others, sampled) if cause.has_line else None
    measured = f"by the counters of the newest {text.plural(len(steps), 'step')}"
    if line is not None and sleeps:
        measured = f"by samples of its stack, ten a second: {line.describe}"
    gain, certainty = None, Certainty.LIKELY
    if evidence.window is not None:
        own = own_times(evidence, (rank,), others)
        gain = gain_ns(evidence.step_ns, (own[other] for other in others), own[rank], longer_ns)
        if cause is not Cause.COMPUTING and max(gain, evidence.most_wait_ns) >= EXPLAINS * longer_ns:
            certainty = Certainty.MEASURED
        elif cause is Cause.COMPUTING:
            gain = round(longer_ns)
        elif cause is Cause.DELAYED and (mean := exposure(evidence)) is not None:
            gain = None  # CPUs may move the bytes: unknown for slower transfers
            if mean.exposed_transfer_ns < longer_ns:
                return None
        else:
            return None
    return Suspect(
        rank=rank,
        others=others,
        cause=cause,
        line=line,
        longer_ns=round(longer_ns),
        certainty=certainty,
        gain_ns=gain,
        measured=measured,
    )


def _loses(
    evidence: Evidence,
    rank: int,
    step_ns: float,
    excesses: Mapping[Measure, Mapping[int, list[float]]],
    *,
    shares: bool,
) -> Iterator[tuple[float, Cause]]:
    """Yield the median excess in ns and its cause, for each counter that is steadily higher.
    ``shares``: its GPU, with other ranks.
    """

    def more(measure: Measure, least: float, steadily: float = 1.0, steps: int = LEAST_STEPS) -> float:
        found = excesses[measure].get(rank, [])
        longer_ns = steady_excess(found, steadily * least) if len(found) >= steps else 0.0
        return longer_ns if longer_ns >= least else 0.0

    is_awaited = evidence.window is not None and evidence.window.late_rank == rank
    is_bare = is_awaited or hides_nothing(evidence.ranks[rank])
    share = BARE_SHARE if is_bare else ALONE_SHARE
    loads_ns = more(loading_ns, share * step_ns)
    yield loads_ns, Cause.LOADING
    if waits_ns := more(delayed_ns, BARE_SHARE * step_ns, SAMPLED):
        own_ns = median(step[rank].delayed_ns or 0 for step in evidence.counted)
        if own_ns >= DELAYED_SHARE * step_ns or (is_bare and waits_ns >= ITS_OWN * own_ns):
            yield waits_ns, Cause.DELAYED
    if shares:
        yield more(computing_ns, COMPUTES_SHARE * step_ns, steps=LEAST_MEASURED), Cause.COMPUTING
    if more(full_collections, HALF_A_COLLECTION):
        collects_share = BARE_COLLECTS_SHARE if is_bare else ALONE_SHARE
        yield more(cpu_ns, collects_share * step_ns, 0.0), Cause.COLLECTING
        return
    if not loads_ns and (line := slow_line(evidence, rank, sampled=Sampled.ASLEEP)) is not None:
        is_much = line.more >= (BARE_ASLEEP_SHARE if is_bare else ALONE_SHARE)
        yield (line.more * step_ns if is_much else 0.0), Cause.SLEEPING
