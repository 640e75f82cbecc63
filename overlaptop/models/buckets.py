"""DDP's gradient buckets: which layout a bucket size gives, and what communication of even ones costs.

A bucket is closed as soon as it has reached the cap, so it is a cap or more, by less than its last
gradient. The first one may have a cap of its own: DDP takes 1 MiB for it where the user named no size. That
is the layout after DDP's reducer has rebuilt its buckets in the first step. Not modelled: gradients of
several types or devices, which DDP puts into buckets apart; sparse gradients; a DDP with
`find_unused_parameters` and no static graph, which keeps the order of its parameters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from overlaptop.timeline.collectives import link_bytes

MIB = 1 << 20
"""DDP's `bucket_cap_mb` counts these."""
LONGEST_NS = 2**53
"""104 days: up to here a float64 counts each."""


def bucket_sizes(
    gradient_bytes: Sequence[int], cap_bytes: int, first_cap_bytes: int | None = None
) -> tuple[int, ...]:
    """The bytes of each bucket that DDP makes of these gradients, one or more, in the reducer's order.

    `first_cap_bytes` None: the first bucket has the same cap as the others. Caps count from 1 on.
    """
    reached = list(accumulate(gradient_bytes))
    sizes: list[int] = []
    sent, cap = 0, cap_bytes if first_cap_bytes is None else first_cap_bytes
    while sent < reached[-1]:
        at = min(bisect_left(reached, sent + max(1, cap)), len(reached) - 1)
        sizes.append(reached[at] - sent)
        sent, cap = reached[at], cap_bytes
    return tuple(sizes)


class Link(NamedTuple):
    """The time of an all-reduce: ``alpha + bytes / beta``."""

    alpha_ns: float
    """What it takes however small it is: launches, and the way round all ranks."""
    beta_bytes_per_s: float
    """Bytes of the tensor a second (nccl-tests: algorithm bandwidth)."""


def algorithm_bandwidth(ranks: int, bus_bytes_per_s: float) -> float:
    """Beta of an all-reduce among two ranks or more by its bus bandwidth, as nccl-tests defines it.

    That is what a rank sends a second: ``2 (n-1)/n`` of the tensor's bytes among n ranks.
    """
    sent = link_bytes("allreduce_", ranks, ranks)  # of one byte a rank: n times the factor, exactly
    assert sent is not None
    return bus_bytes_per_s * ranks / sent.tx


@dataclass(frozen=True, slots=True)
class EvenBuckets:
    """Gradients that become ready evenly over backward, in buckets of one size, sent on one stream."""

    cap_bytes: int
    count: int
    bucket_ns: int
    """What each of them takes."""
    comm_ns: int
    exposed_ns: int
    """Communication after backward: by so much it makes the step longer."""

    @property
    def hidden_ns(self) -> int:
        """Communication beside backward."""
        return self.comm_ns - self.exposed_ns


def even_buckets(total_bytes: int, backward_ns: int, link: Link, cap_bytes: int) -> EvenBuckets:
    """As many buckets as the cap makes of so many bytes, but all of one size: how little a model leaves for
    its last bucket is luck, and would else decide which cap is the best.

    Communication ends at the larger of two: ``B/k + k alpha + S/beta`` (the link never idles once the first
    bucket is there) and ``B + alpha + S/(k beta)`` (it keeps up, and the last bucket alone is exposed).
    Compute is taken to run without gaps and not to be slowed by communication beside it.

    Raises:
        ValueError: it takes more than 104 days.
    """
    count = -(-total_bytes // cap_bytes)
    comm_ns = count * link.alpha_ns + total_bytes / link.beta_bytes_per_s * 1e9
    bucket_ns = comm_ns / count
    end_ns = max(backward_ns / count + comm_ns, backward_ns + bucket_ns)
    if end_ns >= LONGEST_NS:
        raise ValueError("the communication would take more than 104 days")
    return EvenBuckets(cap_bytes, count, round(bucket_ns), round(comm_ns), round(end_ns - backward_ns))


def sweep(total_bytes: int, backward_ns: int, link: Link, grain_bytes: int) -> Iterator[EvenBuckets]:
    """Each count of buckets that a cap of whole grains makes, with the least such cap, rising.

    Raises:
        ValueError: as `even_buckets`.
    """
    cap_bytes = grain_bytes
    while True:
        found = even_buckets(total_bytes, backward_ns, link, cap_bytes)
        yield found
        if found.count == 1:
            return
        cap_bytes = -(-total_bytes // ((found.count - 1) * grain_bytes)) * grain_bytes


def fewest(buckets: Iterable[EvenBuckets], backward_ns: int, slack: float) -> EvenBuckets:
    """The fewest with which backward and what is exposed take at most ``1 + slack`` times the shortest.

    Each bucket costs what the model does not know: a launch, and a share of the GPU while compute runs. So
    a little slack is well spent where the curve is flat.
    """
    every = list(buckets)
    longest_ns = (backward_ns + min(each.exposed_ns for each in every)) * (1 + slack)
    good = (each for each in every if backward_ns + each.exposed_ns <= longest_ns)
    return min(good, key=lambda each: each.count)
