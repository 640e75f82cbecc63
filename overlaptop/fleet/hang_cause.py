"""Which collective a job hangs in, and which rank the others wait for: by what each has issued. Pure.

In the order of its group each collective has a number. The earliest one that not all have issued alike is
the one that hangs: what comes after it is its echo. So is what hangs in a group because its rank waits in
another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from overlaptop.timeline.collectives import kind_of
from overlaptop.wire.messages import GroupCalls, IssuedCall, Standstill

_SAME_BYTES = ("allreduce", "broadcast", "reduce")
"""Operations of which all ranks must be given as many bytes; of others they may differ."""
_SAME_BYTES_IN_ONE_TENSOR = ("allgather", "reducescatter")
"""As these, where their tensor is one for all ranks: of a list of tensors each may have its own size."""


class Blame(Enum):
    """What keeps a job from going on, the more telling first."""

    NOT_ENTERED = "not entered"
    ENDED = "ended"
    """Not entered, and they never will."""
    DELAYED = "delayed"
    """All have issued it; on some ranks the device has not come to it."""
    DIFFERS = "differs"
    """Another operation, or another size, than the others'."""
    CANNOT_LEAVE = "cannot leave"
    UNKNOWN = "unknown"
    """All have issued it of which something is known; some are not."""
    NO_COLLECTIVE = "no collective"
    """No rank is known to wait for another one."""


@dataclass(frozen=True, slots=True)
class Hang:
    """The verdict."""

    blame: Blame
    ranks: tuple[int, ...]
    """Those to blame, in order; where nobody is, those of which something is known."""
    waiting: tuple[int, ...] = ()
    op: str = ""
    """Of the collective, as it was issued by those that wait."""
    bytes: int | None = None
    group: str = ""
    other: str = ""
    """The operation that those to blame issued instead, or ``""``."""
    other_bytes: int | None = None
    at: str = ""
    """Where the Python of the first of `ranks` of which it is known stands."""
    lines: tuple[tuple[tuple[int, ...], str], ...] = ()
    """Where nobody is to blame: which ranks stand at which line, the fewest first."""


def hang_of(
    standstills: Mapping[int, Standstill], silent: frozenset[int], ended: frozenset[int] = frozenset()
) -> Hang:
    """Judge a hang. ``standstills``: of each rank whose agent speaks; ``silent``: those whose do not, which
    count as not having entered anything; ``ended``: those that will enter nothing any more. Of other ranks
    nothing is known.
    """
    groups: dict[tuple[str, tuple[int, ...]], dict[int, GroupCalls]] = {}
    for rank, each in standstills.items():
        for group in each.groups:
            groups.setdefault((group.group, group.members), {})[rank] = group
    found = [
        verdict
        for (name, members), of_ranks in groups.items()
        if (verdict := _in_group(name, members, of_ranks, silent, ended, standstills)) is not None
    ]
    if not found:
        ranks = tuple(sorted(silent or standstills))
        return Hang(Blame.NO_COLLECTIVE, ranks, lines=_lines(standstills))
    return min(_roots(found), key=lambda verdict: (verdict[1].blame is Blame.UNKNOWN, verdict[0]))[1]


def _roots(found: list[tuple[int, Hang]]) -> list[tuple[int, Hang]]:
    """Those that are not the echo of another one; all, where they wait for each other in a circle."""
    stand = {rank for _, hang in found for rank in (*hang.waiting, *_inside(hang))}
    roots = [each for each in found if _inside(each[1]) or not stand.issuperset(each[1].ranks)]
    return roots or found


def _inside(hang: Hang) -> tuple[int, ...]:
    """Those to blame, where they stand in a collective themselves and wait for nobody elsewhere."""
    return hang.ranks if hang.blame in (Blame.DIFFERS, Blame.CANNOT_LEAVE) else ()


def _in_group(
    name: str,
    members: tuple[int, ...],
    groups: Mapping[int, GroupCalls],
    silent: frozenset[int],
    ended: frozenset[int],
    standstills: Mapping[int, Standstill],
) -> tuple[int, Hang] | None:
    """What hangs in one group, and since when; None: nothing that is known."""
    calls = {
        rank: {call.sequence: call for call in group.calls}
        for rank, group in groups.items()
        if rank not in silent and group.calls
    }
    # One that speaks and has issued nothing here has not entered; one of which nothing is known may have.
    calls |= {
        rank: {} for rank in members if rank in standstills and rank not in calls and rank not in silent
    }
    if not any(calls.values()):
        return None
    for number in sorted({number for each in calls.values() for number in each}):
        here = {rank: each[number] for rank, each in calls.items() if number in each}
        if not _over(here) and (differing := _differing(here)):
            return _verdict(Blame.DIFFERS, differing, here, name, standstills)
    last = {rank: max(each, default=0) for rank, each in calls.items()}
    number = min(last.values())
    device_tells = any(call.state != "issued" for each in calls.values() for call in each.values())
    # Where it does not, those that have ended may have entered all that is here.
    gone = {*members} & ended if device_tells else set[int]()
    behind = gone or {*members} & silent
    if behind and device_tells:
        number = min(map(_first_not_over, calls.values()))
    elif not behind and number < max(last.values()):
        behind = {rank for rank, newest in last.items() if newest == number}
        number += 1
    # Of one that is far ahead, the oldest that is still known stands for it.
    here = {
        rank: next(call for own, call in sorted(calls[rank].items()) if own >= number)
        for rank, newest in last.items()
        if newest >= max(number, 1)
    }
    if not here or _over(here):
        return None
    if behind:
        return _verdict(Blame.ENDED if gone else Blame.NOT_ENTERED, behind, here, name, standstills)
    late = {rank for rank, call in here.items() if call.state == "issued"}
    if len(late) == len(here):
        return None  # on gloo it is not known whether they have left it
    if unknown := {*members} - calls.keys():
        return _verdict(Blame.UNKNOWN, unknown, here, name, standstills)
    return _verdict(Blame.DELAYED if late else Blame.CANNOT_LEAVE, late or {*here}, here, name, standstills)


def _over(here: Mapping[int, IssuedCall]) -> bool:
    return all(call.state == "ended" for call in here.values())


def _first_not_over(calls: Mapping[int, IssuedCall]) -> int:
    not_over = (own for own, call in calls.items() if call.state != "ended")
    return min(not_over, default=max(calls, default=0) + 1)


def _differing(here: Mapping[int, IssuedCall]) -> set[int]:
    """The ranks, the fewer, that issued something else than the others; empty: all are alike."""
    kinds: dict[tuple[str, int | None], set[int]] = {}
    for rank, call in here.items():
        kinds.setdefault((call.op, call.bytes if _needs_same_bytes(call.op) else None), set()).add(rank)
    if len(kinds) < 2:
        return set()
    # Of two alike it is not known which is wrong: the higher rank is named against the lower one.
    return min(kinds.values(), key=lambda ranks: (len(ranks), -min(ranks)))


def _needs_same_bytes(op: str) -> bool:
    kind = kind_of(op)
    in_one_tensor = "base" in op or "tensor" in op
    return kind in _SAME_BYTES or (kind in _SAME_BYTES_IN_ONE_TENSOR and in_one_tensor)


def _verdict(
    blame: Blame,
    ranks: set[int],
    here: Mapping[int, IssuedCall],
    group: str,
    standstills: Mapping[int, Standstill],
) -> tuple[int, Hang]:
    waiting = tuple(sorted(rank for rank in here.keys() - ranks if here[rank].state != "ended"))
    call = here[waiting[0]] if waiting else next(iter(here.values()))
    other = here[min(ranks)] if blame is Blame.DIFFERS else None
    hang = Hang(
        blame,
        tuple(sorted(ranks)),
        waiting,
        call.op,
        call.bytes,
        group,
        other.op if other is not None else "",
        other.bytes if other is not None else None,
        _at(tuple(sorted(ranks)), standstills),
    )
    return min(each.at_ns for each in here.values()), hang


def _at(ranks: tuple[int, ...], standstills: Mapping[int, Standstill]) -> str:
    stacks = (standstills[rank].stack for rank in ranks if rank in standstills)
    return next((stack[0] for stack in stacks if stack), "")


def _lines(standstills: Mapping[int, Standstill]) -> tuple[tuple[tuple[int, ...], str], ...]:
    by_line: dict[str, tuple[int, ...]] = {}
    for rank, each in sorted(standstills.items()):
        if each.stack:
            by_line[each.stack[0]] = (*by_line.get(each.stack[0], ()), rank)
    return tuple(sorted(((ranks, line) for line, ranks in by_line.items()), key=lambda each: len(each[0])))
