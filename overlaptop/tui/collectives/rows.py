"""Rows for one step's collectives on all ranks: one each, or one for equal collectives. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING

from overlaptop.timeline.averages import mean_of_known
from overlaptop.timeline.collectives import sum_where_known
from overlaptop.tui.model.lanes import CollectiveKey, compute_of, keys_of
from overlaptop.wire.messages import StepDetail

if TYPE_CHECKING:
    from overlaptop.timeline.arrivals import Collective, WaitTimes


@dataclass(frozen=True, slots=True)
class Row:
    """One collective on all ranks of its group, or several. Times are means over the ranks; for several
    collectives, of their time in the step without overlaps. None: not known.
    """

    key: CollectiveKey
    members: "tuple[Collective, ...]"
    start_ns: int  # First start of the first one on any rank, from the step's first start on any rank
    wait_ns: int | None  # Wait of those with a wait/transfer breakdown, as `transfer_ns`
    transfer_ns: int | None
    hidden_ns: int | None  # Time beside compute, on ranks whose timelines are here
    exposed_ns: int | None
    bus_bandwidth: float | None
    """Bytes per second as nccl-tests defines them, over transfer time: for several, the mean over that
    time."""
    late_rank: int | None  # For several collectives, the rank that was late in most of them
    late_in: int  # Collectives with that late rank
    peak_bytes_per_s: int | None = None

    @property
    def not_attributed(self) -> str:
        """Return the most common reason why some have no wait/transfer breakdown; empty: all have one."""
        reasons = Counter(each.not_attributed for each in self.members if each.not_attributed)
        return max(reasons, key=reasons.__getitem__, default="")

    @property
    def bytes(self) -> int | None:
        return sum_where_known(each.bytes for each in self.members)

    @property
    def bus_share(self) -> float | None:
        if self.bus_bandwidth is None or not self.peak_bytes_per_s:
            return None
        return self.bus_bandwidth / self.peak_bytes_per_s


ORDERS: dict[str, Callable[[Row], float | None]] = {
    "exposed": lambda row: row.exposed_ns,
    "waiting": lambda row: row.wait_ns,
    "transfer": lambda row: row.transfer_ns,
    "start": lambda row: row.start_ns,
    "bytes": lambda row: row.bytes,
    "GB/s": lambda row: row.bus_bandwidth,
}
ASCENDING = ("start", "GB/s")  # Keys with the lowest value first; others have the highest first
GROUPINGS: dict[str, Callable[[CollectiveKey], CollectiveKey]] = {
    "": lambda key: key,
    "op": lambda key: CollectiveKey(key.op),
    "bucket": lambda key: key._replace(at=0),
}
"""Groupings of rows: one collective each, an operation, or a bucket (the same operation, group and
bytes)."""


def rows_of(
    collectives: "Sequence[Collective]",
    details: Mapping[int, StepDetail],
    peak: Callable[[tuple[int, ...]], int | None] = lambda _ranks: None,
) -> tuple[Row, ...]:
    """Return a row for each collective, by first start. ``details``: the same step on each rank; ``peak``:
    peak bus bandwidth of these ranks, in bytes per second.
    """
    hidden_ns = _hidden_ns(collectives, details)
    begun_ns = min((detail.start_ns for detail in details.values()), default=0)
    peak = cache(peak)
    return tuple(
        Row(
            key=key,
            members=(each,),
            start_ns=each.first_start_ns - begun_ns,
            wait_ns=mean_of_known(map(each.wait_ns, each.ranks)),
            transfer_ns=mean_of_known(map(each.transfer_ns, each.ranks)),
            hidden_ns=mean_of_known(hidden for hidden, _ in spent_ns),
            exposed_ns=mean_of_known(exposed for _, exposed in spent_ns),
            bus_bandwidth=each.bus_bandwidth,
            late_rank=each.late_rank,
            late_in=int(each.late_rank is not None),
            peak_bytes_per_s=peak(each.ranks),
        )
        for key, each, spent_ns in zip(keys_of(collectives), collectives, hidden_ns, strict=True)
    )


def grouped(rows: Iterable[Row], by: str, details: Mapping[int, StepDetail]) -> tuple[Row, ...]:
    """Return the rows, equal ones merged. ``by``: one of GROUPINGS; ``details`` as in `rows_of`."""
    if not by:
        return tuple(rows)
    alike: dict[CollectiveKey, list[Row]] = {}
    for row in rows:
        alike.setdefault(GROUPINGS[by](row.key), []).append(row)
    return tuple(_together(key, each, details) for key, each in alike.items())


def ordered(rows: Iterable[Row], by: str, *, reverse: bool = False) -> list[Row]:
    """Return the rows sorted, most interesting first; rows without the value are always last."""
    known = [(value, row) for row in rows if (value := ORDERS[by](row)) is not None]
    known.sort(key=lambda pair: pair[0], reverse=(by not in ASCENDING) != reverse)
    return [row for _, row in known] + [row for row in rows if ORDERS[by](row) is None]


def _hidden_ns(
    collectives: "Sequence[Collective]", details: Mapping[int, StepDetail]
) -> list[list[tuple[int, int]]]:
    """Return hidden and exposed time of each collective, on each rank whose timeline is here."""
    # numpy takes 100 ms to import: not before the first paint, which does not need it.
    from overlaptop.timeline.spans import lengths_within

    found: list[list[tuple[int, int]]] = [[] for _ in collectives]
    for rank, detail in details.items():
        compute = compute_of(detail) + detail.start_ns
        own = [(at, *each.spans[rank]) for at, each in enumerate(collectives) if rank in each.spans]
        starts, ends = [start_ns for _, start_ns, _ in own], [end_ns for _, _, end_ns in own]
        hidden_ns = lengths_within(compute, starts, ends).tolist()
        for (at, start_ns, end_ns), hidden in zip(own, hidden_ns, strict=True):
            found[at].append((hidden, end_ns - start_ns - hidden))
    return found


def _together(key: CollectiveKey, rows: Sequence[Row], details: Mapping[int, StepDetail]) -> Row:
    members = tuple(each for row in rows for each in row.members)
    times = [took for detail in details.values() if (took := _in_step(members, detail)) is not None]
    late = Counter(row.late_rank for row in rows if row.late_rank is not None).most_common(1)
    known = ((row.bus_bandwidth, row.members[0].least_transfer_ns) for row in rows)
    moved = [(rate, ns) for rate, ns in known if rate is not None]
    peaks = {row.peak_bytes_per_s for row in rows}
    return replace(
        rows[0],
        key=key,
        members=members,
        wait_ns=mean_of_known(each.wait_ns if each.known else None for each in times),
        transfer_ns=mean_of_known(each.transfer_ns if each.known else None for each in times),
        hidden_ns=mean_of_known(each.hidden_ns for each in times),
        exposed_ns=mean_of_known(each.exposed_ns for each in times),
        bus_bandwidth=sum(map(prod, moved)) / sum(ns for _, ns in moved) if moved else None,
        late_rank=late[0][0] if late else None,
        late_in=late[0][1] if late else 0,
        peak_bytes_per_s=peaks.pop() if len(peaks) == 1 else None,
    )


def _in_step(collectives: "Sequence[Collective]", detail: StepDetail) -> "WaitTimes | None":
    """Return these collectives' time in a rank's step, each moment once; None: the rank has no part."""
    from overlaptop.timeline.arrivals import waiting
    from overlaptop.timeline.spans import from_pairs

    own = [each.spans[detail.rank] for each in collectives if detail.rank in each.spans]
    if not own:
        return None
    comm = from_pairs(own)
    end_ns = detail.start_ns + detail.step_ns
    took = waiting(detail.rank, comm, collectives, detail.start_ns, end_ns)
    return took.times(compute_of(detail) + detail.start_ns)
