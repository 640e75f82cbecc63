"""Joins NCCL's kernels to the collectives that launched them: by their common order, never by a guess.

Between two marks the flight recorder logs collectives in the order of issue, and CUPTI records NCCL's
kernels in the order of launch. If both have the same number, and each kernel's kind fits its launch, they
are joined one by one. A launch of several operations may run any number of kernels: if there is exactly one
such launch, it gets the surplus kernels. Anything else stays unmatched.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from overlaptop.agent.sources.base import CollectiveCall
from overlaptop.agent.sources.kernel_steps import LaunchInterval, NcclKernel, TracedStep
from overlaptop.timeline.collectives import sum_links_where_known
from overlaptop.wire.messages import CollectiveSpan


def join(step: TracedStep, launches: Sequence[CollectiveCall]) -> TracedStep:
    """Return the step with its kernels joined to `launches`, which are sorted by time and include all
    launches of the step. A kernel without a known launch counts as a collective.
    """
    spans: list[CollectiveSpan] = []
    links = []
    kernels_ns = matched_ns = 0
    for interval in step.intervals:
        logged = [kernel for kernel in interval.kernels if not kernel.replayed]
        matched = match(logged, launches_in(interval, launches))
        unmatched = interval.kernels if matched is None else [k for k in interval.kernels if k.replayed]
        groups = list(matched or ())
        groups += [(_of_kernel(kernel), [kernel]) for kernel in unmatched]
        for call, kernels in groups:
            took_ns = sum(kernel.end_ns - kernel.start_ns for kernel in kernels)
            kernels_ns += took_ns
            matched_ns += took_ns if call.bytes is not None else 0
            start_ns, end_ns = min(k.start_ns for k in kernels), max(k.end_ns for k in kernels)
            spans.append(call.span(start_ns, end_ns))
            links.append(call.link)
    spans.sort(key=lambda each: each.start_ns)
    return replace(
        step,
        collectives=tuple(spans),
        collective_count=len(spans),
        link=sum_links_where_known(links),
        named=True,
        comm_kernels_ns=kernels_ns,
        matched_ns=matched_ns,
    )


def launches_in(interval: LaunchInterval, launches: Sequence[CollectiveCall]) -> Sequence[CollectiveCall]:
    """Return the launches of this interval; `launches` are sorted by time."""
    first, stop = (
        launches_before(at_ns, launches) for at_ns in (interval.from_unix_ns, interval.to_unix_ns)
    )
    return launches[first:stop]


def launches_before(unix_ns: int, launches: Sequence[CollectiveCall]) -> int:
    """Count the launches before this time; `launches` are sorted by time."""
    return bisect_left(launches, unix_ns, key=lambda launch: launch.issued_ns)


def match(
    kernels: Sequence[NcclKernel], launches: Sequence[CollectiveCall]
) -> list[tuple[CollectiveCall, list[NcclKernel]]] | None:
    """Return each launch with its kernels, given both in order; None if the order is ambiguous."""
    if len(kernels) == len(launches):
        shares = [1] * len(launches)
    elif sum(launch.several for launch in launches) == 1 and len(kernels) > len(launches):
        left_over = len(kernels) - len(launches)
        shares = [1 + left_over * launch.several for launch in launches]
    else:
        return None
    matched, at = [], 0
    for launch, share in zip(launches, shares, strict=True):
        own = list(kernels[at : at + share])
        if not all(_suits(kernel, launch, counted=share == 1) for kernel in own):
            return None
        matched.append((launch, own))
        at += share
    return matched


def _of_kernel(kernel: NcclKernel) -> CollectiveCall:
    return CollectiveCall(kernel.name, None, "", kernel.beside_compute, "nccl", "cuda", -1)


def _suits(kernel: NcclKernel, launch: CollectiveCall, *, counted: bool) -> bool:
    """Whether the launch may have run this kernel. NCCL's generic kernel fits any launch of one kernel."""
    return kernel.collective in launch.kernels or (kernel.collective == "Generic" and counted)
