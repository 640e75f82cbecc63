"""How many layers ahead FSDP should gather parameters, so that compute never waits for them.

With depth d, the all-gather of layer i + d is issued when layer i begins to compute, and all-gathers run
one after another on one stream. Where an all-gather takes less time than a layer, depth 1 hides each behind
the layer before. A greater depth is for those that take longer at times (a larger layer, a late rank):
issued d layers ahead, an all-gather may take d layers' time. Where the usual one takes as long as a layer
or longer, no depth helps: the stream is never idle, so it never gets ahead, and each layer waits for the
difference. Each level of depth holds one more layer's parameters in memory.

In backward the reduce-scatters share the links, and a layer takes about twice as long: ask again for it.
"""

from __future__ import annotations

from typing import NamedTuple


class PrefetchDepth(NamedTuple):
    """The depth to choose, and what stays exposed with it once the first layers have run."""

    depth: int
    """Layers ahead, 1 or more."""
    exposed_ns: int
    """What each layer waits for its parameters in the usual case; 0: all is hidden."""
    slowest_exposed_ns: int
    """The same where its all-gather is the slowest."""


def prefetch(all_gather_ns: int, layer_ns: int, slowest_all_gather_ns: int | None = None) -> PrefetchDepth:
    """The smallest depth with which layers of `layer_ns` wait least.

    `all_gather_ns` is the usual time of one layer's all-gather, `slowest_all_gather_ns` (None: the usual
    one) that of an occasional one which is to be hidden as well.

    Raises:
        ValueError: a time of 0 ns or less, or a slowest all-gather quicker than the usual one.
    """
    slowest_ns = all_gather_ns if slowest_all_gather_ns is None else slowest_all_gather_ns
    if all_gather_ns <= 0 or layer_ns <= 0:
        raise ValueError("an all-gather and a layer must take more than 0 ns")
    if slowest_ns < all_gather_ns:
        raise ValueError("the slowest all-gather cannot take less time than the usual one")
    if all_gather_ns >= layer_ns:
        return PrefetchDepth(1, all_gather_ns - layer_ns, slowest_ns - layer_ns)
    return PrefetchDepth(-(-slowest_ns // layer_ns), 0, 0)
