"""Checks a GPU's records for contradictions with their neighbours, their stream and their launch.

A profiler occasionally writes a record with an impossible time. One such record makes a trace a day long,
or hides all communication. Each check compares two values that are both in the records. Wrong records are
left out or cut, and counted, so that a view can report them.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]  # Shape (n,), ns

FAR_NS = 3_600_000_000_000  # No job idles for an hour within one trace; clocks that jump do
FEW = 2  # Records far from the rest are believed if they are more than half as many as the rest
EARLY_NS = 1_000_000
"""A record that begins this long before its launch is wrong, unless many do. Less is usual."""
MANY = 3
"""If more than one record in MANY shows a contradiction, the records are not wrong: the clocks of CPU and
GPU differ (records begin before their launch), or one stream is really several (communication and compute
often overlap on it)."""
LEAST_OVERLAPS = 3  # With fewer overlaps on one stream, each may be a wrong duration
NOT_LAUNCHED_NS = np.iinfo(np.int64).min  # Stands for an unknown launch
TOGETHER_NS = 50_000
"""A stream runs its kernels one after the other. Programmatic dependent launch starts the next one a few µs
early (at most 3.7 µs in 928 kernels on a B200). A longer overlap is a wrong duration."""

ENDS_FIRST = "ends before it begins"
DUPLICATE = "is there twice"
FAR_AWAY = "lies an hour or more from all others, or takes as long"
BEFORE_LAUNCH = "begins before its own launch"
RUNS_OVER = "ran on while the next one of its stream ran"  # Cut at the start of the next record
SEVERAL_STREAMS = "overlaps others of its stream, which often has compute beside communication"
"""Kept, because the trace does not tell streams apart."""
_DONE = {RUNS_OVER: "cut", SEVERAL_STREAMS: "kept"}  # Records with any other contradiction are left out


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of the checks on n records."""

    keep: NDArray[np.bool_]  # Shape (n,)
    end_ns: Times  # Shape (n,), after the cuts
    found: Counter[str]  # Records left out or cut, by reason


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

    ``queue``: a number for each stream of each device. ``identity``: one for each name and launch.
    ``launched_ns``: when the CPU launched it, or NOT_LAUNCHED_NS. ``concurrent``: may overlap others of its
    stream, as in a CUDA graph. ``communicates``: in case the trace does not tell streams apart.
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
        # If compute and communication often overlap on a queue, it is several streams: none is cut.
        differ = communicates[earlier] != communicates[later]
        numbers, at = np.unique(queue[earlier], return_inverse=True)
        changes = np.bincount(at[differ], minlength=len(numbers))
        overlaps = np.bincount(at[differ & over], minlength=len(numbers))
        several = ((overlaps >= LEAST_OVERLAPS) & (overlaps * MANY > changes))[at]
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
    """Return how far the CPU's clock is ahead of the GPU's if many records begin before their launch, else
    0. The records that begin soonest after it give the amount.
    """
    known = launched_ns != NOT_LAUNCHED_NS
    lead_ns = start_ns[known] - launched_ns[known]
    if np.count_nonzero(lead_ns < -EARLY_NS) * MANY <= len(lead_ns):
        return 0
    return -int(np.percentile(lead_ns, 10))


def before_launch(start_ns: Times, launched_ns: Times) -> NDArray[np.bool_]:
    """Return a mask, shape (n,), of records that begin before their launch; by far more than others if
    clocks differ.
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


def _far_away(start_ns: Times, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
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
    """Return a sentence for each kind of contradiction, with its number of records."""
    said = []
    for why, count in sorted(found.items()):
        done = _DONE.get(why, "left out")
        who = "1 GPU record" if count == 1 else f"{count:,} GPU records"
        said.append(f"{who} {done}: {'it' if count == 1 else 'each'} {why}")
    return said
