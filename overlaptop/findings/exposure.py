"""Exposed and hidden communication: in the mean, and for each collective."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean

import numpy as np

from overlaptop import text
from overlaptop.findings.finding import Evidence, JobStep
from overlaptop.fleet.waits import COSTLY_SHARE
from overlaptop.timeline.arrivals import Collective
from overlaptop.timeline.collectives import kind_of
from overlaptop.timeline.spans import Spans, clip, length_ns, lengths_within, unflatten, union
from overlaptop.wire.messages import PhaseSpan, StepDetail

EXPOSED_SHARE = 0.05  # Smallest exposed transfer that is worth a finding, as a share of the step
BESIDE_WAITING = 0.5
"""The same, as a share of the ranks' wait. In recorded jobs with a late rank it is 0.04 to 0.28."""
LEAST_BYTES = 1 << 20  # Smaller collectives measure latency, not the link
MOSTLY_SPLIT, LEAST_SPLIT = 0.5, 8
"""Steps that need a breakdown: this share of measured steps with communication, or LEAST_SPLIT."""
AFTER = "after "
NEVER = 0.1
"""Below this hidden share compute and communication never overlap. On CPUs it is an upper bound."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """Mean times per step in ns, over all ranks and steps with a wait/transfer breakdown."""

    exposed_wait_ns: int  # Mean over the ranks that are not late
    step_ns: float
    compute_ns: float  # An upper bound if the source sees no gaps
    compute_only_ns: float
    transfer_ns: float
    exposed_transfer_ns: float

    @property
    def costly(self) -> bool:
        """Whether much transfer is exposed, and not mainly since ranks wait for a late one: that disturbs
        the others' overlap, which then says nothing about the script.
        """
        return (
            self.exposed_transfer_ns >= EXPOSED_SHARE * self.step_ns
            and self.exposed_transfer_ns >= BESIDE_WAITING * self.exposed_wait_ns
        )

    @property
    def one_after_the_other(self) -> bool:
        hidden_ns = self.transfer_ns - self.exposed_transfer_ns
        both = min(self.exposed_transfer_ns, self.compute_ns) >= EXPOSED_SHARE * self.step_ns
        return self.costly and both and hidden_ns < NEVER * self.transfer_ns

    @property
    def could_be_hidden_ns(self) -> int:
        """Return the largest further gain from overlap."""
        return round(min(self.exposed_transfer_ns, self.compute_only_ns))

    def gain_ns(self, saved_ns: float) -> int:
        """Return the gain from saving this time, at most the exposed time."""
        return round(min(self.exposed_transfer_ns, saved_ns))

    def is_little(self, gain_ns: float) -> bool:
        return gain_ns < COSTLY_SHARE * self.step_ns

    @property
    def describe(self) -> str:
        """Return such as ``4.50 ms of 5.10 ms of transfer has no compute beside it``."""
        exposed, all_of_it = map(text.duration, (self.exposed_transfer_ns, self.transfer_ns))
        return f"{exposed} of {all_of_it} of transfer has no compute beside it"


@lru_cache(maxsize=1)  # many rules ask for the same
def exposure(evidence: Evidence) -> Exposure | None:
    """Return the mean exposure. None if too few steps have a breakdown: they are no random sample. Steps
    before the first with a breakdown are too old, and do not count against it.
    """
    split = [step for step in evidence.steps if step.waits is not None]
    if not split or len(split) < min(LEAST_SPLIT, MOSTLY_SPLIT * len(evidence.steps)):
        return None
    since = [step for step in evidence.steps if step.number >= split[0].number]
    measured = sum(bool(totals.comm_ns) for step in since for totals in step.totals.values())
    rows = [
        (
            totals.step_ns,
            totals.compute_ns or 0,
            totals.compute_only_ns or 0,
            times.transfer_ns,
            times.exposed_transfer_ns,
        )
        for step in split
        for rank, totals in step.totals.items()
        if step.waits and (times := step.waits.times.get(rank)) is not None and times.known
    ]
    if not rows or len(rows) < MOSTLY_SPLIT * measured:
        return None
    return Exposure(evidence.exposed_wait_ns, *map(fmean, zip(*rows, strict=True)))


@dataclass(frozen=True, slots=True)
class StepCalls:
    """The collectives of the newest step whose timelines are all here."""

    step: JobStep
    issued: tuple[Collective, ...]
    """By first start; only those with a breakdown, with their places in the step."""
    mean: Exposure  # Of all steps

    def all_attributed(self, group: str) -> bool:
        found = self.step.waits.collectives if self.step.waits is not None else ()
        return not any(each.not_attributed for each in found if each.group == group)

    def bytes_by_backward(self, kind: str, group: str = "") -> list[int]:
        """Return the bytes that collectives of this kind move in each backward pass of the step."""
        detail = next(iter(self.step.details.values()))
        moved = [0] * len(phases_of(detail, "backward"))
        for call in detail.collectives:
            if kind_of(call.op) == kind and group in ("", call.group):
                phase, nth = _phase(detail, detail.start_ns + call.start_ns)
                if phase == "backward":
                    moved[nth] += call.bytes or 0
        return moved

    def of(self, kind: str, *, group: str = "", phase: str = "") -> list[Collective]:
        """Return the collectives of this kind, optionally of one group and phase."""
        return [
            each
            for each in self.issued
            if each.kind == kind and group in ("", each.group) and phase in ("", each.phase)
        ]

    def gathers(self, phase: str) -> list[Collective]:
        """Return a pass's all-gathers of the group with most: ``forward`` or ``backward``."""
        by_group: dict[str, list[Collective]] = {}
        for each in self.of("allgather", phase=phase):
            by_group.setdefault(each.group, []).append(each)
        return max(by_group.values(), key=len, default=[])

    def compute_ns(self, phase: str) -> float:
        """Return the compute in this pass: the mean over ranks."""
        return fmean(
            sum(
                length_ns(clip(computing(detail), at.start_ns, at.end_ns))
                for at in phases_of(detail, phase)
            )
            for detail in self.step.details.values()
        )


@lru_cache(maxsize=1)
def step_calls(evidence: Evidence) -> StepCalls | None:
    """Return the newest such step; None if there is none, or without `exposure`."""
    mean = exposure(evidence)
    for step in reversed(evidence.steps if mean is not None else ()):
        found = step.waits.collectives if step.waits is not None else ()
        if mean is not None and found and step.is_drawn:
            return StepCalls(step, tuple(_issued(found, step.details)), mean)
    return None


def fsdp2_calls(evidence: Evidence) -> StepCalls | None:
    """Return `step_calls`. None without FSDP2 modules, or if transfer costs little."""
    calls = step_calls(evidence)
    return calls if calls is not None and calls.mean.costly and evidence.uses_fsdp2 else None


def exposed_sum_ns(issued: Iterable[Collective]) -> int:
    return sum(each.exposed_transfer_ns for each in issued)


def phases_of(detail: StepDetail, name: str) -> list[PhaseSpan]:
    """Return the phases of this name in order; several if gradients accumulate."""
    return [phase for phase in detail.phases if phase.name == name]


def computing(detail: StepDetail) -> Spans:
    """Return the spans of compute, kernels that also communicate included: ns from the step's start."""
    return union(unflatten(detail.compute_spans_ns), unflatten(detail.fused_spans_ns))


def _issued(found: Sequence[Collective], details: Mapping[int, StepDetail]) -> Iterable[Collective]:
    split = [each for each in found if not each.not_attributed]
    exposed: list[list[int]] = [[] for _ in split]
    for rank, detail in details.items():
        moving = [
            (at, each.spans[rank][0] + wait_ns, each.spans[rank][1])
            for at, each in enumerate(split)
            if (wait_ns := each.wait_ns(rank)) is not None
        ]
        if not moving:
            continue
        places, starts_ns, ends_ns = np.array(moving, dtype=np.int64).T
        beside_ns = lengths_within(unflatten(detail.compute_spans_ns) + detail.start_ns, starts_ns, ends_ns)
        for at, ns in zip(places.tolist(), (ends_ns - starts_ns - beside_ns).tolist(), strict=True):
            exposed[at].append(ns)
    for each, exposed_ns in zip(split, exposed, strict=True):
        first, (start_ns, _) = next(iter(each.spans.items()))
        phase, nth = _phase(details.get(first), start_ns)
        mean = round(fmean(exposed_ns)) if exposed_ns else 0
        yield replace(each, phase=phase, nth=nth, exposed_transfer_ns=mean)


def _phase(detail: StepDetail | None, at_ns: int) -> tuple[str, int]:
    """Return the phase at this moment or before it, and the number of earlier ones of that name."""
    begun = [each for each in detail.phases if detail.start_ns + each.start_ns <= at_ns] if detail else []
    if detail is None or not begun:
        return "", 0
    last = begun[-1]
    nth = sum(each.name == last.name for each in begun) - 1
    return ("" if at_ns < detail.start_ns + last.end_ns else AFTER) + last.name, nth
