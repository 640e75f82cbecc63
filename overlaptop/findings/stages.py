"""Pipeline stages: the ranks that send to each other, and their compute, idle time and micro-batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from overlaptop.findings.evidence import Evidence
from overlaptop.findings.exposure import EXPOSED_SHARE
from overlaptop.timeline.collectives import is_point_to_point
from overlaptop.wire.messages import StepDetail


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A group with sends and receives: means over steps."""

    step_ns: float
    compute_ns: Mapping[int, float]
    """By rank, kernels that also communicate included; an upper bound if the source sees no gaps."""
    idle_ns: float
    """Mean time without compute over its ranks."""
    micro_batches: int
    """Fewest sends of a rank in a step: each stage but the ends sends a micro-batch on and back."""

    @property
    def bubble(self) -> float:
        """Return the share of a step that GPipe and 1F1B leave idle: ``(p - 1) / (m + p - 1)`` with p
        stages and m micro-batches (Narayanan et al. 2021, section 2.2).
        """
        stages = len(self.compute_ns)
        return (stages - 1) / (self.micro_batches + stages - 1)


def pipelines_of(evidence: Evidence) -> list[Pipeline]:
    """Return a pipeline per group; none unless the timelines of all ranks are here. Where ranks send so
    often that a pipeline would have next to no bubble, they exchange something else, as ring attention.
    """
    step = next((each for each in reversed(evidence.steps) if each.is_drawn), None)
    sends: dict[str, dict[int, int]] = {}
    for rank, detail in step.details.items() if step is not None else ():
        for group, count in _sends(detail).items():
            sends.setdefault(group, {})[rank] = count
    found = [
        _pipeline(evidence, by_rank)
        for by_rank in sends.values()
        if len(by_rank) > 1 and min(by_rank.values())
    ]
    return [each for each in found if each.bubble >= EXPOSED_SHARE]


def _sends(detail: StepDetail) -> dict[str, int]:
    """Return the number of launches with a send, by group; 0 if it has receives only."""
    found: dict[str, int] = {}
    for call in detail.collectives:
        if is_point_to_point(call.op):
            found[call.group] = found.get(call.group, 0) + ("send" in call.op)
    return found


def _pipeline(evidence: Evidence, sends: Mapping[int, int]) -> Pipeline:
    of_rank = {rank: [step.totals[rank] for step in evidence.steps] for rank in sends}
    step_ns = fmean(totals.step_ns for of_all in of_rank.values() for totals in of_all)
    compute_ns = {
        rank: fmean((totals.compute_ns or 0) + (totals.fused_ns or 0) for totals in of_all)
        for rank, of_all in of_rank.items()
    }
    return Pipeline(step_ns, compute_ns, step_ns - fmean(compute_ns.values()), min(sends.values()))
