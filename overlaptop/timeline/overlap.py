"""Breaks one rank's step down by what ran at the same time, to the nanosecond, and finds its stalls."""

from dataclasses import dataclass

import numpy as np

from overlaptop.timeline.spans import Spans, clip, difference, empty, from_pairs, length_ns, union

NO_LEAD = 0.02  # A launch lead below this share of the step counts as none: the GPU waits for each launch
WHOLE_STEP = 0.9  # A CPU that needs this share of the step without being blocked needs all of it
MUCH_IDLE = 0.05  # Minimum share of idle time in a step that matters


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of one step went.

    ``hidden + exposed + compute_only + copy_only + idle + fused == step``, exactly. Time beside a fused
    kernel, which computes and communicates in one, counts as fused only.
    """

    step_ns: int
    compute_ns: int  # Time with compute and without fused kernels
    comm_ns: int  # Time with communication and without fused kernels
    hidden_ns: int  # Communication with compute beside it
    exposed_ns: int  # Communication with no compute beside it
    compute_only_ns: int
    copy_only_ns: int  # Copies with neither compute nor communication beside them
    idle_ns: int
    fused_ns: int = 0  # Kernels that both compute and communicate: neither hidden nor exposed


def break_down(
    start_ns: int, end_ns: int, compute: Spans, comm: Spans, copy: Spans, fused: Spans | None = None
) -> Breakdown:
    """Break down the step ``[start_ns, end_ns)``. Raises ValueError if it ends before it starts.

    The lanes are (n, 2) arrays in ns on the same clock. They need not be canonical, and time outside the
    step does not count. `fused`: kernels that both compute and communicate, or None.
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
    """Return the parts of exposed communication in ``[start_ns, end_ns)`` that compute waited for.

    A stretch of exposed communication ends in one of two ways. If the communication ended, compute was
    stalled by it for the whole stretch. If compute continued while the communication still ran, compute had
    been waiting for something else, such as its next launch. Only stretches of the first kind count.

    `compute` and `comm` are canonical and may reach beyond the step: a collective that outlasts the step
    did not end in it. The result is canonical, and a part of the step's exposed communication.
    """
    exposed = difference(clip(comm, start_ns, end_ns), compute)
    next_end = np.searchsorted(comm[:, 1], exposed[:, 1])
    waited_out: Spans = exposed[comm[next_end, 1] == exposed[:, 1]]
    return waited_out


def launch_bound(
    step_ns: int, launch_lead_ns: int | None, idle_ns: int | None, host_ns: int | None = None
) -> bool | None:
    """Whether the CPU had no lead at the step's end or needed all of it, and the GPU was idle in it. The
    lead alone does not show it: a step that ends with ``loss.item()`` has none. None: not known.
    """
    if launch_lead_ns is None or idle_ns is None:
        return None
    is_slow = launch_lead_ns < NO_LEAD * step_ns or (host_ns or 0) >= WHOLE_STEP * step_ns
    return is_slow and idle_ns > MUCH_IDLE * step_ns
