"""Which values of a knob make the job do the same, as far as that is known of it. Pure."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.models.buckets import MIB, GradientList
from overlaptop.tuning.space import Layout
from overlaptop.wire.knobs import BUCKET_CAP_MB, Knob


def layout_of(knob: Knob, snapshot: Snapshot) -> Layout | None:
    """For the bucket size, the buckets that DDP would make of the job's gradients; None: not known."""
    facts = next((view.gradients for view in snapshot.ranks if view.gradients is not None), None)
    if knob.name != BUCKET_CAP_MB or facts is None or not facts.size_bytes:
        return None
    try:
        gradients = GradientList(facts.size_bytes, np.zeros(len(facts.size_bytes), np.int64))
    except ValueError:
        return None  # an empty gradient, which no bucket shows

    @lru_cache(maxsize=1024)
    def layout(value: int) -> bytes:
        # The script's own value is given back as it was, its first bucket included.
        own = str(value) == knob.original_text
        buckets = gradients.buckets(value * MIB, facts.first_cap_bytes if own else None)
        return buckets.size_bytes.tobytes()

    return layout
