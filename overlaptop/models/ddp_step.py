"""One step of a DDP job, read from the timelines of all its ranks: its buckets, phases, all-reduces.

Over the ranks the slowest counts, because the others wait for it: when a bucket is there on all of them,
and when the last one's backward is over. Of an all-reduce's time the shortest does: the others waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from overlaptop.models.alpha_beta import Observation
from overlaptop.models.ready_times import Ready
from overlaptop.timeline import spans
from overlaptop.wire.messages import CollectiveSpan, PhaseSpan, StepDetail

ALL_REDUCE = "allreduce_"
_ALL_REDUCES = (ALL_REDUCE, "all_reduce")
"""As torch's dispatcher calls it, and as its flight recorder does."""
QUEUE_GAP = 0.002
"""Of backward: a collective that starts so soon behind the one before it had been waiting for it."""


class SeenStep(NamedTuple):
    """A step over all ranks, in ns."""

    number: int
    step_ns: int
    """The mean of the ranks."""
    forward_ns: int
    """What comes before the backward that reduces: data, forward, earlier backward passes."""
    backward_ns: int
    """Without waiting for communication; above 0."""
    after_ns: int
    """From the end of backward to that of the step: the optimizer."""
    exposed_ns: int
    """The mean of the ranks' stalls in backward."""
    bucket_bytes: tuple[int, ...]
    """In the order in which they were sent."""
    ready: tuple[Ready, ...]
    """Of each bucket."""
    all_reduces: tuple[Observation, ...]
    """Of each bucket's, on the rank where it took least; where several ran at once, all of them together
    divided by their number, bytes and time alike."""

    @property
    def hidden_ns(self) -> int:
        """All-reducing beside which backward went on."""
        took_ns = sum(each.durations_ns[0] for each in self.all_reduces)
        return max(0, took_ns - self.exposed_ns)


class _RankStep(NamedTuple):
    backward: PhaseSpan
    stalled_ns: int
    buckets: list[CollectiveSpan]


def read_step(
    details: Sequence[StepDetail], group: str, total_bytes: int, *, queued: bool
) -> SeenStep | str:
    """The step of these timelines, one of each rank; or why it is of no use, in a line.

    `group` is that in which gradients are reduced, `total_bytes` what all of them have. With `queued` a
    collective starts when the one before it has ended; else at its issue, as the host's clock has it.
    """
    ranks = [_read_rank(detail, group) for detail in details]
    seen = [rank for rank in ranks if rank is not None]
    if len(seen) < len(ranks):
        return "a step without a backward that reduces gradients"
    sizes = tuple(each.bytes or 0 for each in seen[0].buckets)
    if any(tuple(each.bytes or 0 for each in rank.buckets) != sizes for rank in seen):
        return "ranks report different all-reduces in the same step"
    if total_bytes and sum(sizes) != total_bytes:
        return (
            f"the all-reduces of backward have {sum(sizes)} bytes, the gradients {total_bytes}: "
            "a communication hook changes them, or others run beside them"
        )
    forward_ns = max(rank.backward.start_ns for rank in seen)
    computed_ns = max(rank.backward.end_ns - rank.stalled_ns for rank in seen)
    if computed_ns <= forward_ns:
        return "a step whose backward is nothing but waiting"
    backward_ns = computed_ns - forward_ns
    return SeenStep(
        number=details[0].step,
        step_ns=_mean([detail.step_ns for detail in details]),
        forward_ns=forward_ns,
        backward_ns=backward_ns,
        after_ns=_mean(
            [
                max(0, detail.step_ns - rank.backward.end_ns)
                for detail, rank in zip(details, seen, strict=True)
            ]
        ),
        exposed_ns=_mean([rank.stalled_ns for rank in seen]),
        bucket_bytes=sizes,
        ready=_ready([rank.buckets for rank in seen], sizes, forward_ns, backward_ns, queued),
        all_reduces=_shortest([rank.buckets for rank in seen], group),
    )


def _read_rank(detail: StepDetail, group: str) -> _RankStep | None:
    """The last backward in which gradients were reduced: earlier ones accumulate them."""
    reduced = [each for each in detail.collectives if each.op in _ALL_REDUCES and each.group == group]
    for phase in reversed(detail.phases):
        if phase.name != "backward":
            continue
        inside = [each for each in reduced if phase.start_ns <= each.start_ns < phase.end_ns and each.bytes]
        if not inside:
            return None
        stall = spans.from_pairs(
            list(zip(detail.stall_spans_ns[::2], detail.stall_spans_ns[1::2], strict=True))
        )
        stalled_ns = spans.length_ns(spans.clip(stall, phase.start_ns, phase.end_ns))
        return _RankStep(phase, stalled_ns, sorted(inside, key=lambda each: each.start_ns))
    return None


def _ready(
    ranks: Sequence[Sequence[CollectiveSpan]],
    sizes: Sequence[int],
    forward_ns: int,
    backward_ns: int,
    queued: bool,
) -> tuple[Ready, ...]:
    found = []
    total_bytes, sent_bytes, busy_until_ns = sum(sizes), 0, 0
    for at, size_bytes in enumerate(sizes):
        sent_bytes += size_bytes
        start_ns = max(rank[at].start_ns for rank in ranks)
        waited = queued and at > 0 and start_ns - busy_until_ns < QUEUE_GAP * backward_ns
        found.append(
            Ready(sent_bytes / total_bytes, max(0, start_ns - forward_ns) / backward_ns, not waited)
        )
        busy_until_ns = max(rank[at].end_ns for rank in ranks)
    return tuple(found)


def _shortest(ranks: Sequence[Sequence[CollectiveSpan]], group: str) -> tuple[Observation, ...]:
    by_rank = [_shares(buckets) for buckets in ranks]
    shortest = [min(each, key=lambda share: share[1]) for each in zip(*by_rank, strict=True)]
    return tuple(Observation(ALL_REDUCE, group, size, (took_ns,)) for size, took_ns in shortest)


def _shares(buckets: Sequence[CollectiveSpan]) -> list[tuple[int, int]]:
    """Of each collective, bytes and ns; of those that ran at once, what falls to each."""
    shares: list[tuple[int, int]] = []
    at = 0
    while at < len(buckets):
        end_ns, beyond = buckets[at].end_ns, at + 1
        while beyond < len(buckets) and buckets[beyond].start_ns < end_ns:
            end_ns = max(end_ns, buckets[beyond].end_ns)
            beyond += 1
        together = buckets[at:beyond]
        size_bytes = sum(each.bytes or 0 for each in together) // len(together)
        took_ns = (end_ns - together[0].start_ns) // len(together)
        shares += [(size_bytes, took_ns)] * len(together)
        at = beyond
    return shares


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values))
