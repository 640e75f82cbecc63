"""What the size of DDP's buckets costs a running job, by what its own all-reduces took."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np

from overlaptop.findings.evidence import Evidence
from overlaptop.findings.exposure import (
    Exposure,
    Issued,
    StepCalls,
    all_totals,
    exposure,
    mean_ns,
    step_calls,
)
from overlaptop.findings.settings import gradients_of, knob_of
from overlaptop.models.buckets import MIB, EvenBuckets, Link, even_buckets, fewest, sweep
from overlaptop.wire.knobs import BUCKET_CAP_MB

UNLIKE = 2.0
"""A line through times of all-reduces says something where the largest has so many times the bytes of the
smallest."""
SLACK = 0.02
"""As `fewest` has it."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """A step of a job with one DDP model whose bucket size is known."""

    mean: Exposure
    calls: StepCalls
    reduced: list[Issued]
    """The model's all-reduces in their order; one or more."""
    cap_mib: int
    total_bytes: int
    backward_ns: int
    """Less what it stands in it."""

    def link(self) -> Link | None:
        """The line through the times of these all-reduces; None where they are too much alike to tell what
        an all-reduce takes however small it is.
        """
        times_ns: dict[int, list[int]] = {}
        for each in self.reduced:
            if each.collective.bytes:
                times_ns.setdefault(each.collective.bytes, []).append(each.collective.least_transfer_ns)
        if not times_ns or max(times_ns) < UNLIKE * min(times_ns):
            return None
        ns_per_byte, alpha_ns = np.polyfit(list(times_ns), [median(each) for each in times_ns.values()], 1)
        if ns_per_byte <= 0:
            return None
        return Link(max(0.0, float(alpha_ns)), 1e9 / float(ns_per_byte))

    def now(self, link: Link) -> EvenBuckets:
        """What the model makes of the present size."""
        return even_buckets(self.total_bytes, self.backward_ns, link, self.cap_mib * MIB)

    def best(self, link: Link) -> EvenBuckets:
        """The size that it gives."""
        every = sweep(self.total_bytes, self.backward_ns, link, MIB)
        return fewest(every, self.backward_ns, SLACK)


def buckets_of(evidence: Evidence) -> Buckets | None:
    """None where any of it is not known, and where transferring costs little."""
    gradients, knob = gradients_of(evidence), knob_of(evidence, BUCKET_CAP_MB)
    mean, calls = exposure(evidence), step_calls(evidence)
    if gradients is None or knob is None or not knob.value or mean is None or calls is None:
        return None
    reduced = calls.of("allreduce", group=gradients.group, phase="backward")
    backward_ns, stall_ns = (mean_ns(all_totals(evidence), f"{name}_ns") for name in ("backward", "stall"))
    if not mean.costly or not reduced or not calls.all_split(gradients.group):
        return None
    if not gradients.size_bytes or not backward_ns or stall_ns is None:
        return None
    own_ns = round(max(1, backward_ns - stall_ns))
    return Buckets(mean, calls, reduced, knob.value, sum(gradients.size_bytes), own_ns)


def advice(cap_mib: int) -> str:
    """How to give buckets this size."""
    return (
        f"overlaptop set {BUCKET_CAP_MB}={cap_mib}, or overlaptop tune to measure it; for good: "
        f"DistributedDataParallel(model, {BUCKET_CAP_MB}={cap_mib})"
    )
