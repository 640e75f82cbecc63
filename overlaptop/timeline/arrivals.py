"""The same collective on all ranks of its group: who waited for whom, and how long bytes moved.

A collective's kernel, or gloo's call, begins on each rank when that rank arrives, and moves no bytes before
the last rank has arrived. So a profiler's communication time has two parts::

    a          = max over ranks of start             the last arrival
    wait_r     = clamp(min(a, end_r) - start_r, 0, duration_r)
    transfer_r = duration_r - wait_r                 wait + transfer = duration, to the nanosecond
    T          = min over ranks of duration          needs no common clock
    residual   = max end - min end                   how far the ends disagree

The late rank starts last and causes the waits of all others. Each rank's wait is computed without assuming
a common end: a broadcast's root may leave before others have arrived.

A collective without this breakdown is *not attributed*, with a reason: matching.py decides that. Of a send
and its receive, only the receive is attributed, because a send ends when its bytes are buffered.

A rank may be late because it was itself waiting in another group. If it waited there for at least half of
the time that the others waited for it, that is a *passed-on wait*: the blame moves on to the late rank of
that other collective, and so on from there. In sends and receives, each pair of ranks counts as a group,
because all stages of a pipeline may share one.

All times are integers in ns, on one clock for all ranks.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from overlaptop.timeline import collectives as ops
from overlaptop.timeline.spans import (
    Spans,
    clip,
    difference,
    from_bounds,
    from_pairs,
    intersection,
    length_ns,
    union,
)

PASSED_ON_SHARE = 0.5
"""Minimum share of the time the others waited for the late rank that it was itself waiting."""


@dataclass(frozen=True)
class Collective:
    """One collective, or one send with its receive, on all recorded ranks."""

    op: str
    group: str
    bytes: int | None  # The larger of input and output. None if not known, or not equal on all ranks.
    spans: Mapping[int, tuple[int, int]]  # Start and end on each rank, by the clocks. In order of ranks.
    not_attributed: str = ""  # Why it is not attributed. Empty if it is.
    sender: int | None = None  # The sending rank of a send and its receive. Its time is not attributed.
    clock_error_ns: int = 0
    """Maximum difference of the ranks' clocks, and so the possible error of each wait, either way."""
    phase: str = ""
    """Phase of the step in which it started on its first rank. ``after backward`` if it started behind that
    phase. Empty if not known. findings/exposure.py sets this and the next two fields."""
    nth: int = 0  # Index of the phase among those of that name in the step, from 0
    exposed_transfer_ns: int = 0  # Transfer time without compute beside it, as the mean over ranks

    @property
    def kind(self) -> str:
        """As `collectives.kind_of` returns it. Empty for other operations."""
        return ops.kind_of(self.op) or ""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.spans)

    @property
    def first_start_ns(self) -> int:
        return min([start_ns for start_ns, _ in self.spans.values()])

    @cached_property
    def last_start_ns(self) -> int:
        """When the last rank arrived."""
        return max([start_ns for start_ns, _ in self.spans.values()])

    @property
    def last_end_ns(self) -> int:
        return max([end_ns for _, end_ns in self.spans.values()])

    @property
    def residual_ns(self) -> int:
        """Difference between the last and the first end. If ranks may leave early, those that did are left
        out: they had nothing more to transfer.
        """
        ends = [end_ns for _, end_ns in self._judged]
        return max(ends) - min(ends)

    @property
    def least_transfer_ns(self) -> int:
        """T: transfer time on the fastest rank, without a common clock. For a receive, and if amounts may
        be unequal (all-to-all): from the last arrival to the last end. If ranks may leave early, others
        count.
        """
        if self.sender is not None:
            end_ns = max(end_ns for rank, (_, end_ns) in self.spans.items() if rank != self.sender)
            return max(0, end_ns - self.last_start_ns)
        if self.kind == "alltoall":
            return self.last_end_ns - self.last_start_ns
        return min([end_ns - start_ns for start_ns, end_ns in self._judged])

    @property
    def _judged(self) -> Iterable[tuple[int, int]]:
        """All spans. If there is a root, only those that ended after the last arrival: at least one."""
        if not ops.has_root(self.op):
            return self.spans.values()
        return [span for span in self.spans.values() if span[1] >= self.last_start_ns]

    @property
    def late_rank(self) -> int | None:
        """The rank that started last. None: not attributed, alone, or clocks cannot tell which is last."""
        if self.not_attributed or len(self.spans) < 2:
            return None
        last_ns = self.last_start_ns - self.clock_error_ns
        late = [rank for rank, (start_ns, _) in self.spans.items() if start_ns >= last_ns]
        return late[0] if len(late) == 1 else None

    @property
    def bus_bandwidth(self) -> float | None:
        """Bytes per second during T, as nccl-tests defines it. None if not attributed or not known."""
        if self.not_attributed:
            return None
        return ops.bus_bandwidth(self.op, self.bytes, len(self.spans), self.least_transfer_ns)

    @property
    def longest_wait_ns(self) -> int:
        """Longest wait of any rank, by the clocks. Also known if it is not attributed."""
        return max([self.moved_ns(*span) - span[0] for span in self.spans.values()])

    def moved_ns(self, start_ns: int, end_ns: int) -> int:
        """Return when the wait of a rank with this span ended, by the clocks."""
        return self.last_start_ns if self.last_start_ns < end_ns else max(start_ns, end_ns)

    def wait_ns(self, rank: int) -> int | None:
        """Return the rank's wait for the last one. None: it has no part, or that is not attributed."""
        span = self._attributed(rank)
        return None if span is None else self.moved_ns(*span) - span[0]

    def transfer_ns(self, rank: int) -> int | None:
        """Return the rank's duration minus its wait. None as for `wait_ns`."""
        span = self._attributed(rank)
        return None if span is None else span[1] - self.moved_ns(*span)

    def _attributed(self, rank: int) -> tuple[int, int] | None:
        return None if self.not_attributed or rank == self.sender else self.spans.get(rank)

    @property
    def caused_wait_ns(self) -> int:
        """Waits of all ranks for the last one, summed. 0 if it is not attributed."""
        if self.not_attributed:
            return 0
        spans = self.spans.items()
        return sum([self.moved_ns(*span) - span[0] for rank, span in spans if rank != self.sender])


class WaitTimes(NamedTuple):
    """A rank's communication in one step, broken down by kind and by what ran beside it.

    The six parts sum exactly to the communication, and the three exposed parts to the exposed time.
    """

    wait_ns: int
    transfer_ns: int
    not_attributed_ns: int
    exposed_wait_ns: int
    exposed_transfer_ns: int
    exposed_not_attributed_ns: int

    @property
    def exposed_ns(self) -> int:
        """Communication of any kind without compute beside it."""
        return self.exposed_wait_ns + self.exposed_transfer_ns + self.exposed_not_attributed_ns

    @property
    def hidden_ns(self) -> int:
        """Communication of any kind with compute beside it."""
        return self.wait_ns + self.transfer_ns + self.not_attributed_ns - self.exposed_ns

    def bared_ns(self, late: "WaitTimes") -> int:
        """Transfer that hides behind compute on the late rank, but not on this one, which waits and has
        computed already.
        """
        late_hidden_ns = late.transfer_ns - late.exposed_transfer_ns
        return max(0, min(self.exposed_transfer_ns - late.exposed_transfer_ns, late_hidden_ns))

    @property
    def known(self) -> bool:
        """False if there was communication and none of it is attributed."""
        return bool(self.wait_ns or self.transfer_ns or not self.not_attributed_ns)

    @property
    def exposed_known(self) -> bool:
        """False if there was exposed communication and none of it is attributed."""
        return bool(self.exposed_wait_ns or self.exposed_transfer_ns or not self.exposed_not_attributed_ns)


@dataclass(frozen=True, slots=True)
class Waiting:
    """One rank's communication in one step. Time in neither part is not attributed: it belongs to such a
    collective, or to none that was matched.
    """

    comm: Spans  # M: all communication
    wait: Spans  # W: waits for a late rank; no bytes moved
    transfer: Spans  # X: union of the transfer parts of its collectives. W and X are disjoint parts of M.

    def times(self, compute: Spans) -> WaitTimes:
        """Return the lengths of all parts, with and without compute beside them. `compute` is canonical."""
        sets = (self.comm, self.wait, self.transfer)
        comm_ns, wait_ns, transfer_ns = (length_ns(each) for each in sets)
        hidden_ns = [length_ns(intersection(each, compute)) for each in sets]
        not_attributed_ns = comm_ns - wait_ns - transfer_ns
        return WaitTimes(
            wait_ns,
            transfer_ns,
            not_attributed_ns,
            wait_ns - hidden_ns[1],
            transfer_ns - hidden_ns[2],
            not_attributed_ns - (hidden_ns[0] - hidden_ns[1] - hidden_ns[2]),
        )


def waiting(
    rank: int, comm: Spans, collectives: Iterable[Collective], start_ns: int, end_ns: int
) -> Waiting:
    """Break down a rank's communication M in the step ``[start_ns, end_ns)``.

    X is the union of the transfer parts, even with a wait beside them. W is the rank's waiting in the rest
    of M, without the time of collectives that are not attributed. The remainder is not attributed, such as
    a send with no receive beside it. `comm` is canonical and may reach beyond the step, as collectives may:
    each step has its part of them.
    """
    starts, moved, ends = [], [], []  # three lists: faster to make arrays from
    not_attributed = []
    for each in collectives:
        span = each.spans.get(rank)
        if span is None or span[1] <= start_ns or span[0] >= end_ns:
            continue
        if each.not_attributed:
            not_attributed.append(span)
        elif rank != each.sender:
            starts.append(span[0])
            moved.append(each.moved_ns(*span))
            ends.append(span[1])
    in_step = clip(comm, start_ns, end_ns)
    transfer = intersection(in_step, from_bounds(moved, ends))
    elsewhere = union(transfer, from_pairs(not_attributed))
    return Waiting(
        in_step, difference(intersection(in_step, from_bounds(starts, moved)), elsewhere), transfer
    )


@dataclass(frozen=True, slots=True)
class RankLateness:
    """How often one rank was late, over a window."""

    rank: int
    late_count: int  # Attributed collectives with this rank as the late one
    collectives: int
    """Attributed collectives that it shared with others, and those of others that it delayed."""
    caused_wait_ns: int  # Waits of all others for it, summed

    @property
    def share(self) -> float:
        """Share of its collectives where it was late, in [0, 1]."""
        return self.late_count / self.collectives


_COUNTS = attrgetter("late_count", "collectives", "caused_wait_ns")


@dataclass(frozen=True, slots=True)
class Lateness:
    """Which ranks were late over a window."""

    ranks: tuple[RankLateness, ...]  # Most often late first, then by the waiting caused, then by number
    collectives: int  # Attributed collectives of two ranks or more
    wait_ns: int  # Waits of all ranks in them, summed
    receive_wait_ns: int = 0  # Part of `wait_ns` in receives

    @property
    def first(self) -> RankLateness:
        return self.ranks[0]

    @property
    def awaited(self) -> RankLateness:
        """The rank that caused most of the waiting. It may differ from `first`: in collectives that follow
        the one with the waiting, any rank may be last by a little.
        """
        return max(self.ranks, key=lambda each: each.caused_wait_ns)

    @property
    def late_rank(self) -> int | None:
        """Number of `awaited`. None if nobody is to blame: all came together, or several last."""
        return self.awaited.rank if self.awaited.caused_wait_ns else None

    def fewest(self, share: float) -> tuple[RankLateness, ...]:
        """Return the fewest ranks that together were late in this share of the collectives, most often late
        first. Empty: even all together were not.
        """
        late = 0
        for at, each in enumerate(self.ranks, 1):
            late += each.late_count
            if late >= share * self.collectives:
                return self.ranks[:at]
        return ()

    def of(self, rank: int) -> RankLateness | None:
        """Return the lateness of one rank. None if it took part in no attributed collective."""
        return next((each for each in self.ranks if each.rank == rank), None)


def lateness(collectives: Iterable[Collective], roots: Mapping[int, int] = {}) -> Lateness | None:
    """Count the late ranks of these collectives. None if none is attributed. ``roots``: by index of a
    collective, the rank to blame instead, which need not take part (passed-on waits).
    """
    members: Counter[tuple[int, ...]] = Counter()
    late: Counter[int] = Counter()
    caused_ns: Counter[int] = Counter()
    wait_ns = receive_wait_ns = 0
    for at, each in enumerate(collectives):
        if each.not_attributed or len(each.spans) < 2:
            continue
        caused = each.caused_wait_ns
        wait_ns += caused
        receive_wait_ns += caused if each.sender is not None else 0
        took_part = each.ranks
        if (rank := roots.get(at, each.late_rank)) is not None:
            if rank not in took_part:
                took_part = (*took_part, rank)
            late[rank] += 1
            caused_ns[rank] += caused
        members[took_part] += 1
    counted: Counter[int] = Counter()
    for took_part, number in members.items():
        counted.update(dict.fromkeys(took_part, number))
    ranks = [RankLateness(rank, late[rank], number, caused_ns[rank]) for rank, number in counted.items()]
    return Lateness(_latest_first(ranks), members.total(), wait_ns, receive_wait_ns) if ranks else None


def combined(windows: Iterable[Lateness]) -> Lateness | None:
    """Return the `lateness` of all these windows together. None without windows."""
    together = tuple(windows)
    of_rank: dict[int, list[RankLateness]] = {}
    for window in together:
        for each in window.ranks:
            of_rank.setdefault(each.rank, []).append(each)
    ranks = [
        RankLateness(rank, *map(sum, zip(*map(_COUNTS, counts), strict=True)))
        for rank, counts in of_rank.items()
    ]
    summed = ("collectives", "wait_ns", "receive_wait_ns")
    totals = (sum(map(attrgetter(name), together)) for name in summed)
    return Lateness(_latest_first(ranks), *totals) if together else None


def _latest_first(ranks: Iterable[RankLateness]) -> tuple[RankLateness, ...]:
    return tuple(sorted(ranks, key=lambda each: (-each.late_count, -each.caused_wait_ns, each.rank)))


class Link(NamedTuple):
    """A rank that came late because it was waiting."""

    rank: int
    group: str  # Group of the collective that it was waiting in


class PassedOnWait(NamedTuple):
    """The cause of a late rank's lateness."""

    root: int  # Rank that all of them waited for in the end
    chain: tuple[Link, ...]  # The late rank first. The last one waited for the root.


class _Wait(NamedTuple):
    start_ns: int
    end_ns: int
    at: int  # Index of the collective


def passed_on_waits(collectives: Sequence[Collective]) -> dict[int, PassedOnWait]:
    """Return the passed-on waits, by index of their collective. Takes all of a step or of a trace."""
    members = [(each.group, each.ranks if each.sender is not None else ()) for each in collectives]
    if len({own for own, each in zip(members, collectives, strict=True) if not each.not_attributed}) < 2:
        return {}
    late = [each.late_rank for each in collectives]
    waits: dict[int, list[_Wait]] = {}
    for at, each in enumerate(collectives):
        for rank, (start_ns, _) in each.spans.items() if late[at] is not None else ():
            if wait_ns := each.wait_ns(rank):
                waits.setdefault(rank, []).append(_Wait(start_ns, start_ns + wait_ns, at))
    for own in waits.values():
        own.sort()
    longest = {rank: max(wait.end_ns - wait.start_ns for wait in own) for rank, own in waits.items()}

    def longest_wait(rank: int, since_ns: int, until_ns: int, met: object) -> _Wait | None:
        """Return the wait with other ranks where this one waited longest during this time, or None."""
        best, most_ns = None, PASSED_ON_SHARE * (until_ns - since_ns)
        for nth in range(bisect_left(waits[rank], (until_ns,)) - 1, -1, -1):
            wait = waits[rank][nth]
            if wait.start_ns + longest[rank] <= since_ns:
                break
            within_ns = min(wait.end_ns, until_ns) - max(wait.start_ns, since_ns)
            if within_ns > 0 and within_ns >= most_ns and members[wait.at] != met:
                best, most_ns = wait, within_ns
        return best

    found = {}
    for at, each in enumerate(collectives):
        blamed, met, chain = late[at], members[at], []
        since_ns, until_ns = each.first_start_ns, each.last_start_ns
        seen = {blamed}
        while blamed is not None and blamed in waits:
            wait = longest_wait(blamed, since_ns, until_ns, met)
            if wait is None or late[wait.at] in seen:
                break
            chain.append(Link(blamed, collectives[wait.at].group))
            blamed, met = late[wait.at], members[wait.at]
            seen.add(blamed)
            since_ns, until_ns = max(since_ns, wait.start_ns), wait.end_ns
        if chain and blamed is not None:
            found[at] = PassedOnWait(blamed, tuple(chain))
    return found
