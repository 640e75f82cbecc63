"""Which rank loads data, collects garbage or waits for a CPU for much of every step, by its counters.

Counters are known of every step, so this says who is late before any step is measured. Measured steps then
confirm it, or show that it hides behind the GPU's work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import EXPLAINS, OF_THE_HOST, STEADY, Cause, late_ranks, on_host
from overlaptop.findings.lines import slow_line
from overlaptop.wire.messages import StepTotals

LEAST_STEPS = 8
ALONE_SHARE = 0.5
"""Of the step. A GPU with work queued hides less."""
ON_HOST_SHARE = 0.15
"""Likewise of ranks without a GPU: nothing hides what their training thread does."""

Measure = Callable[[StepTotals], int | None]


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
    if len(steps) < LEAST_STEPS or len(steps[0]) < 2 or late_ranks(evidence):
        return None
    step_ns = median(totals.step_ns for step in steps for totals in step.values())
    found = [
        (longer_ns, rank, cause)
        for rank in steps[0]
        for cause, measure, share in _measures(evidence, rank)
        if (longer_ns := _steadily_longer(steps, rank, measure, share * step_ns))
    ]
    if not found:
        return None
    longer_ns, rank, cause = max(found, key=lambda each: each[0])
    is_measured = evidence.window is not None
    if is_measured and evidence.most_wait_ns < EXPLAINS * longer_ns:
        return None
    others = tuple(sorted(steps[0].keys() - {rank}))
    line = slow_line(evidence, rank, others) if cause in OF_THE_HOST else None
    return SlowHost(
        rank,
        cause,
        round(longer_ns),
        len(steps),
        Certainty.MEASURED if is_measured else Certainty.LIKELY,
        min(evidence.most_wait_ns, round(longer_ns)) if is_measured else None,
        line.line if line is not None else "",
        others,
    )


def slow_by(evidence: Evidence, cause: Cause) -> SlowHost | None:
    """The slow host, if it is of this cause."""
    found = slow_host(evidence)
    return found if found is not None and found.cause is cause else None


def _measures(evidence: Evidence, rank: int) -> list[tuple[Cause, Measure, float]]:
    share = ON_HOST_SHARE if on_host(evidence.ranks[rank].info) else ALONE_SHARE
    measures: list[tuple[Cause, Measure, float]] = [
        (Cause.LOADING, lambda step: step.loading_ns, share),
        (Cause.DELAYED, lambda step: step.delayed_ns, ALONE_SHARE),
    ]
    if _steadily_longer(evidence.counted, rank, lambda step: step.full_collections, 1):
        measures.append((Cause.COLLECTING, lambda step: step.cpu_ns, share))
    return measures


def _steadily_longer(
    steps: tuple[Mapping[int, StepTotals], ...], rank: int, measure: Measure, least: float
) -> float:
    """By how much more the rank has than the others' median; 0: not in nearly all steps, or not known."""
    more = []
    for step in steps:
        own = measure(step[rank])
        theirs = [measure(totals) for other, totals in step.items() if other != rank]
        known = [each for each in theirs if each is not None]
        if own is not None and known:
            more.append(own - median(known))
    steady = len(more) >= LEAST_STEPS and sum(each >= least for each in more) >= STEADY * len(more)
    return median(more) if steady else 0.0
