"""One rank's step, taken apart: what ran beside what, to the nanosecond, and what it waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overlaptop.timeline import ratios
from overlaptop.timeline.spans import Spans, clip, difference, empty, from_pairs, length_ns, union

NO_LEAD = 0.02
"""A launch lead below this share of the step is none: the GPU waits for each launch."""
MUCH_IDLE = 0.05
"""Idle time above this share of the step is worth speaking of."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of one step went.

    ``hidden + exposed + compute_only + copy_only + idle + fused == step``, exactly. While a kernel ran that
    computes and communicates in one, what ran beside it counts in no other part.
    """

    step_ns: int
    compute_ns: int
    """Time in which compute ran, whatever else did but fused kernels."""
    comm_ns: int
    """Time in which communication ran, whatever else did but fused kernels."""
    hidden_ns: int
    """Communication with compute beside it."""
    exposed_ns: int
    """Communication with no compute beside it."""
    compute_only_ns: int
    copy_only_ns: int
    """Copies with neither compute nor communication beside them."""
    idle_ns: int
    fused_ns: int = 0
    """Kernels that compute and communicate in one: neither hidden nor exposed."""

    @property
    def overlap(self) -> float | None:
        """As `ratios.overlap`."""
        return ratios.overlap(self.hidden_ns, self.comm_ns)

    @property
    def speedup(self) -> float | None:
        """As `ratios.speedup`."""
        return ratios.speedup(self.compute_ns, self.comm_ns, self.fused_ns, self.step_ns)

    @property
    def attainable(self) -> float | None:
        """As `ratios.attainable`."""
        return ratios.attainable(self.compute_ns, self.comm_ns, self.fused_ns)


def break_down(
    start_ns: int, end_ns: int, compute: Spans, comm: Spans, copy: Spans, fused: Spans | None = None
) -> Breakdown:
    """Take the step ``[start_ns, end_ns)`` apart.

    The lanes are (n, 2) arrays of ns on the same clock; they need not be canonical, and what lies
    outside the step does not count. `fused`: kernels that compute and communicate; None: there were none.

    Raises:
        ValueError: the step ends before it starts.
    """
    if end_ns < start_ns:
        raise ValueError(f"a step cannot end before it starts: [{start_ns}, {end_ns})")
    in_compute, in_comm, in_copy, in_fused = (
        clip(from_pairs(lane), start_ns, end_ns)
        for lane in (compute, comm, copy, empty() if fused is None else fused)
    )
    if len(in_fused):
        in_compute, in_comm, in_copy = (
            difference(lane, in_fused) for lane in (in_compute, in_comm, in_copy)
        )
    fused_ns = length_ns(in_fused)
    step_ns = end_ns - start_ns
    compute_ns = length_ns(in_compute)
    comm_ns = length_ns(in_comm)
    busy = union(in_compute, in_comm)
    busy_ns = length_ns(busy)
    hidden_ns = compute_ns + comm_ns - busy_ns
    copy_only_ns = length_ns(union(busy, in_copy)) - busy_ns
    return Breakdown(
        step_ns=step_ns,
        compute_ns=compute_ns,
        comm_ns=comm_ns,
        hidden_ns=hidden_ns,
        exposed_ns=comm_ns - hidden_ns,
        compute_only_ns=compute_ns - hidden_ns,
        copy_only_ns=copy_only_ns,
        idle_ns=step_ns - busy_ns - copy_only_ns - fused_ns,
        fused_ns=fused_ns,
    )


def stalls(start_ns: int, end_ns: int, compute: Spans, comm: Spans) -> Spans:
    """The stretches of exposed communication in ``[start_ns, end_ns)`` that compute waited out.

    Where communication ran with no compute beside it, one of two things ended that stretch. Either the
    communication was over: compute stood still for as long as it lasted. Or compute went on while the
    communication still ran: it had been waiting for something else, such as its next launch. Only stretches
    of the first kind count.

    `compute` and `comm` are canonical and may reach beyond the step: a collective that outlasts the step
    did not end in it. The result is canonical, and a part of the step's exposed communication.
    """
    exposed = difference(clip(comm, start_ns, end_ns), compute)
    next_end = np.searchsorted(comm[:, 1], exposed[:, 1])
    waited_out: Spans = exposed[comm[next_end, 1] == exposed[:, 1]]
    return waited_out


def launch_bound(step_ns: int, launch_lead_ns: int | None, idle_ns: int | None) -> bool | None:
    """Whether the step was launch-bound: the CPU had no lead at its end, and the GPU stood idle in it.

    The lead alone does not show it: a step that ends by waiting for the GPU (``loss.item()``) has none
    either, and may yet keep the GPU busy. None where either is not known.
    """
    if launch_lead_ns is None or idle_ns is None:
        return None
    return launch_lead_ns < NO_LEAD * step_ns and idle_ns > MUCH_IDLE * step_ns
