"""Whether a GPU's records hold together: each one with its neighbours, its stream and its launch.

A profiler now and then writes a record with an impossible time. One such record makes a trace a day long,
or hides all communication. Each check here compares two things that are both in the records; what it finds
is left out or cut, and counted, so that a view can say so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
"""Shape (n,), ns."""

FAR_NS = 3_600_000_000_000
"""No job idles for an hour within one trace; clocks that jump do."""
FEW = 2
"""What lies far away is believed where it holds more than half as many records as the rest."""
EARLY_NS = 1_000_000
"""A record that begins so much before its launch is wrong, unless many do. Less is usual."""
MANY = 3
"""What more than one record in so many shows is no single wrong record: the clocks of CPU and GPU disagree
where so many begin before their launch, and a stream is several where communication and compute overlap so
often on it."""
LEAST_OVERLAPS = 3
"""With fewer on one stream, each may be a wrong duration."""
NOT_LAUNCHED_NS = np.iinfo(np.int64).min
"""Stands for a launch that is not known."""
TOGETHER_NS = 50_000
"""A stream runs one kernel after the other. Programmatic dependent launch lets the next one begin some µs
early (3.7 µs at most of 928 kernels on a B200); a longer overlap is a wrong duration."""

ENDS_FIRST = "ends before it begins"
DUPLICATE = "is there twice"
FAR_AWAY = "lies an hour or more from all others, or takes as long"
BEFORE_LAUNCH = "begins before its own launch"
RUNS_OVER = "ran on while the next one of its stream ran"
"""Cut where the next one begins."""
SEVERAL_STREAMS = "overlaps others of its stream, which often has compute beside communication"
"""Kept: the trace does not tell streams apart."""
_DONE = {RUNS_OVER: "cut", SEVERAL_STREAMS: "kept"}
"""All others are left out."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What is left of n records."""

    keep: NDArray[np.bool_]
    """Shape (n,)."""
    end_ns: Times
    """Shape (n,), with the cuts."""
    found: Counter[str]
    """How many records were left out or cut, by why."""


def check(
    start_ns: Times,
    end_ns: Times,
    queue: NDArray[np.int64],
    *,
    identity: NDArray[np.integer[Any]],
    launched_ns: Times | None = None,
    concurrent: NDArray[np.bool_] | None = None,
    communicates: NDArray[np.bool_] | None = None,
) -> Checked:
    """Leave out or cut the records that contradict others. All arguments have the shape (n,).

    Args:
        start_ns: when each record begins; in any order.
        end_ns: when it ends.
        queue: one number for each stream of each device.
        identity: one number for each name and launch.
        launched_ns: when the CPU launched it; NOT_LAUNCHED_NS where that is not known.
        concurrent: records that may run beside others of their stream, as those of a CUDA graph.
        communicates: records of communication, where the streams of a trace may not be told apart.
    """
    keep = np.ones(len(start_ns), dtype=np.bool_)
    found: Counter[str] = Counter()

    def leave_out(bad: NDArray[np.bool_], why: str) -> None:
        bad = bad & keep
        if count := int(np.count_nonzero(bad)):
            keep[bad] = False
            found[why] += count

    leave_out(end_ns < start_ns, ENDS_FIRST)
    leave_out(_far_away(start_ns, keep), FAR_AWAY)
    long = end_ns - start_ns > FAR_NS
    if np.count_nonzero(long) * FEW <= len(long):
        leave_out(long, FAR_AWAY)
    if launched_ns is not None:
        leave_out(before_launch(start_ns, launched_ns), BEFORE_LAUNCH)
    order = np.lexsort((end_ns, start_ns, queue))
    order = order[keep[order]]
    same_queue = queue[order][1:] == queue[order][:-1]
    earlier, later = order[:-1][same_queue], order[1:][same_queue]
    twice = (
        (start_ns[earlier] == start_ns[later])
        & (end_ns[earlier] == end_ns[later])
        & (identity[earlier] == identity[later])
        & (end_ns[later] > start_ns[later])
    )
    bad = np.zeros(len(start_ns), dtype=np.bool_)
    bad[later[twice]] = True
    leave_out(bad, DUPLICATE)
    over = ~twice & (end_ns[earlier] - start_ns[later] > TOGETHER_NS)
    if concurrent is not None:
        over &= ~(concurrent[earlier] | concurrent[later])
    if communicates is not None:
        differ = communicates[earlier] != communicates[later]
        several = _several_streams(queue[earlier], differ, over)
        if count := int(np.count_nonzero(over & several)):
            found[SEVERAL_STREAMS] += count
        over &= ~several
    cut_ns = end_ns
    if count := int(np.count_nonzero(over)):
        cut_ns = end_ns.copy()
        cut_ns[earlier[over]] = start_ns[later[over]]
        found[RUNS_OVER] += count
    return Checked(keep, cut_ns, found)


def clock_skew_ns(start_ns: Times, launched_ns: Times) -> int:
    """Return by how much the CPU's clock is ahead of the GPU's, where many records show it; else 0.

    Records that begin before their launch show it. Those that begin soonest after it tell how much it is.
    """
    known = launched_ns != NOT_LAUNCHED_NS
    lead_ns = start_ns[known] - launched_ns[known]
    if np.count_nonzero(lead_ns < -EARLY_NS) * MANY <= len(lead_ns):
        return 0
    return -int(np.percentile(lead_ns, 10))


def before_launch(start_ns: Times, launched_ns: Times) -> NDArray[np.bool_]:
    """Return which records, shape (n,), begin before their launch; where clocks disagree, those that do by
    far more than the others.
    """
    known = launched_ns != NOT_LAUNCHED_NS
    lead_ns = start_ns[known] - launched_ns[known]
    least_ns = -EARLY_NS
    if clock_skew_ns(start_ns, launched_ns):
        low_ns, median_ns = np.percentile(lead_ns, (10, 50))
        least_ns += int(low_ns - 2 * (median_ns - low_ns))
    early = np.zeros(len(start_ns), dtype=np.bool_)
    early[known] = lead_ns < least_ns
    return early


def _several_streams(
    queue: NDArray[np.int64], differ: NDArray[np.bool_], over: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which neighbours, shape (n,), are of a queue on which compute and communication overlap often: not
    one stream. Lengths there are right, so none is cut.
    """
    numbers, at = np.unique(queue, return_inverse=True)
    changes = np.bincount(at[differ], minlength=len(numbers))
    overlaps = np.bincount(at[differ & over], minlength=len(numbers))
    several: NDArray[np.bool_] = (overlaps >= LEAST_OVERLAPS) & (overlaps * MANY > changes)
    return several[at]


def _far_away(start_ns: Times, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What lies far from most of the records that are kept, and is few."""
    far = np.zeros(len(start_ns), dtype=np.bool_)
    at = np.flatnonzero(keep)
    if len(at) < 2:
        return far
    at = at[np.argsort(start_ns[at], kind="stable")]
    gaps = np.flatnonzero(np.diff(start_ns[at]) > FAR_NS)
    if not len(gaps):
        return far
    groups = np.split(at, gaps + 1)
    most = max(map(len, groups))
    for group in groups:
        far[group] = len(group) * FEW <= most
    return far


def describe(found: Counter[str]) -> list[str]:
    """Return a sentence for each kind of contradiction, with how often it was met."""
    said = []
    for why, count in sorted(found.items()):
        done = _DONE.get(why, "left out")
        who = "1 GPU record" if count == 1 else f"{count:,} GPU records"
        said.append(f"{who} {done}: {'it' if count == 1 else 'each'} {why}")
    return said
