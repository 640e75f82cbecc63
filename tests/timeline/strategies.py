"""What the timeline's property tests draw from: small intervals near any origin, and the 1-ns oracle."""

import numpy as np
from hypothesis import strategies as st

WIDTH_NS = 48
"""Intervals lie within this many ns of their origin, so a sweep of every single ns stays cheap."""

origins_ns = st.sampled_from([0, -7, 1_800_000_000_000_000_000, -(2**62), 2**62 - WIDTH_NS])

offsets_ns = st.integers(0, WIDTH_NS)

raw_pairs = st.lists(st.tuples(offsets_ns, offsets_ns), max_size=12)
"""Pairs in any order: overlapping, touching, empty and inverted ones among them."""


def shifted(pairs, origin_ns):
    """The pairs as an int64 array of shape (n, 2), `origin_ns` later."""
    return np.array([(a + origin_ns, b + origin_ns) for a, b in pairs], dtype=np.int64).reshape(-1, 2)


def ticks(pairs, origin_ns=0):
    """The set of single ns that any pair covers, counted from the origin: the brute-force oracle."""
    return {t - origin_ns for start, end in np.asarray(pairs).tolist() for t in range(start, end)}
