"""DDP's gradient buckets: which layout a bucket size gives, and the step that the layout would take.

The layout is that of DDP's reducer after it has rebuilt its buckets in the first step: gradients in the
order in which they become ready, a bucket closed as soon as it has reached the cap (so a bucket is a cap or
more, by less than its last gradient), the first one by a cap of its own. DDP takes 1 MiB for that one where
the user named no size, else the same cap.

Communication runs on one stream, in the order of the buckets: one starts when its last gradient is ready
and the one before has ended. Compute is taken to run without gaps and not to be slowed by communication
beside it. Not modelled: gradients of several types or devices, which DDP puts into buckets apart; sparse
gradients; a DDP with `find_unused_parameters` and no static graph, which keeps the order of its parameters.

Times are int64 ns, a bucket's counted from the start of backward.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overlaptop.models.alpha_beta import LARGEST, AlphaBeta

MIB = 1 << 20
"""DDP's `bucket_cap_mb` counts these."""
MOST_BUCKETS = 1_000_000
"""No job has as many; their arrays take some 30 MB."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Compute:
    """What a step computes, without any communication."""

    backward_ns: int
    forward_ns: int = 0
    optimizer_ns: int = 0
    """It begins when backward and all communication have ended."""

    def __post_init__(self) -> None:
        for name in ("backward_ns", "forward_ns", "optimizer_ns"):
            if not 0 <= getattr(self, name) < LARGEST:
                raise ValueError(f"{name} must be from 0 to 104 days, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """A layout of m buckets, in the order in which they are sent."""

    size_bytes: Ints
    """Shape (m,)."""
    ready_ns: Ints
    """Shape (m,): when all gradients of the bucket, and of those before it, are there."""
    same_up_to_bytes: int | None
    """The largest cap that gives this layout; None: any larger one does."""


class Gradients(Protocol):
    """What a model's backward hands to DDP."""

    def total_bytes(self) -> int:
        """All gradients."""

    def ready_at_ns(self) -> int:
        """When the last one is ready."""

    def buckets(self, cap_bytes: int, first_cap_bytes: int | None = None) -> Buckets:
        """The layout for this cap; `first_cap_bytes` None: the first bucket has the same.

        Raises:
            ValueError: a cap below 1 byte, or one that would make more than MOST_BUCKETS.
        """


class GradientList:
    """Gradients one by one, in the order of the reducer: the bytes of each, and when it is ready."""

    def __init__(self, size_bytes: ArrayLike, ready_ns: ArrayLike) -> None:
        """Shapes (n,) and (n,), n >= 1. A gradient may be ready before one that comes earlier in the order:
        its bucket waits for both, and so do the buckets behind it.

        Raises:
            ValueError: shapes that do not fit, no gradient, a size below 1 byte, or a time below 0 or
                beyond 104 days.
            TypeError: sizes or times that are not integers.
        """
        sizes, ready = np.asarray(size_bytes), np.asarray(ready_ns)
        if sizes.ndim != 1 or sizes.shape != ready.shape or sizes.size == 0:
            raise ValueError(f"one size and one time a gradient, please: {sizes.shape} and {ready.shape}")
        if sizes.dtype.kind not in "iu" or ready.dtype.kind not in "iu":
            raise TypeError(f"sizes and times are integers, not {sizes.dtype} and {ready.dtype}")
        if sizes.min() < 1 or sizes.astype(np.float64).sum() >= LARGEST:
            raise ValueError("a gradient must have from 1 byte to, together with the others, 8 PiB")
        if ready.min() < 0 or ready.max() >= LARGEST:
            raise ValueError("a gradient must be ready from 0 to 104 days after backward began")
        self._reached = np.cumsum(sizes.astype(np.int64))
        self._ready_ns = np.maximum.accumulate(ready.astype(np.int64))
        self._reached_list: list[int] = self._reached.tolist()  # bisect is ten times quicker on a list

    def total_bytes(self) -> int:
        """All gradients."""
        return self._reached_list[-1]

    def ready_at_ns(self) -> int:
        """When the last one is ready."""
        return int(self._ready_ns[-1])

    def buckets(self, cap_bytes: int, first_cap_bytes: int | None = None) -> Buckets:
        """The layout for this cap; see `Gradients`."""
        own_first = first_cap_bytes is not None
        cap_bytes, first_cap_bytes = _checked(cap_bytes, first_cap_bytes)
        last: list[int] = []  # of each bucket, the index of its last gradient
        sent, cap = 0, first_cap_bytes
        while sent < self._reached_list[-1]:
            at = min(bisect_left(self._reached_list, sent + cap), len(self._reached_list) - 1)
            last.append(at)
            sent, cap = self._reached_list[at], cap_bytes
        sizes = np.diff(self._reached[last], prepend=0)
        # A larger cap changes nothing until it passes the smallest bucket that this one closed. The last
        # bucket ends where the gradients do, and a first one with a cap of its own by that.
        closed = sizes[1 if own_first else 0 : -1]
        return Buckets(sizes, self._ready_ns[last], int(closed.min()) if closed.size else None)


class EvenGradients:
    """So many bytes of gradients that become ready evenly over backward, each infinitely small.

    Enough where no more is known of a model. Real gradients are not that even: the last ones ready, an
    embedding's, are often the largest. The buckets are as many as the cap makes, but all of one size: how
    little a model leaves for its last bucket is luck, and would else decide which cap is the best.

    For k buckets, S bytes and a backward of B, so ``B + exposed`` is the larger of two:
    ``B/k + k alpha + S/beta`` (the link never idles once the first bucket is there) and
    ``B + alpha + S/(k beta)`` (it keeps up, and the last bucket alone is exposed).
    """

    def __init__(self, total_bytes: int, backward_ns: int) -> None:
        """ValueError: not from 1 byte to 8 PiB, or not from 0 ns to 104 days."""
        if not 1 <= total_bytes < LARGEST:
            raise ValueError(f"gradients must have from 1 byte to 8 PiB, not {total_bytes} bytes")
        if not 0 <= backward_ns < LARGEST:
            raise ValueError(f"backward must take from 0 to 104 days, not {backward_ns} ns")
        self._total_bytes, self._backward_ns = total_bytes, backward_ns

    def total_bytes(self) -> int:
        """All gradients."""
        return self._total_bytes

    def ready_at_ns(self) -> int:
        """When the last one is ready: the end of backward."""
        return self._backward_ns

    def buckets(self, cap_bytes: int, first_cap_bytes: int | None = None) -> Buckets:
        """The layout for this cap; see `Gradients`. A first bucket's own cap is its size."""
        firsts = [] if first_cap_bytes is None else [min(first_cap_bytes, self._total_bytes)]
        cap_bytes, _ = _checked(cap_bytes, first_cap_bytes)
        rest_bytes = self._total_bytes - sum(firsts)
        count = -(-rest_bytes // cap_bytes)
        if count > MOST_BUCKETS:
            raise ValueError(
                f"buckets of {cap_bytes} bytes for {self._total_bytes} bytes of gradients would be "
                f"more than {MOST_BUCKETS:,}"
            )
        each_bytes, larger = divmod(rest_bytes, max(count, 1))
        sizes = np.array(
            firsts + [each_bytes + 1] * larger + [each_bytes] * (count - larger), dtype=np.int64
        )
        ready = np.rint(np.cumsum(sizes) / self._total_bytes * self._backward_ns).astype(np.int64)
        # ceil(rest / cap) stays what it is for as long as rest / cap is above count - 1.
        return Buckets(sizes, ready, (rest_bytes - 1) // (count - 1) if count > 1 else None)


@dataclass(frozen=True, eq=False)
class Prediction:
    """A step with a given layout, bucket by bucket: shapes (m,), ns from the start of backward."""

    cap_bytes: int
    buckets: Buckets
    start_ns: Ints
    end_ns: Ints
    compute: Compute

    @cached_property
    def comm_ns(self) -> int:
        """Time in which communication runs."""
        return int((self.end_ns - self.start_ns).sum())

    @cached_property
    def bucket_exposed_ns(self) -> Ints:
        """Of each bucket's time, what comes after backward: nothing computes beside it."""
        return np.maximum(self.end_ns - np.maximum(self.start_ns, self.compute.backward_ns), 0)

    @cached_property
    def exposed_ns(self) -> int:
        """Communication with no compute beside it: by so much it makes the step longer."""
        return int(self.bucket_exposed_ns.sum())

    @property
    def hidden_ns(self) -> int:
        """Communication with compute beside it."""
        return self.comm_ns - self.exposed_ns

    @property
    def step_ns(self) -> int:
        """Forward, then backward and communication until both have ended, then the optimizer."""
        last_ns = max(self.compute.backward_ns, int(self.end_ns[-1]))
        return self.compute.forward_ns + last_ns + self.compute.optimizer_ns


def predict(
    gradients: Gradients,
    compute: Compute,
    link: AlphaBeta,
    cap_bytes: int,
    first_cap_bytes: int | None = None,
) -> Prediction:
    """The step with this cap; `first_cap_bytes` None: the first bucket has the same.

    Raises:
        ValueError: a cap that `Gradients.buckets` refuses, gradients that are not ready when backward ends,
            or communication of more than 104 days.
    """
    if gradients.ready_at_ns() > compute.backward_ns:
        raise ValueError(
            f"the last gradient is ready {gradients.ready_at_ns()} ns after backward began, "
            f"which takes {compute.backward_ns} ns"
        )
    buckets = gradients.buckets(cap_bytes, first_cap_bytes)
    times_ns = link.duration_ns(buckets.size_bytes)
    # A bucket ends at max(ready, end of the one before) + its time. Unrolled: the latest, over the buckets
    # up to it, of "that one's ready time, and from there on all of them one after the other".
    sent_ns = np.cumsum(times_ns)
    end_ns = sent_ns + np.maximum.accumulate(buckets.ready_ns - (sent_ns - times_ns))
    return Prediction(cap_bytes, buckets, end_ns - times_ns, end_ns, compute)


def sweep(
    gradients: Gradients,
    compute: Compute,
    link: AlphaBeta,
    *,
    lowest_bytes: int,
    highest_bytes: int,
    grain_bytes: int = MIB,
    first_cap_bytes: int | None = None,
) -> Iterator[Prediction]:
    """The predictions for ``lowest, lowest + grain, ...`` up to `highest_bytes`, each distinct layout once.

    Of caps with one layout the lowest is given. With a grain of 1 byte these are all layouts of the range.

    Raises:
        ValueError: as `predict` does, or a range or grain that holds no cap.
    """
    if not 1 <= lowest_bytes <= highest_bytes or grain_bytes < 1:
        raise ValueError(
            f"no bucket size lies from {lowest_bytes} to {highest_bytes} bytes in steps of {grain_bytes}"
        )
    cap_bytes = lowest_bytes
    while cap_bytes <= highest_bytes:
        found = predict(gradients, compute, link, cap_bytes, first_cap_bytes)
        yield found
        same_up_to_bytes = found.buckets.same_up_to_bytes
        if same_up_to_bytes is None:
            return
        cap_bytes += (same_up_to_bytes - cap_bytes) // grain_bytes * grain_bytes + grain_bytes


def best(predictions: Iterable[Prediction], slack: float = 0.0) -> Prediction:
    """The one with the fewest buckets among those whose step is at most ``1 + slack`` times the shortest.

    Each bucket costs what the model does not know: a launch, and a share of the GPU while compute runs. So
    a little slack is well spent where the curve is flat. Of as many buckets the shortest step is taken.

    Raises:
        ValueError: there are none.
    """
    of_all = list(predictions)
    longest_ns = min(each.step_ns for each in of_all) * (1 + slack)
    good = (each for each in of_all if each.step_ns <= longest_ns)
    return min(good, key=lambda each: (len(each.end_ns), each.step_ns))


def _checked(cap_bytes: int, first_cap_bytes: int | None) -> tuple[int, int]:
    first_cap_bytes = cap_bytes if first_cap_bytes is None else first_cap_bytes
    if cap_bytes < 1 or first_cap_bytes < 1:
        raise ValueError(f"a bucket's cap must be 1 byte or more, not {min(cap_bytes, first_cap_bytes)}")
    # A cap above all gradients is as good as one of them all, and does not overflow.
    return min(cap_bytes, LARGEST), min(first_cap_bytes, LARGEST)
