"""Finds the collective that a job hangs in, and the rank to blame, from the calls that each rank issued.

Collectives of a group are numbered in order. The earliest one that the ranks have not all issued alike is
the cause, and later ones hang because of it. A group may also hang because one of its ranks waits in
another group.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from overlaptop.timeline.collectives import kind_of
from overlaptop.wire.messages import GroupCalls, IssuedCall, RankStalled

_SAME_BYTES = ("allreduce", "broadcast", "reduce")
"""Operations that need the same number of bytes on all ranks."""
_SAME_BYTES_IN_ONE_TENSOR = ("allgather", "reducescatter")
"""Operations that need it if given one tensor. A list of tensors may differ in size."""


class Blame(Enum):
    """What stops the job, the most informative first."""

    NOT_ENTERED = "not entered"
    ENDED = "ended"  # Some ranks ended without entering the collective, and never will
    DELAYED = "delayed"  # All ranks have issued it. On some, the device has not reached it.
    DIFFERS = "differs"  # Some ranks issued another operation or size
    CANNOT_LEAVE = "cannot leave"
    UNKNOWN = "unknown"  # All ranks with known calls have issued it. Some ranks are unknown.
    NO_COLLECTIVE = "no collective"  # No rank is known to wait for another one


@dataclass(frozen=True, slots=True)
class Hang:
    """The verdict."""

    blame: Blame
    ranks: tuple[int, ...]  # Ranks to blame, in order. If none is, all ranks with known calls.
    waiting: tuple[int, ...] = ()
    op: str = ""  # Operation of the collective, as issued by the waiting ranks
    bytes: int | None = None
    group: str = ""
    other: str = ""  # Operation that the blamed ranks issued instead, or ``""``
    other_bytes: int | None = None
    at: str = ""  # Python line of the first of `ranks` whose line is known
    lines: tuple[tuple[tuple[int, ...], str], ...] = ()
    """If no rank is to blame: the ranks at each line, rarest line first."""


def hang_of(
    stalled: Mapping[int, RankStalled], silent: frozenset[int], ended: frozenset[int] = frozenset()
) -> Hang:
    """Find the cause of a hang. ``stalled``: by rank whose agent still reports. ``silent``: ranks whose
    agent does not, and so count as not having entered. ``ended``: ranks that enter nothing more.
    """
    groups: dict[tuple[str, tuple[int, ...]], dict[int, GroupCalls]] = {}
    for rank, each in stalled.items():
        for group in each.groups:
            groups.setdefault((group.group, group.members), {})[rank] = group
    found = [
        verdict
        for (name, members), of_ranks in groups.items()
        if (verdict := _in_group(name, members, of_ranks, silent, ended, stalled)) is not None
    ]
    if not found:
        by_line: dict[str, tuple[int, ...]] = {}
        for rank, each in sorted(stalled.items()):
            if each.stack:
                by_line[each.stack[0]] = (*by_line.get(each.stack[0], ()), rank)
        lines = sorted(((ranks, line) for line, ranks in by_line.items()), key=lambda both: len(both[0]))
        return Hang(Blame.NO_COLLECTIVE, tuple(sorted(silent or stalled)), lines=tuple(lines))
    # The hangs that no other one causes; all if they wait for each other in a circle.
    stuck = {rank for _, hang in found for rank in (*hang.waiting, *_inside(hang))}
    roots = [each for each in found if _inside(each[1]) or not stuck.issuperset(each[1].ranks)]
    return min(roots or found, key=lambda verdict: (verdict[1].blame is Blame.UNKNOWN, verdict[0]))[1]


def _inside(hang: Hang) -> tuple[int, ...]:
    """Return the blamed ranks that are in a collective themselves. They wait in no other group."""
    return hang.ranks if hang.blame in (Blame.DIFFERS, Blame.CANNOT_LEAVE) else ()


def _in_group(
    name: str,
    members: tuple[int, ...],
    groups: Mapping[int, GroupCalls],
    silent: frozenset[int],
    ended: frozenset[int],
    stalled: Mapping[int, RankStalled],
) -> tuple[int, Hang] | None:
    """Return what hangs in one group, and since when. None if nothing is known to."""
    calls = {
        rank: {call.sequence: call for call in group.calls}
        for rank, group in groups.items()
        if rank not in silent and group.calls
    }
    # A rank that reports and has issued nothing here has not entered. An unknown rank may have.
    calls |= {rank: {} for rank in members if rank in stalled and rank not in calls and rank not in silent}
    if not any(calls.values()):
        return None
    for number in sorted({number for each in calls.values() for number in each}):
        here = {rank: each[number] for rank, each in calls.items() if number in each}
        if not _over(here) and (differing := _differing(here)):
            return _verdict(Blame.DIFFERS, differing, here, name, stalled)
    last = {rank: max(each, default=0) for rank, each in calls.items()}
    number = min(last.values())
    device_tells = any(call.state != "issued" for each in calls.values() for call in each.values())
    # If the device state is not known, the ended ranks may have entered everything here.
    gone = {*members} & ended if device_tells else set[int]()
    behind = gone or {*members} & silent
    if behind and device_tells:
        number = min(map(_first_not_over, calls.values()))
    elif not behind and number < max(last.values()):
        behind = {rank for rank, newest in last.items() if newest == number}
        number += 1
    # For a rank that is far ahead, its oldest known call stands for this one.
    here = {
        rank: next(call for own, call in sorted(calls[rank].items()) if own >= number)
        for rank, newest in last.items()
        if newest >= max(number, 1)
    }
    if not here or _over(here):
        return None
    if behind:
        return _verdict(Blame.ENDED if gone else Blame.NOT_ENTERED, behind, here, name, stalled)
    late = {rank for rank, call in here.items() if call.state == "issued"}
    if len(late) == len(here):
        return None  # gloo does not show whether they have left it
    if unknown := {*members} - calls.keys():
        return _verdict(Blame.UNKNOWN, unknown, here, name, stalled)
    return _verdict(Blame.DELAYED if late else Blame.CANNOT_LEAVE, late or {*here}, here, name, stalled)


def _over(here: Mapping[int, IssuedCall]) -> bool:
    return all(call.state == "ended" for call in here.values())


def _first_not_over(calls: Mapping[int, IssuedCall]) -> int:
    not_over = (own for own, call in calls.items() if call.state != "ended")
    return min(not_over, default=max(calls, default=0) + 1)


def _differing(here: Mapping[int, IssuedCall]) -> set[int]:
    """Return the minority of ranks that issued a different operation. Empty if all are alike."""
    kinds: dict[tuple[str, int | None], set[int]] = {}
    for rank, call in here.items():
        kinds.setdefault((call.op, call.bytes if _needs_same_bytes(call.op) else None), set()).add(rank)
    if len(kinds) < 2:
        return set()
    # With two ranks nobody knows which is wrong: compare the higher one with the lower one.
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
    stalled: Mapping[int, RankStalled],
) -> tuple[int, Hang]:
    blamed = tuple(sorted(ranks))
    waiting = tuple(sorted(rank for rank in here.keys() - ranks if here[rank].state != "ended"))
    call = here[waiting[0]] if waiting else next(iter(here.values()))
    other = (here[blamed[0]].op, here[blamed[0]].bytes) if blame is Blame.DIFFERS else ("", None)
    stacks = (stalled[rank].stack for rank in blamed if rank in stalled)
    at = next((stack[0] for stack in stacks if stack), "")
    hang = Hang(blame, blamed, waiting, call.op, call.bytes, group, *other, at)
    return min(each.at_ns for each in here.values()), hang
