"""DDP's gradient buckets: the layout for a bucket size, and the communication cost of even buckets.

A bucket is closed as soon as it has reached the limit, so its size exceeds the limit by less than its last
gradient. The first one may have its own limit: DDP uses 1 MiB if the user named no size. This is the layout
after DDP's reducer has rebuilt its buckets in the first step. Not modelled: gradients of several types or
devices, which DDP puts into separate buckets; sparse gradients; a DDP with `find_unused_parameters` and no
static graph, which keeps the order of its parameters.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

MIB = 1 << 20
"""Unit of DDP's `bucket_cap_mb`."""
LONGEST_NS = 2**53
"""104 days: up to here, a float64 is exact to the nanosecond."""


def bucket_sizes(
    gradient_bytes: Sequence[int], cap_bytes: int, first_cap_bytes: int | None = None
) -> tuple[int, ...]:
    """Return the bytes of each bucket, at least one, in the reducer's order. `first_cap_bytes` None: as the
    others.
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
    """Fixed time of any size: launches, and the way around all ranks."""
    beta_bytes_per_s: float
    """Bytes of the tensor a second (nccl-tests: algorithm bandwidth)."""


@dataclass(frozen=True, slots=True)
class EvenBuckets:
    """Gradients that become ready evenly over backward, in buckets of one size, sent on one stream."""

    cap_bytes: int
    count: int
    comm_ns: int
    exposed_ns: int
    """Communication after backward, which makes the step longer by this time."""


def even_buckets(total_bytes: int, backward_ns: int, link: Link, cap_bytes: int) -> EvenBuckets:
    """Return as many buckets as the limit makes of these bytes, but all of one size. In a real model, the
    size of the last bucket is luck, and would otherwise decide which limit is best.

    Communication ends at the larger of two times: ``B/k + k alpha + S/beta`` (the link is never idle after
    the first bucket) and ``B + alpha + S/(k beta)`` (the link keeps up, and only the last bucket is
    exposed). Compute is assumed to run without gaps and not to be slowed by communication beside it.

    Raises:
        ValueError: it takes more than 104 days.
    """
    count = -(-total_bytes // cap_bytes)
    comm_ns = count * link.alpha_ns + total_bytes / link.beta_bytes_per_s * 1e9
    end_ns = max(backward_ns / count + comm_ns, backward_ns + comm_ns / count)
    if end_ns >= LONGEST_NS:
        raise ValueError("the communication would take more than 104 days")
    return EvenBuckets(cap_bytes, count, round(comm_ns), round(end_ns - backward_ns))


def sweep(total_bytes: int, backward_ns: int, link: Link, grain_bytes: int) -> Iterator[EvenBuckets]:
    """Yield each number of buckets that a limit of whole grains makes, with the smallest such limit,
    ascending.

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
    """Return the fewest buckets for which backward plus exposed time is at most ``1 + slack`` times the
    shortest.

    Each bucket has costs that the model does not include: a launch, and a share of the GPU while compute
    runs. So a little slack is worth it if the curve is flat.
    """
    every = list(buckets)
    longest_ns = (backward_ns + min(each.exposed_ns for each in every)) * (1 + slack)
    good = (each for each in every if backward_ns + each.exposed_ns <= longest_ns)
    return min(good, key=lambda each: each.count)
