"""The layout of DDP's gradient buckets for a bucket size.

A bucket is closed as soon as it has reached the limit, so its size exceeds the limit by less than its last
gradient. The first one may have its own limit: DDP uses 1 MiB if the user named no size. This is the layout
after DDP's reducer has rebuilt its buckets in the first step. Not modelled: gradients of several types or
devices, which DDP puts into separate buckets; sparse gradients; a DDP with `find_unused_parameters` and no
static graph, which keeps the order of its parameters.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

MIB = 1 << 20  # Unit of DDP's `bucket_cap_mb`


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
