"""Cost of DDP's bucket size in a running job, from the times of its own all-reduces."""

from dataclasses import dataclass

import numpy as np

from overlaptop.findings.evidence import Evidence
from overlaptop.findings.exposure import Exposure, StepCalls, all_totals, exposure, mean_ns, step_calls
from overlaptop.findings.measures import on_host
from overlaptop.findings.settings import can_set, gradients_of, knob_of
from overlaptop.models.buckets import MIB, EvenBuckets, Link, even_buckets, fewest, sweep
from overlaptop.timeline.arrivals import Collective
from overlaptop.wire.knobs import BUCKET_CAP_MB

UNLIKE = 4.0
"""Fit a line only if the largest all-reduce moves at least this many times the bytes of the smallest."""
FAR_OFF = 0.2
"""Largest median distance from the line, as a share of an all-reduce's time."""
SLACK = 0.02


@dataclass(frozen=True, slots=True)
class Buckets:
    """A step of a job with one DDP model whose bucket size is known."""

    mean: Exposure
    calls: StepCalls
    reduced: list[Collective]
    """The model's all-reduces of the last backward pass, in order; at least one."""
    cap_mib: int
    total_bytes: int
    backward_ns: int
    """Without the stall in it."""

    def link(self) -> Link | None:
        """Fit latency and bandwidth to the all-reduces. None: sizes alike, or times far from a line."""
        size_bytes = np.array([each.bytes or 0 for each in self.reduced], dtype=np.float64)
        took_ns = np.array([each.least_transfer_ns for each in self.reduced], dtype=np.float64)
        if size_bytes.max() < UNLIKE * max(1, size_bytes.min()):
            return None
        ns_per_byte, alpha_ns = np.polyfit(size_bytes, took_ns, 1)
        off_ns = np.median(np.abs(took_ns - (alpha_ns + ns_per_byte * size_bytes)))
        if ns_per_byte <= 0 or alpha_ns > took_ns.min() or off_ns > FAR_OFF * np.median(took_ns):
            return None
        return Link(max(0.0, float(alpha_ns)), 1e9 / float(ns_per_byte))

    def now(self, link: Link) -> EvenBuckets:
        """Return the model's result for the present number of buckets."""
        cap_bytes = -(-self.total_bytes // len(self.reduced))
        return even_buckets(self.total_bytes, self.backward_ns, link, cap_bytes)

    def best(self, link: Link) -> EvenBuckets:
        every = sweep(self.total_bytes, self.backward_ns, link, MIB)
        return fewest(every, self.backward_ns, SLACK)


def buckets_of(evidence: Evidence) -> Buckets | None:
    """Return the buckets of the job's one DDP model. None if a fact is missing, if transfer costs
    little, and without GPUs: there compute and communication share CPUs, and no trial confirmed the model.
    """
    if any(on_host(view.info) for view in evidence.ranks.values()):
        return None
    gradients, knob = gradients_of(evidence), knob_of(evidence, BUCKET_CAP_MB)
    mean, calls = exposure(evidence), step_calls(evidence)
    if gradients is None or knob is None or not knob.value or mean is None or calls is None:
        return None
    reduced = calls.of("allreduce", group=gradients.group, phase="backward")
    backward_ns, stall_ns = (mean_ns(all_totals(evidence), f"{name}_ns") for name in ("backward", "stall"))
    reduced = [each for each in reduced if each.nth == reduced[-1].nth]
    if not mean.costly or not reduced or not calls.all_attributed(gradients.group):
        return None
    if not gradients.size_bytes or not backward_ns or stall_ns is None:
        return None
    own_ns = round(max(1, backward_ns - stall_ns))
    return Buckets(mean, calls, reduced, knob.value, sum(gradients.size_bytes), own_ns)


def advice(evidence: Evidence, cap_mib: int) -> str:
    """Say how to set this bucket size: in the script, and by command if the job accepts commands."""
    line = f"DistributedDataParallel(model, {BUCKET_CAP_MB}={cap_mib})"
    if not can_set(evidence, BUCKET_CAP_MB):
        return line
    command = f"overlaptop set {BUCKET_CAP_MB}={cap_mib}"
    return f"{line}; to try it now: {command}, or overlaptop tune to measure it"
