"""Matches the same collective on all ranks of its group, and a send with its receive.

A collective is *not attributed*, with a reason, in four cases: a rank is missing; ops or sizes differ; the
residual exceeds T/2, unless the longest wait is twenty times the residual; the clocks are less certain than
the longest wait. An all-to-all may move unequal amounts, so its ends may differ, but none may come before
the last arrival. From a broadcast, reduce, gather or scatter, ranks may leave before the last arrival; T
and the residual then exclude those ranks.

Of a send and its receive, only the receive is attributed (arrivals.py). Several in one launch (torch's
batch_isend_irecv on NCCL) are one unit on each rank: the send to its one target, and the receive from its
one source. With several sources, it is not known which one the rank waited for.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from overlaptop.timeline import collectives as ops
from overlaptop.timeline.arrivals import Collective
from overlaptop.wire.messages import CollectiveSpan

CERTAIN_WAIT = 20  # A wait this many times as long as the residual is known to 5 %, however the bytes moved
# Operations with equal bytes on all ranks. An all-to-all may be uneven, and the root of a gather or scatter
# moves other amounts.
_SIZED = frozenset(("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "barrier"))
_START = attrgetter("start_ns")
_SOMEBODY = -1  # Stands for the other members of a group if only one rank's calls are known


class _Pair(NamedTuple):
    group: str
    source: int
    target: int


_Together: TypeAlias = dict[int, CollectiveSpan]  # Calls that are one collective, by rank
_Origins: TypeAlias = Mapping[int, int]  # Origin of each rank's call times


def match(
    calls: Mapping[int, Sequence[CollectiveSpan]],
    *,
    origins_ns: Mapping[int, int] = {},
    names: Mapping[tuple[int, str], str] = {},
    members: Mapping[str, Sequence[int]] = {},
    clock_error_ns: Mapping[str, int] = {},
) -> tuple[Collective, ...]:
    """Match the collectives on all ranks, in order of their first start.

    If all calls of a group have a sequence number, the numbers decide. Calls before the first or after the
    last number common to all ranks are dropped. Otherwise calls of one op and size are paired in order,
    from the end, because ranks' windows may begin at different collectives. Calls that only some ranks have
    at the beginning are dropped. Sends and receives are paired likewise, per group, source and target.

    Args:
        calls: calls of each rank, in any order. Order tells calls apart that share a sequence number.
        origins_ns: origin of each rank's call times, on one common clock. Default 0.
        names: by rank and group, a unique name of that group: the same on all its members and on no other
            rank. Groups of different ranks may share a title.
        members: known ranks of groups. For others, the ranks with calls in the group.
        clock_error_ns: maximum clock difference between the ranks of a group. Default 0.
    """
    of_group: dict[str, dict[int, list[CollectiveSpan]]] = {}
    sent: dict[_Pair, list[CollectiveSpan]] = {}
    received: dict[_Pair, list[CollectiveSpan]] = {}
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
                found.append(_alone(rank, call, origins_ns, "its other end is not known"))
    for group, by_rank in of_group.items():
        known, error_ns = members.get(group), clock_error_ns.get(group, 0)
        expected = tuple(by_rank) if known is None else known
        if known is None and len(expected) == 1:
            expected = (*expected, _SOMEBODY)
        own = frozenset(rank for rank in by_rank if rank in expected)
        found += [_collective(each, expected, own, error_ns, origins_ns) for each in _together(by_rank)]
    for pair in dict.fromkeys(chain(sent, received)):
        sends, receives = sent.get(pair, []), received.get(pair, [])
        if sends and receives and pair.source != pair.target:
            number, error_ns = min(len(sends), len(receives)), clock_error_ns.get(pair.group, 0)
            ends = zip(sends[-number:], receives[-number:], strict=True)
            found += [_transfer(pair, send, receive, error_ns, origins_ns) for send, receive in ends]
            continue
        lost = f"rank {pair.source} is missing", f"rank {pair.target} is missing"
        found += [_alone(pair.target, call, origins_ns, lost[0]) for call in receives]
        alone = [call for call in sends if call.receives_from is None]
        found += [_alone(pair.source, call, origins_ns, lost[1]) for call in alone]
    found.sort(key=attrgetter("first_start_ns"))
    return tuple(found)


def _is_sized(op: str) -> bool:
    return all(ops.kind_of(part) in _SIZED for part in op.split("+"))


def _together(by_rank: Mapping[int, list[CollectiveSpan]]) -> Iterable[_Together]:
    """Return the calls of one group that form one collective each."""
    if all(call.sequence is not None for issued in by_rank.values() for call in issued):
        numbered: dict[tuple[int, int], _Together] = {}
        first, last = [], []
        for rank, issued in by_rank.items():
            seen: Counter[int] = Counter()
            for call in issued:
                number = call.sequence or 0
                numbered.setdefault((number, seen[number]), {})[rank] = call
                seen[number] += 1
            first.append(min(seen))
            last.append(max(seen))
        for (number, _), together in numbered.items():
            if max(first) <= number <= min(last):
                yield together
        return
    alike: dict[tuple[str, int | None], dict[int, list[CollectiveSpan]]] = {}
    for rank, issued in by_rank.items():
        for call in issued:
            size = call.bytes if _is_sized(call.op) else None
            alike.setdefault((call.op, size), {}).setdefault(rank, []).append(call)
    for each in alike.values():
        for back in range(min(map(len, each.values())), 0, -1):  # paired from the end
            yield {rank: issued[-back] for rank, issued in each.items()}


def _collective(
    together: _Together,
    expected: Sequence[int],
    own: frozenset[int],
    clock_error_ns: int,
    origins_ns: _Origins,
) -> Collective:
    """`own`: the expected ranks with known calls. The group may have many more."""
    calls = together.values()
    first = next(iter(calls))
    alike_in_op = len({call.op for call in calls}) == 1
    alike_in_size = len({call.bytes for call in calls}) == 1
    made = Collective(
        first.op,
        first.group,
        first.bytes if alike_in_size else None,
        _spans(together, origins_ns),
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
    return replace(made, not_attributed=why) if why else made


def _ends_disagree(made: Collective) -> bool:
    if ops.kind_of(made.op) == "alltoall":
        return min(end_ns for _, end_ns in made.spans.values()) < made.last_start_ns
    by_far = 2 * made.residual_ns > made.least_transfer_ns
    return by_far and CERTAIN_WAIT * made.residual_ns > made.longest_wait_ns


def _transfer(
    pair: _Pair, send: CollectiveSpan, receive: CollectiveSpan, clock_error_ns: int, origins_ns: _Origins
) -> Collective:
    plain = send.receives_from is None and receive.sends_to is None
    spans = _spans({pair.source: send, pair.target: receive}, origins_ns)
    size_bytes = receive.bytes if plain and send.bytes == receive.bytes else None
    made = Collective(
        "recv", receive.group, size_bytes, spans, sender=pair.source, clock_error_ns=clock_error_ns
    )
    if plain and send.bytes != receive.bytes:
        why = "the ranks' sizes differ"
    elif spans[pair.target][1] + clock_error_ns < spans[pair.source][0]:
        why = "the ends disagree"  # it ended before its send began, so that is another one's send
    else:
        why = _clocks(made)
    return replace(made, not_attributed=why) if why else made


def _alone(rank: int, call: CollectiveSpan, origins_ns: _Origins, why: str) -> Collective:
    return Collective(call.op, call.group, call.bytes, _spans({rank: call}, origins_ns), why)


def _clocks(made: Collective) -> str:
    """Return why the clocks are too inexact to attribute its waits; empty if they are exact."""
    is_blurred = len(made.spans) > 1 and made.clock_error_ns > made.longest_wait_ns
    return "the clocks are too uncertain" if is_blurred else ""


def _spans(together: _Together, origins_ns: _Origins) -> dict[int, tuple[int, int]]:
    return {
        rank: (call.start_ns + origin_ns, call.end_ns + origin_ns)
        for rank, call in sorted(together.items())
        for origin_ns in (origins_ns.get(rank, 0),)
    }
