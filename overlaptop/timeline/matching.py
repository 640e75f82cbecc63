"""Finds the same collective on all ranks of its group, and a send with its receive.

A collective is *not split*, and says why, where a rank is missing, where ops or sizes differ, where the
residual exceeds T/2 (unless the longest wait is twenty times as long: then that is known well enough), and
where the clocks are less certain than the longest wait. An all-to-all may move unequal amounts, so its ends
may lie apart, but none before the last arrival. From a broadcast, reduce, gather or scatter ranks may leave
before it: of these T and the residual are those of the ranks that did not.

Of a send and its receive only the receive is split (arrivals.py). Several of them in one launch (torch's
batch_isend_irecv on NCCL) are one unit on each rank: it is the send of the one rank that it sends to, and
the receive from the one that it receives from. Of several ranks it is not known which one it waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from overlaptop.timeline import collectives as ops
from overlaptop.timeline.arrivals import Collective, Part
from overlaptop.wire.messages import CollectiveSpan

CERTAIN_WAIT = 20
"""A wait so many times as long as the ends disagree is known to 5 % whatever bytes did."""


# What ranks do not have the same: an uneven all-to-all, and a root's gather or scatter.
_SIZED = frozenset(("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "barrier"))
_START = attrgetter("start_ns")
_SOMEBODY = -1
"""Stands for the other members of a group of which nothing but one rank's calls are known."""


class _Pair(NamedTuple):
    """What the sends of one rank to another have in common."""

    group: str
    source: int
    target: int


_Paired: TypeAlias = dict[_Pair, list[CollectiveSpan]]
"""Of one rank each, in their order."""
_Together: TypeAlias = dict[int, CollectiveSpan]
"""Calls that are one collective, by rank."""
_Origins: TypeAlias = Mapping[int, int]
"""By rank, what its calls' times count from."""


def match(
    calls: Mapping[int, Sequence[CollectiveSpan]],
    *,
    origins_ns: Mapping[int, int] = {},
    names: Mapping[tuple[int, str], str] = {},
    members: Mapping[str, Sequence[int]] = {},
    clock_error_ns: Mapping[str, int] = {},
) -> tuple[Collective, ...]:
    """Find the same collective on all ranks, in order of the first start.

    In a group all of whose calls have a sequence number, that decides; what lies before the first or after
    the last number that every rank has is dropped. Else calls of one op and size are paired in their order,
    from the end: windows may begin at different collectives, and what only some ranks have at the
    beginning is dropped. Sends and receives are paired in their order from the end, per group, source and
    target.

    Args:
        calls: of each rank, in any order. Order tells calls apart that share a sequence number.
        origins_ns: of each rank, what its calls' times count from, on one clock of all; 0 of others.
        names: by rank and group, what else names that group: the same on all its members, and on no other
            rank. Groups of other ranks may have one title.
        members: the ranks of groups as far as they are known; of others those that have calls of it.
        clock_error_ns: by how much the clocks of a group's ranks may differ from each other; 0 of others.
    """
    of_group: dict[str, dict[int, list[CollectiveSpan]]] = {}
    sent: _Paired = {}
    received: _Paired = {}
    found: list[Collective] = []
    for rank, issued in calls.items():
        for call in sorted(issued, key=_START):
            group = names.get((rank, call.group), call.group)
            if not ops.is_point_to_point(call.op):
                of_group.setdefault(group, {}).setdefault(rank, []).append(call)
                continue
            if call.sends_to is not None:
                sent.setdefault(_Pair(group, rank, call.sends_to), []).append(call)
            if call.receives_from is not None:
                received.setdefault(_Pair(group, call.receives_from, rank), []).append(call)
            if call.sends_to is None and call.receives_from is None:
                found.append(_not_split(_alone(rank, call, origins_ns), "its other end is not known"))
    for group, by_rank in of_group.items():
        known, error_ns = members.get(group), clock_error_ns.get(group, 0)
        expected = tuple(by_rank) if known is None else known
        if known is None and len(expected) == 1:
            expected = (*expected, _SOMEBODY)
        own = frozenset(rank for rank in by_rank if rank in expected)
        found += [_collective(each, expected, own, error_ns, origins_ns) for each in _together(by_rank)]
    found += _transfers(sent, received, clock_error_ns, origins_ns)
    found.sort(key=attrgetter("first_start_ns"))
    return tuple(found)


def _is_sized(op: str) -> bool:
    """Whether the bytes must be the same on all ranks."""
    return all(ops.kind_of(part) in _SIZED for part in op.split("+"))


def _together(by_rank: Mapping[int, list[CollectiveSpan]]) -> Iterable[_Together]:
    """The calls of one group that are one collective each."""
    if all(call.sequence is not None for issued in by_rank.values() for call in issued):
        yield from _by_sequence(by_rank)
        return
    alike: dict[tuple[str, int | None], dict[int, list[CollectiveSpan]]] = {}
    for rank, issued in by_rank.items():
        for call in issued:
            size = call.bytes if _is_sized(call.op) else None
            alike.setdefault((call.op, size), {}).setdefault(rank, []).append(call)
    for each in alike.values():
        yield from _from_the_end(each)


def _from_the_end(by_rank: Mapping[int, list[CollectiveSpan]]) -> Iterable[_Together]:
    for back in range(min(map(len, by_rank.values())), 0, -1):
        yield {rank: issued[-back] for rank, issued in by_rank.items()}


def _by_sequence(by_rank: Mapping[int, list[CollectiveSpan]]) -> Iterable[_Together]:
    numbered: dict[tuple[int, int], _Together] = {}
    first, last = [], []
    for rank, issued in by_rank.items():
        seen: dict[int, int] = {}
        for call in issued:
            number = call.sequence or 0
            nth = seen[number] = seen.get(number, -1) + 1
            numbered.setdefault((number, nth), {})[rank] = call
        first.append(min(seen))
        last.append(max(seen))
    for (number, _), together in numbered.items():
        if max(first) <= number <= min(last):
            yield together


def _collective(
    together: _Together,
    expected: Sequence[int],
    own: frozenset[int],
    clock_error_ns: int,
    origins_ns: _Origins,
) -> Collective:
    """`own`: the expected ranks of which there are calls; a group may have far more than these."""
    calls = together.values()
    first = next(iter(calls))
    alike_in_op = len({call.op for call in calls}) == 1
    alike_in_size = len({call.bytes for call in calls}) == 1
    made = Collective(
        first.op,
        first.group,
        first.bytes if alike_in_size else None,
        _parts(together, origins_ns),
        clock_error_ns=clock_error_ns,
    )
    if missing := len(expected) - len(own.intersection(together)):
        rank = next(rank for rank in expected if rank not in together)
        why = f"rank {rank} is missing" if missing == 1 else f"{missing:,} ranks are missing"
        if rank == _SOMEBODY:
            why = "no other rank of its group is known"
    elif not alike_in_op:
        why = "the ranks' operations differ"
    elif not alike_in_size and _is_sized(first.op):
        why = "the ranks' sizes differ"
    elif _ends_disagree(made):
        why = "the ends disagree"
    else:
        why = _clocks(made)
    return _not_split(made, why) if why else made


def _ends_disagree(made: Collective) -> bool:
    if ops.kind_of(made.op) == "alltoall":
        return min(part.end_ns for part in made.parts) < made.last_start_ns
    by_far = 2 * made.residual_ns > made.least_transfer_ns
    return by_far and CERTAIN_WAIT * made.residual_ns > made.longest_wait_ns


def _transfers(
    sent: _Paired, received: _Paired, clock_error_ns: Mapping[str, int], origins_ns: _Origins
) -> Iterable[Collective]:
    """Each send with its receive, and what has no partner, which is not split."""
    for pair in dict.fromkeys(chain(sent, received)):
        sends, receives = sent.get(pair, []), received.get(pair, [])
        if sends and receives and pair.source != pair.target:
            number = min(len(sends), len(receives))
            for send, receive in zip(sends[-number:], receives[-number:], strict=True):
                yield _transfer(pair, send, receive, clock_error_ns.get(pair.group, 0), origins_ns)
            continue
        for call in receives:
            yield _not_split(_alone(pair.target, call, origins_ns), f"rank {pair.source} is missing")
        for call in sends:
            if call.receives_from is None:
                yield _not_split(_alone(pair.source, call, origins_ns), f"rank {pair.target} is missing")


def _transfer(
    pair: _Pair, send: CollectiveSpan, receive: CollectiveSpan, clock_error_ns: int, origins_ns: _Origins
) -> Collective:
    plain = send.receives_from is None and receive.sends_to is None
    parts = _parts({pair.source: send, pair.target: receive}, origins_ns)
    of_rank = {part.rank: part for part in parts}
    size_bytes = receive.bytes if plain and send.bytes == receive.bytes else None
    made = Collective(
        "recv", receive.group, size_bytes, parts, sender=pair.source, clock_error_ns=clock_error_ns
    )
    if plain and send.bytes != receive.bytes:
        why = "the ranks' sizes differ"
    elif of_rank[pair.target].end_ns + clock_error_ns < of_rank[pair.source].start_ns:
        why = "the ends disagree"  # it was over before its send began: another one's
    else:
        why = _clocks(made)
    return _not_split(made, why) if why else made


def _alone(rank: int, call: CollectiveSpan, origins_ns: _Origins) -> Collective:
    return Collective(call.op, call.group, call.bytes, _parts({rank: call}, origins_ns))


def _clocks(made: Collective) -> str:
    """Whether they are good enough to tell this collective's waits from nothing."""
    if not made.clock_error_ns or len(made.parts) < 2:
        return ""
    return "the clocks are too uncertain" if made.clock_error_ns > made.longest_wait_ns else ""


def _not_split(made: Collective, why: str) -> Collective:
    return replace(made, unsplit=why)


def _parts(together: _Together, origins_ns: _Origins) -> tuple[Part, ...]:
    return tuple(
        [
            Part(rank, call.start_ns + origin_ns, call.end_ns + origin_ns)
            for rank, call in sorted(together.items())
            for origin_ns in (origins_ns.get(rank, 0),)
        ]
    )
