"""Find a late rank by its counters: data loading, garbage collection, CPU delay, or sleep.

Every step has counters, and stacks are sampled all the time. So the cause is known before any step is
measured. Measured steps then confirm it, or show that the GPU's work hides it. Of ranks that share a GPU,
compute counts, too: the others' kernels may wait for it on the GPU, and not in collectives.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from statistics import median

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.exposure import exposure
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.gains import EXPLAINS, gain_ns, own_times
from overlaptop.findings.late import OF_COMPUTE, OF_THE_HOST, Cause, Suspect, named_late
from overlaptop.findings.lines import Sampled, slow_line
from overlaptop.findings.measures import (
    Measure,
    computing_ns,
    cpu_ns,
    delayed_ns,
    each_excess,
    full_collections,
    loading_ns,
    steady_excess,
)
from overlaptop.fleet.wait_breakdown import hides_nothing

LEAST_STEPS, LEAST_MEASURED = 8, 4
"""Fewest steps, and fewest measured ones: kernels' times vary less than hosts'."""
ALONE_SHARE = 0.5
"""Smallest share of the step. A GPU with queued work hides less."""
BARE_SHARE = 0.15
"""The same if nothing hides the training thread's work: without a GPU, if it waits for each launch, or if
measured steps show that the others wait for this rank."""
COMPUTES_SHARE = 0.1
"""The same for compute on a shared GPU."""
DELAYED_SHARE = 0.3
"""With or without a GPU, a rank is named for BARE_SHARE more of waits for a CPU if its own take this share:
transfers may be slow then, and nobody late.
"""
ITS_OWN = 2 / 3
"""Without a GPU also if this share of its waits is more than the others'."""
SAMPLED = 1 / 4
"""Smallest share of these in each step: samples ten a second tell inexactly which step had the wait."""
BARE_ASLEEP_SHARE = 0.1
"""The same for stack samples of a sleeping thread: other ranks do not sleep near that line."""
BARE_COLLECTS_SHARE = 0.05
"""The same for a rank that collects garbage in each step: others do not."""
HALF_A_COLLECTION = 0.5
"""Steps have whole collections, but the others' median may lie between two numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHost(Suspect):
    """A rank whose counter is higher than the others' in nearly all steps."""

    longer_ns: int
    """Excess over the others: the median over steps; for samples, the mean."""
    certainty: Certainty
    gain_ns: int | None
    measured: str

    def finding(self, does: str, advice: str) -> Finding:
        return self.blamed(does, self.measured, advice, self.certainty, self.gain_ns)


@lru_cache(maxsize=1)
def slow_host(evidence: Evidence) -> SlowHost | None:
    """Return the rank that loses most by one counter. None: there is none, another rank is late or this one
    for the same reason or by compute, or measured steps show that nobody waits for it.
    """
    steps = evidence.counted
    if len(steps) < LEAST_STEPS or len(evidence.ranks) < 2:
        return None
    step_ns = median(totals.step_ns for step in steps for totals in step.values())
    in_pipeline = evidence.window is not None and evidence.window.in_receives
    sharing = () if in_pipeline else evidence.on_shared_gpus
    measures = (*_MEASURES, computing_ns) if sharing else _MEASURES
    excesses: dict[Measure, Mapping[int, list[float]]] = {
        measure: each_excess(evidence, measure, steps) for measure in measures
    }
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
    line = slow_line(evidence, rank, others, sampled) if cause in OF_THE_HOST else None
    measured = f"by the counters of the newest {text.plural(len(steps), 'step')}"
    if line is not None and sleeps:
        measured = f"by samples of its stack, ten a second: {line.describe}"
    gain, certainty = None, Certainty.LIKELY
    if evidence.window is not None:
        own = own_times(evidence, (rank,), others)
        gain = gain_ns(evidence.step_ns, (own[other] for other in others), own[rank], longer_ns)
        if cause is not Cause.COMPUTING and max(gain, evidence.most_wait_ns) >= EXPLAINS * longer_ns:
            certainty = Certainty.MEASURED
        elif _cost_without_wait_ns(evidence, cause) >= longer_ns:
            gain = round(longer_ns) if cause is Cause.COMPUTING else None  # unknown for slower transfers
        else:
            return None
    return SlowHost(
        rank=rank,
        others=others,
        cause=cause,
        line=line,
        longer_ns=round(longer_ns),
        certainty=certainty,
        gain_ns=gain,
        measured=measured,
    )


def slow_by(evidence: Evidence, cause: Cause) -> SlowHost | None:
    found = slow_host(evidence)
    return found if found is not None and found.cause is cause else None


def _cost_without_wait_ns(evidence: Evidence, cause: Cause) -> float:
    """Return the most that a cause may cost without a wait for the rank."""
    if cause is Cause.DELAYED and (mean := exposure(evidence)) is not None:
        return mean.exposed_transfer_ns  # CPUs may move the bytes
    return inf if cause is Cause.COMPUTING else 0.0


_MEASURES = (loading_ns, delayed_ns, full_collections, cpu_ns)


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
        asleep_share = line.share - line.others_share
        is_much = asleep_share >= (BARE_ASLEEP_SHARE if is_bare else ALONE_SHARE)
        yield (asleep_share * step_ns if is_much else 0.0), Cause.SLEEPING
