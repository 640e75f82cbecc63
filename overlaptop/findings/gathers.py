"""FSDP2's all-gathers in each pass of a step, and the compute beside them."""

from dataclasses import dataclass
from statistics import fmean, median

from overlaptop.findings.detail import computing, phases_of
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.exposure import Exposure, StepCalls, exposure, step_calls
from overlaptop.findings.settings import uses_fsdp2
from overlaptop.timeline.arrivals import Collective
from overlaptop.timeline.spans import clip, length_ns
from overlaptop.wire.messages import StepDetail


@dataclass(frozen=True, slots=True)
class Gathers:
    """All-gathers of one step."""

    mean: Exposure
    calls: StepCalls

    def of(self, which: str) -> list[Collective]:
        """Return one pass's all-gathers of the largest group: ``forward`` or ``backward``."""
        by_group: dict[str, list[Collective]] = {}
        for each in self.calls.of("allgather", phase=which):
            by_group.setdefault(each.group, []).append(each)
        return max(by_group.values(), key=len, default=[])

    def layer_ns(self, which: str) -> int:
        """Return the compute per gather of this pass: the mean over ranks."""
        compute_ns = fmean(_compute_ns(detail, which) for detail in self.calls.step.details.values())
        return round(compute_ns / max(1, len(self.of(which))))

    def usual_ns(self, which: str) -> int:
        """Return the usual transfer time of a gather."""
        return round(median(each.least_transfer_ns for each in self.of(which)))


def gathers_of(evidence: Evidence) -> Gathers | None:
    """Return the newest step's all-gathers. None without FSDP2 modules, or if transfer costs little."""
    mean, calls = exposure(evidence), step_calls(evidence)
    if not uses_fsdp2(evidence) or mean is None or calls is None or not mean.costly:
        return None
    return Gathers(mean, calls)


def _compute_ns(detail: StepDetail, which: str) -> int:
    compute = computing(detail)
    passes = phases_of(detail, which)
    return sum(length_ns(clip(compute, phase.start_ns, phase.end_ns)) for phase in passes)
