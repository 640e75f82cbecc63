"""Cost of DDP's bucket size in a running job, from the times of its own all-reduces."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from overlaptop.findings.exposure import StepCalls, step_calls
from overlaptop.findings.finding import Evidence
from overlaptop.findings.measures import on_host
from overlaptop.models.buckets import MIB
from overlaptop.timeline.arrivals import Collective
from overlaptop.wire.knobs import BUCKET_CAP_MB

UNLIKE = 4.0
"""Fit a line only if the largest all-reduce moves at least this many times the bytes of the smallest."""
FAR_OFF = 0.2  # Largest median distance from the line, as a share of an all-reduce's time
SLACK = 0.02
"""A larger size is as good if backward and the exposed time after it grow by this share at most: the model
leaves out costs that each bucket has besides."""


@dataclass(frozen=True, slots=True)
class Model:
    """The cost of gradients that become ready evenly over backward, in buckets of one size on one stream.

    In a real model, the size of the last bucket is luck, and would otherwise decide which size is best.
    """

    total_bytes: int
    backward_ns: int  # Without the stall in it
    alpha_ns: float  # Fixed time of an all-reduce of any size: launches, and the way around all ranks
    ns_per_byte: float

    def count(self, cap_mib: int) -> int:
        return -(-self.total_bytes // (cap_mib * MIB))

    def exposed_ns(self, count: int) -> float:
        """Return the communication after backward, which makes the step longer by this time.

        Communication ends at the larger of two times: ``B/k + k alpha + S/beta`` (the link is never idle
        after the first bucket) and ``B + alpha + S/(k beta)`` (the link keeps up, and only the last bucket
        is exposed). Compute is assumed to run without gaps and not to be slowed by communication beside it.
        """
        each_ns = self.alpha_ns + self.total_bytes * self.ns_per_byte / count
        last_ns = max(self.backward_ns / count + count * each_ns, self.backward_ns + each_ns)
        return last_ns - self.backward_ns

    def best_mib(self) -> int:
        """Return the largest of 1, 2, 4, ... MiB that is as good as the best of them."""
        sizes = [1 << at for at in range((self.total_bytes // MIB).bit_length() + 1)]
        ends_ns = [self.backward_ns + self.exposed_ns(self.count(size)) for size in sizes]
        limit_ns = (1 + SLACK) * min(ends_ns)
        return max(size for size, end_ns in zip(sizes, ends_ns, strict=True) if end_ns <= limit_ns)


@dataclass(frozen=True, slots=True)
class Buckets:
    """A step of a job with one DDP model whose bucket size is known."""

    calls: StepCalls
    reduced: list[Collective]  # The model's all-reduces of the last backward pass, in order; at least one
    cap_mib: int
    model: Model | None  # None: all-reduces are alike in size, or their times are far from a line


def buckets_of(evidence: Evidence) -> Buckets | None:
    """Return the buckets of the job's one DDP model. None if a fact is missing, if transfer costs
    little, and without GPUs: there compute and communication share CPUs, and no trial confirmed the model.
    """
    if any(on_host(view.info) for view in evidence.ranks.values()):
        return None
    gradients, knob = evidence.gradients, evidence.knob(BUCKET_CAP_MB)
    calls = step_calls(evidence)
    if gradients is None or knob is None or not knob.value or calls is None:
        return None
    reduced = calls.of("allreduce", group=gradients.group, phase="backward")
    reduced = [each for each in reduced if each.nth == reduced[-1].nth]
    if not calls.mean.costly or not reduced or not calls.all_attributed(gradients.group):
        return None
    every = [totals for step in evidence.steps for totals in step.totals.values()]
    known = [
        (each.backward_ns, each.stall_ns)
        for each in every
        if each.backward_ns is not None and each.stall_ns is not None
    ]
    total_bytes, backward_ns = sum(gradients.size_bytes), fmean(ns for ns, _ in known) if known else 0.0
    if not total_bytes or not backward_ns or len(known) < len(every):
        return None
    busy_ns = round(max(1, backward_ns - fmean(ns for _, ns in known)))
    return Buckets(calls, reduced, knob.value, _model(reduced, total_bytes, busy_ns))


def _model(reduced: Sequence[Collective], total_bytes: int, backward_ns: int) -> Model | None:
    """Fit latency and bandwidth to the all-reduces."""
    size_bytes = np.array([each.bytes or 0 for each in reduced], dtype=np.float64)
    took_ns = np.array([each.least_transfer_ns for each in reduced], dtype=np.float64)
    if size_bytes.max() < UNLIKE * max(1, size_bytes.min()):
        return None
    ns_per_byte, alpha_ns = np.polyfit(size_bytes, took_ns, 1)
    off_ns = np.median(np.abs(took_ns - (alpha_ns + ns_per_byte * size_bytes)))
    if ns_per_byte <= 0 or alpha_ns > took_ns.min() or off_ns > FAR_OFF * np.median(took_ns):
        return None
    return Model(total_bytes, backward_ns, max(0.0, float(alpha_ns)), float(ns_per_byte))


def advice(evidence: Evidence, cap_mib: int) -> str:
    now = evidence.try_now(BUCKET_CAP_MB, cap_mib)
    measure = ", or overlaptop tune to measure it" if now else ""
    return f"DistributedDataParallel(model, {BUCKET_CAP_MB}={cap_mib}){now}{measure}"
