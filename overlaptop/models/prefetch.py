"""How many layers ahead FSDP should gather parameters, so that compute never waits for them.

With depth d, the all-gather of layer i + d is issued when layer i begins to compute, and all-gathers run
one after another on one stream. If an all-gather takes less time than a layer, depth 1 hides each behind
the previous layer. A greater depth helps if some take longer (a larger layer, a late rank): issued d layers
ahead, an all-gather may take the time of d layers. If the usual one takes as long as a layer or longer, no
depth helps: the stream is never idle, so it never gets ahead, and each layer waits for the difference. Each
level of depth holds one more layer's parameters in memory.

In backward, reduce-scatters share the links, and a layer takes about twice as long,
so compute the depth separately.
"""

from __future__ import annotations

from typing import NamedTuple


class PrefetchDepth(NamedTuple):
    """The depth to choose, and the exposed time with it once the first layers have run."""

    depth: int
    """Layers ahead, 1 or more."""
    exposed_ns: int
    """How long each layer usually waits for its parameters. 0: all is hidden."""
    slowest_exposed_ns: int
    """The same for a layer with the slowest all-gather."""


def prefetch(all_gather_ns: int, layer_ns: int, slowest_all_gather_ns: int | None = None) -> PrefetchDepth:
    """Return the smallest depth with the least waiting for layers of `layer_ns`.

    `all_gather_ns`: usual time of one layer's all-gather. `slowest_all_gather_ns`: time of an occasional
    slow one to hide as well. None: the usual one.

    Raises:
        ValueError: a time of 0 ns or less, or a slowest all-gather that is faster than the usual one.
    """
    slowest_ns = all_gather_ns if slowest_all_gather_ns is None else slowest_all_gather_ns
    if all_gather_ns <= 0 or layer_ns <= 0:
        raise ValueError("an all-gather and a layer must take more than 0 ns")
    if slowest_ns < all_gather_ns:
        raise ValueError("the slowest all-gather cannot take less time than the usual one")
    if all_gather_ns >= layer_ns:
        return PrefetchDepth(1, all_gather_ns - layer_ns, slowest_ns - layer_ns)
    return PrefetchDepth(-(-slowest_ns // layer_ns), 0, 0)
