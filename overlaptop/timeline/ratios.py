"""Ratios of a step's parts, or of the sums over many steps. Without numpy: all messages import this."""


def overlap(hidden_ns: int, comm_ns: int) -> float | None:
    """``hidden / comm``, in [0, 1]; None when there was no communication."""
    return hidden_ns / comm_ns if comm_ns else None


def speedup(compute_ns: int, comm_ns: int, fused_ns: int, step_ns: int) -> float | None:
    """``(compute + comm + fused) / step``: the speed-up over running them one after the other without gaps.
    Below 1 if the step is mostly copies and idle time. None if nothing ran.
    """
    busy_ns = compute_ns + comm_ns + fused_ns
    return busy_ns / step_ns if busy_ns else None


def attainable(compute_ns: int, comm_ns: int, fused_ns: int) -> float | None:
    """``(compute + comm + fused) / (max(compute, comm) + fused)``: the speed-up of perfect overlap, in
    [1, 2]. None if nothing ran.
    """
    longer_ns = max(compute_ns, comm_ns) + fused_ns
    return (compute_ns + comm_ns + fused_ns) / longer_ns if longer_ns else None
