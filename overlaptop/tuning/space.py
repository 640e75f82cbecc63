"""The values that a knob may take, as a search sees them: where to look, and which are the same."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.models.buckets import MIB, bucket_sizes
from overlaptop.wire.knobs import BUCKET_CAP_MB, Knob

_SEARCHED_MOST = 400
"""MiB: of bucket sizes beyond that, a job makes the same few buckets."""
Layout = Callable[[int], Hashable]
"""What the job makes of a value: where two values give the same, it does the same with both."""


class Space:
    """Some whole numbers in rising order. Distances are between logarithms: bucket sizes, batches and
    depths all matter by their factors.
    """

    def __init__(self, values: Sequence[int], layout: Layout | None = None) -> None:
        """``values``: one or more, rising; a range will do. ``layout``: None where it is not known."""
        self._values, self._layout = values, layout
        self._shift = max(0, 1 - values[0])
        self.least, self.most = values[0], values[-1]
        if layout is not None:
            # Above this one nothing changes any more (all gradients in one bucket): not worth a look.
            likes_most = partial(self.same, self.most)
            self.most = values[bisect_left(values, True, key=likes_most)]

    @property
    def alike_from(self) -> int | None:
        """From this value on all others give the same; None: they do not, as far as is known."""
        return self.most if self.most < self._values[-1] else None

    @classmethod
    def of(cls, knob: Knob, least: int, most: int, layout: Layout | None = None) -> Space:
        """What a knob allows from ``least`` to ``most``, both included. ValueError: nothing, or less."""
        if least < knob.least or most > knob.most:
            raise ValueError(f"{knob.name} must be from {knob.least} to {knob.most}")
        if knob.choices:
            values: Sequence[int] = sorted(each for each in knob.choices if least <= each <= most)
        else:
            values = range(least, most + 1)
        if not values:
            raise ValueError(f"{knob.name} allows no value from {least} to {most}")
        return cls(values, layout)

    def position(self, value: int) -> float:
        """Where a value lies; equal factors are equal distances."""
        return math.log(value + self._shift)

    def same(self, one: int, other: int) -> bool:
        """Whether the job does the same with both, as far as is known."""
        layout = self._layout
        return one == other or (layout is not None and layout(one) == layout(other))

    def near(self, position: float) -> int:
        """The value that lies nearest to a position."""
        wanted = math.exp(position) - self._shift
        at = bisect_left(self._values, wanted)
        around = self._values[max(0, at - 1) : at + 1]
        return min(around, key=lambda value: abs(self.position(value) - position))

    def ladder(self, count: int, given: int) -> list[int]:
        """At most ``count`` values from the least to the most in even steps of their positions, rising,
        ``given`` among them. The job does something else with each.
        """
        low, high = self.position(self.least), self.position(self.most)
        rungs = [low + (high - low) * at / max(1, count - 1) for at in range(count)]
        found = sorted({self.near(rung) for rung in rungs})
        if given not in found and found[0] < given < found[-1]:
            # Takes the place of the rung next to it, but of neither end.
            inner = found[1:-1]
            if len(found) >= count and inner:
                found.remove(min(inner, key=lambda v: abs(self.position(v) - self.position(given))))
        if given not in found:
            found.append(given)
        # One value for each thing that the job would do; the given one stands for what it does.
        kept: list[int] = []
        for value in sorted(found, key=lambda value: (value != given, value)):
            if not any(self.same(value, other) for other in kept):
                kept.append(value)
        return sorted(kept)


def default_range(knob: Knob) -> tuple[int, int]:
    """What is searched where nothing else is asked for: all, of a bucket size what makes sense."""
    if knob.name == BUCKET_CAP_MB:
        return max(1, knob.least), max(knob.least, min(_SEARCHED_MOST, knob.most))
    return knob.least, knob.most


def layout_of(knob: Knob, snapshot: Snapshot) -> Layout | None:
    """For the bucket size, the buckets that DDP would make of the job's gradients; None: not known."""
    facts = next((view.gradients for view in snapshot.ranks if view.gradients is not None), None)
    if knob.name != BUCKET_CAP_MB or facts is None or not any(facts.size_bytes):
        return None

    @lru_cache(maxsize=1024)
    def layout(value: int) -> Hashable:
        # The script's own value is given back as it was, its first bucket included.
        own = str(value) == knob.original_text
        return bucket_sizes(facts.size_bytes, value * MIB, facts.first_cap_bytes if own else None)

    return layout
