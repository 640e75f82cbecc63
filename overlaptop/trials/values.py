"""Chooses the values of a knob to try if the user names none. Pure."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.models.buckets import MIB, bucket_sizes
from overlaptop.wire.knobs import BUCKET_CAP_MB, Knob

MOST_VALUES = 7  # Including the present value
Layout = Callable[[int], tuple[int, ...]]
"""Returns the effective layout of a value. Two values with equal layouts have the same effect."""


def values_to_try(
    knob: Knob, least: int | None = None, most: int | None = None, layout: Layout | None = None
) -> list[int]:
    """Return values from ``least`` to ``most`` in even factors, ascending, without the present one.

    None for both: a sensible range around the present value. ``layout``: among values with the same effect,
    the smallest is tried. None: not known. Raises ValueError with one line if there is nothing to try.
    """
    if (least is not None and least < knob.least) or (most is not None and most > knob.most):
        raise ValueError(f"{knob.name} must be from {knob.least} to {knob.most}")
    allowed: Sequence[int] = sorted(knob.choices) or range(knob.least, knob.most + 1)
    first = 0 if least is None else bisect_left(allowed, least)
    last = len(allowed) if most is None else bisect_left(allowed, most + 1)
    around = knob.value if least is None and most is None else None
    seen: set[object] = {layout(knob.value)} if layout is not None and knob.value is not None else set()
    found = []
    for value in _ladder(allowed[first:last], around):
        made = value if layout is None else layout(value)
        if value != knob.value and made not in seen:
            seen.add(made)
            found.append(value)
    if not found:
        raise ValueError(f"{knob.name} has no other value to try")
    return found


def layout_of(knob: Knob, snapshot: Snapshot) -> Layout | None:
    """Return a function to the buckets that DDP would make of the job's gradients. None if not known."""
    facts = next((view.gradients for view in snapshot.ranks if view.gradients is not None), None)
    if knob.name != BUCKET_CAP_MB or facts is None or not any(facts.size_bytes):
        return None

    def layout(value: int) -> tuple[int, ...]:
        # The script's own value is restored exactly, including its first bucket.
        own = str(value) == knob.original_text
        return bucket_sizes(facts.size_bytes, value * MIB, facts.first_cap_bytes if own else None)

    return layout


def _ladder(values: Sequence[int], around: int | None) -> Sequence[int]:
    """Return at most MOST_VALUES, in even factors, from the first to the last.
    ``around`` is one of them.
    """
    if len(values) <= MOST_VALUES:
        return values
    if around:
        rungs = [around * 2.0 ** (step - MOST_VALUES // 2) for step in range(MOST_VALUES)]
    else:
        shift = max(0, 1 - values[0])
        rungs = list(np.geomspace(values[0] + shift, values[-1] + shift, MOST_VALUES) - shift)
    return sorted({values[min(bisect_left(values, round(rung)), len(values) - 1)] for rung in rungs})
