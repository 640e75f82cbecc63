"""Which rank loads data, collects garbage or waits for a CPU for much of every step, by its counters.

Counters are known of every step, so this says who is late before any step is measured. Measured steps then
confirm it, or show that it hides behind the GPU's work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.gains import EXPLAINS, gain_ns, own_times
from overlaptop.findings.late import (
    OF_THE_HOST,
    Cause,
    Measure,
    delayed_ns,
    excess,
    full_collections,
    loading_ns,
    named_late,
    on_host,
    steady_excess,
)
from overlaptop.findings.lines import slow_line

LEAST_STEPS = 8
ALONE_SHARE = 0.5
"""Of the step. A GPU with work queued hides less."""
ON_HOST_SHARE = 0.15
"""Likewise of ranks without a GPU: nothing hides what their training thread does."""
HALF_A_COLLECTION = 0.5
"""A step has a whole one more, or none: the others' median may lie between two numbers."""


@dataclass(frozen=True, slots=True)
class SlowHost:
    """A rank whose counter is higher than the others' in nearly all steps."""

    rank: int
    cause: Cause
    longer_ns: int
    """Than the others, in the median step."""
    steps: int
    certainty: Certainty
    gain_ns: int | None
    line: str
    others: tuple[int, ...]

    @property
    def than(self) -> str:
        """With whom it is compared: ``the others``, ``rank 0``."""
        return text.named_ranks(self.others) if len(self.others) == 1 else "the others"

    def finding(self, does: str, advice: str) -> Finding:
        """Why it is late. ``does``: what follows its name in the title."""
        return Finding(
            title=f"rank {self.rank}{does}",
            measured=f"by the counters of {text.plural(self.steps, 'step')}, measured or not",
            advice=advice,
            certainty=self.certainty,
            gain_ns=self.gain_ns,
            ranks=(self.rank,),
            why_late=True,
            line=self.line,
        )


@lru_cache(maxsize=1)
def slow_host(evidence: Evidence) -> SlowHost | None:
    """The rank that loses most by one counter; None: no rank does, late ranks are named already, or
    measured steps show that nobody waits for it.
    """
    steps = evidence.counted
    if len(steps) < LEAST_STEPS or len(evidence.ranks) < 2 or named_late(evidence):
        return None
    step_ns = median(totals.step_ns for step in steps for totals in step.values())
    found = [
        (longer_ns, rank, cause)
        for rank in evidence.ranks
        for longer_ns, cause in _loses(evidence, rank, step_ns)
    ]
    longer_ns, rank, cause = max(found, key=lambda each: each[0])
    if not longer_ns:
        return None
    is_measured = evidence.window is not None
    if is_measured and evidence.most_wait_ns < EXPLAINS * longer_ns:
        return None
    others = tuple(sorted(evidence.ranks.keys() - {rank}))
    own = own_times(evidence, (rank,), others) if is_measured else {}
    line = slow_line(evidence, rank, others) if cause in OF_THE_HOST else None
    return SlowHost(
        rank,
        cause,
        round(longer_ns),
        len(steps),
        Certainty.MEASURED if is_measured else Certainty.LIKELY,
        gain_ns(evidence.step_ns, (own[other] for other in others), own[rank], longer_ns)
        if is_measured
        else None,
        line.line if line is not None else "",
        others,
    )


def slow_by(evidence: Evidence, cause: Cause) -> SlowHost | None:
    """The slow host, if it is of this cause."""
    found = slow_host(evidence)
    return found if found is not None and found.cause is cause else None


def _loses(evidence: Evidence, rank: int, step_ns: float) -> Iterator[tuple[float, Cause]]:
    """By how much more in the median step, by each counter that is steadily higher than the others'."""

    def more(measure: Measure, least: float) -> float:
        found = excess(evidence, rank, evidence.ranks.keys() - {rank}, measure, evidence.counted)
        return steady_excess(found, least) if len(found) >= LEAST_STEPS else 0.0

    share = ON_HOST_SHARE if on_host(evidence.ranks[rank].info) else ALONE_SHARE
    yield more(loading_ns, share * step_ns), Cause.LOADING
    yield more(delayed_ns, ALONE_SHARE * step_ns), Cause.DELAYED
    if more(full_collections, HALF_A_COLLECTION):
        yield more(lambda _info, step: step.cpu_ns, share * step_ns), Cause.COLLECTING
