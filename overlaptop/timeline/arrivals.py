"""The same collective on all ranks of its group: who waited for whom, and how long bytes moved.

A collective's kernel, or gloo's call, begins on each rank when that rank has arrived, and moves no byte
before the last one has. So what a profiler counts as communication is two things::

    a          = max over ranks of start             the last arrival
    wait_r     = clamp(min(a, end_r) - start_r, 0, duration_r)
    transfer_r = duration_r - wait_r                 wait + transfer = duration, to the nanosecond
    T          = min over ranks of duration          needs no common clock
    residual   = max end - min end                   how far the ends disagree

The late rank is the one that starts last: it caused the waits of all others. Per-rank waits make no
assumption of one common end: a broadcast's root may leave before others have arrived.

A collective may be *not split*, and says why: matching.py decides that. Of a send and its receive only the
receive is split: a send ends when its bytes are buffered.

All times are integers, ns, on one clock of all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

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


class Part(msgspec.Struct, frozen=True, gc=False):  # cheaper than a tuple: a step has thousands
    """One rank's share in one collective."""

    rank: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Collective:
    """One collective, or one send with its receive, on all ranks of which there is a record."""

    op: str
    group: str
    bytes: int | None
    """The larger of input and output; None: not known, or not the same on all ranks."""
    parts: tuple[Part, ...]
    """By rank."""
    unsplit: str = ""
    """Why it is not split; empty where it is."""
    sender: int | None = None
    """Of a send and its receive the rank that sends: its part is not split."""
    clock_error_ns: int = 0
    """By how much the ranks' clocks may differ: each wait may be wrong by so much, either way."""
    phase: str = ""
    """In which phase of its step it started on its first rank, or behind which, ``after backward``; empty:
    not known. This and the next two are known once its step has been looked at (findings/exposure.py)."""
    nth: int = 0
    """Which phase of that name in the step it is, from 0 on."""
    exposed_transfer_ns: int = 0
    """Of its transferring, with no compute beside it: the mean over ranks."""

    last_start_ns: int = field(init=False, repr=False, compare=False)
    """When the last rank arrived."""
    _shares: Mapping[int, tuple[int, int, int]] = field(init=False, repr=False, compare=False)
    """By rank: when it started, when it waited no more, when it ended; by the clocks, split or not."""

    def __post_init__(self) -> None:
        last_ns = max([part.start_ns for part in self.parts])
        shares = {
            part.rank: (
                part.start_ns,
                last_ns if last_ns < part.end_ns else max(part.start_ns, part.end_ns),
                part.end_ns,
            )
            for part in self.parts
        }
        object.__setattr__(self, "last_start_ns", last_ns)
        object.__setattr__(self, "_shares", shares)

    @property
    def kind(self) -> str:
        """As `collectives.kind_of` has it; empty for another operation."""
        return ops.kind_of(self.op) or ""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of which there is a record."""
        return tuple(self._shares)

    @property
    def first_start_ns(self) -> int:
        """When the first rank arrived."""
        return min([part.start_ns for part in self.parts])

    @property
    def residual_ns(self) -> int:
        """How far the ends disagree: the last one less the first. Of ranks that may leave early, as far as
        they did not: those that did had nothing left to transfer.
        """
        ends = [part.end_ns for part in self._judged]
        return max(ends) - min(ends)

    @property
    def least_transfer_ns(self) -> int:
        """T: how long bytes moved on the fastest rank, without use of a common clock.

        Where ranks may have unequal amounts to move (all-to-all), and of a receive: from the last arrival
        to the last end, which does need one. Where ranks may leave early: on the fastest that did not.
        """
        if self.sender is not None:
            end_ns = max(part.end_ns for part in self.parts if part.rank != self.sender)
            return max(0, end_ns - self.last_start_ns)
        if self.kind == "alltoall":
            return max(part.end_ns for part in self.parts) - self.last_start_ns
        return min([part.end_ns - part.start_ns for part in self._judged])

    @property
    def _judged(self) -> Sequence[Part]:
        """All parts; where there is a root, those that ended once all had arrived: one at least."""
        if not ops.has_root(self.op):
            return self.parts
        return [part for part in self.parts if part.end_ns >= self.last_start_ns]

    @property
    def late_rank(self) -> int | None:
        """The rank that started last. None where it is not split, where it was alone, and where several
        started last, as far as the clocks tell.
        """
        if self.unsplit or len(self.parts) < 2:
            return None
        last_ns = self.last_start_ns - self.clock_error_ns
        late = [part.rank for part in self.parts if part.start_ns >= last_ns]
        return late[0] if len(late) == 1 else None

    @property
    def bus_bandwidth(self) -> float | None:
        """Bytes per second on T, as nccl-tests defines it; None where it is not split or not known."""
        if self.unsplit:
            return None
        return ops.bus_bandwidth(self.op, self.bytes, len(self.parts), self.least_transfer_ns)

    @property
    def longest_wait_ns(self) -> int:
        """How long the rank waited that waited longest; by the clocks, also where it is not split."""
        return max([moved_ns - start_ns for start_ns, moved_ns, _ in self._shares.values()])

    def part(self, rank: int) -> Part | None:
        """The share of a rank; None: it has none, or it is missing."""
        share = self._shares.get(rank)
        return None if share is None else Part(rank, share[0], share[2])

    def wait_ns(self, rank: int) -> int | None:
        """How long the rank waited for the last one; None: it has no part in it, or that is not split."""
        share = self._shares.get(rank)
        return None if share is None or self.unsplit or rank == self.sender else share[1] - share[0]

    def transfer_ns(self, rank: int) -> int | None:
        """The rank's duration less its wait; None as for `wait_ns`."""
        share = self._shares.get(rank)
        return None if share is None or self.unsplit or rank == self.sender else share[2] - share[1]

    @property
    def caused_wait_ns(self) -> int:
        """What all ranks together waited for the last one; 0 where it is not split."""
        if self.unsplit:
            return 0
        shares = self._shares.items()
        return sum([moved_ns - start_ns for rank, (start_ns, moved_ns, _) in shares if rank != self.sender])


@dataclass(frozen=True, slots=True)
class WaitTimes:
    """A rank's communication in one step, by what it was and by what ran beside it.

    The six parts sum to the communication, and the three exposed ones to what is exposed, exactly.
    """

    wait_ns: int
    transfer_ns: int
    unsplit_ns: int
    exposed_wait_ns: int
    exposed_transfer_ns: int
    exposed_unsplit_ns: int

    @property
    def exposed_ns(self) -> int:
        """With no compute beside it, whatever it was."""
        return self.exposed_wait_ns + self.exposed_transfer_ns + self.exposed_unsplit_ns

    @property
    def hidden_ns(self) -> int:
        """With compute beside it."""
        return self.wait_ns + self.transfer_ns + self.unsplit_ns - self.exposed_ns

    @property
    def known(self) -> bool:
        """False where there was communication and nothing of it is split."""
        return bool(self.wait_ns or self.transfer_ns or not self.unsplit_ns)

    @property
    def exposed_known(self) -> bool:
        """False where communication was exposed and nothing of what was exposed is split."""
        return bool(self.exposed_wait_ns or self.exposed_transfer_ns or not self.exposed_unsplit_ns)


@dataclass(frozen=True, slots=True)
class Waiting:
    """One rank's communication in one step. What of it is in neither part is unsplit: of collectives that
    are not split, and of none that was matched.
    """

    comm: Spans
    """M: all of it."""
    wait: Spans
    """W: for a late rank, and no byte moved."""
    transfer: Spans
    """X: the union of the transfer parts of its collectives. W and X are disjoint parts of M."""

    def times(self, compute: Spans) -> WaitTimes:
        """Their lengths, and what of them has no compute beside it. `compute` is canonical."""
        sets = (self.comm, self.wait, self.transfer)
        comm_ns, wait_ns, transfer_ns = (length_ns(each) for each in sets)
        hidden_ns = [length_ns(intersection(each, compute)) for each in sets]
        unsplit_ns = comm_ns - wait_ns - transfer_ns
        return WaitTimes(
            wait_ns,
            transfer_ns,
            unsplit_ns,
            wait_ns - hidden_ns[1],
            transfer_ns - hidden_ns[2],
            unsplit_ns - (hidden_ns[0] - hidden_ns[1] - hidden_ns[2]),
        )


def waiting(
    rank: int, comm: Spans, collectives: Iterable[Collective], start_ns: int, end_ns: int
) -> Waiting:
    """Split a rank's communication M in the step ``[start_ns, end_ns)``.

    X is the union of the transfer parts, whatever waits beside them. Of the rest of M, W is what the rank
    waited in, without what belongs to a collective that is not split; all else is unsplit. `comm` is
    canonical and may reach beyond the step, as collectives may: each step has its part of them.
    """
    starts, moved, ends, unsplit, sends = [], [], [], [], []  # three lists: faster to make arrays of
    for each in collectives:
        share = each._shares.get(rank)  # noqa: SLF001 - of this module, and asked for each rank and collective
        if share is None or share[2] <= start_ns or share[0] >= end_ns:
            continue
        if each.unsplit:
            unsplit.append((share[0], share[2]))
        elif rank == each.sender:
            sends.append((share[0], share[2]))
        else:
            starts.append(share[0])
            moved.append(share[1])
            ends.append(share[2])
    in_step = clip(comm, start_ns, end_ns)
    transfer = intersection(in_step, from_bounds(moved, ends))
    # One launch that sends and receives is in two collectives: it is split as the receive.
    if sends:
        received = set(zip(starts, ends, strict=True))
        unsplit += (span for span in sends if span not in received)
    elsewhere = union(transfer, from_pairs(unsplit))
    return Waiting(
        in_step, difference(intersection(in_step, from_bounds(starts, moved)), elsewhere), transfer
    )


@dataclass(frozen=True, slots=True)
class RankLateness:
    """How often one rank was late, over a window."""

    rank: int
    late: int
    """Split collectives in which it was the late rank."""
    collectives: int
    """Split collectives in which it took part with others, and those of others that it held up."""
    caused_wait_ns: int
    """What all others together waited for it."""

    @property
    def share(self) -> float:
        """In which part of its collectives it was late, in [0, 1]."""
        return self.late / self.collectives


@dataclass(frozen=True, slots=True)
class Lateness:
    """Who was late, over a window."""

    ranks: tuple[RankLateness, ...]
    """Who was late most often first; of those alike, who caused more waiting; then by number."""
    collectives: int
    """Split collectives of two ranks or more."""
    wait_ns: int
    """What all ranks together waited in them."""
    receive_wait_ns: int = 0
    """In receives, of `wait_ns`."""

    @property
    def first(self) -> RankLateness:
        """The rank that was late most often."""
        return self.ranks[0]

    @property
    def awaited(self) -> RankLateness:
        """The rank that caused most of the waiting. It need not be the first: where collectives only follow
        the one that all waited in, anybody may be last by a little.
        """
        return max(self.ranks, key=lambda each: each.caused_wait_ns)

    @property
    def late_rank(self) -> int | None:
        """The number of `awaited`; None where nobody is to blame: all came together, or several last."""
        return self.awaited.rank if self.awaited.caused_wait_ns else None

    def fewest(self, share: float) -> tuple[RankLateness, ...]:
        """The fewest ranks that together were late in this share of the collectives, the first one first;
        empty where not even all together were.
        """
        late = 0
        for at, each in enumerate(self.ranks, 1):
            late += each.late
            if late >= share * self.collectives:
                return self.ranks[:at]
        return ()

    def of(self, rank: int) -> RankLateness | None:
        """How late one rank was; None where it took part in no split collective."""
        return next((each for each in self.ranks if each.rank == rank), None)


def lateness(collectives: Iterable[Collective], roots: Mapping[int, int] = {}) -> Lateness | None:
    """Count who was late in these collectives; None where none of them is split. ``roots``: by the place of
    a collective the rank to blame instead, which need not have a part in it (echoes.py).
    """
    members: Counter[tuple[int, ...]] = Counter()
    late: Counter[int] = Counter()
    caused_ns: Counter[int] = Counter()
    wait_ns = receive_wait_ns = 0
    for at, each in enumerate(collectives):
        if each.unsplit or len(each.parts) < 2:
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
    if not ranks:
        return None
    return Lateness(_latest_first(ranks), members.total(), wait_ns, receive_wait_ns)


def combined(windows: Iterable[Lateness]) -> Lateness | None:
    """What `lateness` says of the collectives of all these windows together; None of no window."""
    together = tuple(windows)
    of_rank: dict[int, list[RankLateness]] = {}
    for window in together:
        for each in window.ranks:
            of_rank.setdefault(each.rank, []).append(each)
    ranks = [
        RankLateness(
            rank,
            sum(each.late for each in counts),
            sum(each.collectives for each in counts),
            sum(each.caused_wait_ns for each in counts),
        )
        for rank, counts in of_rank.items()
    ]
    collectives, wait_ns, receive_wait_ns = (
        sum(each.collectives for each in together),
        sum(each.wait_ns for each in together),
        sum(each.receive_wait_ns for each in together),
    )
    return Lateness(_latest_first(ranks), collectives, wait_ns, receive_wait_ns) if together else None


def _latest_first(ranks: Iterable[RankLateness]) -> tuple[RankLateness, ...]:
    return tuple(sorted(ranks, key=lambda each: (-each.late, -each.caused_wait_ns, each.rank)))
