"""Pipeline stages: the ranks that send to each other, and their compute, idle time and micro-batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from statistics import fmean

from overlaptop.findings.exposure import EXPOSED_SHARE
from overlaptop.findings.finding import Evidence
from overlaptop.timeline.collectives import is_point_to_point
from overlaptop.wire.messages import CollectiveSpan, StepTotals


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A group with sends and receives: means over steps."""

    step_ns: float
    compute_ns: Mapping[int, float]
    """By rank, kernels that also communicate included; an upper bound if the source sees no gaps."""
    micro_batches: int
    """Fewest sends of a rank in a step: each stage but the ends sends a micro-batch on and back."""
    ahead: Mapping[int, int]
    """By rank: micro-batches that it sends on before the first one comes back; 1 for the last stage."""

    @property
    def mean_ns(self) -> float:
        return fmean(self.compute_ns.values())

    @property
    def idle_ns(self) -> float:
        return self.step_ns - self.mean_ns

    @property
    def bubble(self) -> float:
        return bubble(len(self.compute_ns), self.micro_batches)

    def gain_ns(self, slowest: int) -> float:
        """Return how much shorter the step is if all stages compute as long as the mean one.

        With t a micro-batch's time on the slowest stage, a step takes the sum of all stages' t and m - 1
        times the slowest one's. With 1F1B it takes less by the forwards that this stage begins while the
        first micro-batch is on its way; a forward takes half as long as a backward.
        """
        own_ns = self.compute_ns[slowest] / self.micro_batches
        longer_ns = own_ns - self.mean_ns / self.micro_batches
        gain_ns = (self.micro_batches - 1) * longer_ns
        is_gpipe = sorted(self.ahead.values())[1] >= self.micro_batches  # on all but the last stage
        return gain_ns if is_gpipe else gain_ns - (self.ahead[slowest] - 1) * own_ns / 3


def bubble(stages: int, micro_batches: int) -> float:
    """Return the share of a step that GPipe and 1F1B leave idle: ``(p - 1) / (m + p - 1)`` with p stages
    and m micro-batches (Narayanan et al. 2021, section 2.2).
    """
    return (stages - 1) / (micro_batches + stages - 1)


def computed_ns(totals: StepTotals) -> int:
    """Return the time of compute, kernels that also communicate included; 0 if not measured."""
    return (totals.compute_ns or 0) + (totals.fused_ns or 0)


@lru_cache(maxsize=1)  # many rules ask for the same
def pipelines_of(evidence: Evidence) -> tuple[Pipeline, ...]:
    """Return a pipeline per group; none unless the timelines of all ranks are here. Where ranks send so
    often that a pipeline would have next to no bubble, they exchange something else, as ring attention.
    """
    step = next((each for each in reversed(evidence.steps) if each.is_drawn), None)
    calls: dict[str, dict[int, list[CollectiveSpan]]] = {}
    for rank, detail in step.details.items() if step is not None else ():
        for call in sorted(detail.collectives, key=attrgetter("start_ns")):
            if is_point_to_point(call.op):
                calls.setdefault(call.group, {}).setdefault(rank, []).append(call)
    found = []
    for by_rank in calls.values():
        sends = min(sum("send" in call.op for call in own) for own in by_rank.values())
        if len(by_rank) > 1 and sends and bubble(len(by_rank), sends) >= EXPOSED_SHARE:
            of_rank = {rank: evidence.steps_of(rank) for rank in by_rank}
            step_ns = fmean(totals.step_ns for steps in of_rank.values() for totals in steps)
            compute_ns = {rank: fmean(map(computed_ns, steps)) for rank, steps in of_rank.items()}
            ahead = {rank: _ahead(own) for rank, own in by_rank.items()}
            found.append(Pipeline(step_ns, compute_ns, sends, ahead))
    return tuple(found)


def _ahead(calls: Sequence[CollectiveSpan]) -> int:
    """See `Pipeline.ahead`. All stages but the first begin with a receive from the one before."""
    before, sent = calls[0].receives_from, 0
    for call in calls:
        sent += call.sends_to not in (None, before)
        if call.receives_from not in (None, before):
            return max(1, sent)
    return 1
