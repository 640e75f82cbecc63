"""Passed-on waits: finds the rank to blame when a wait in one group is caused by a wait in another.

A rank may be late to a collective because it was itself waiting in another group. If it waited there for at
least half of the time that the others waited for it, the blame moves on to the late rank of that other
collective, and so on from there. In sends and receives, each pair of ranks counts as a group, because all
stages of a pipeline may share one.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from overlaptop.timeline.arrivals import Collective

PASSED_ON_SHARE = 0.5
"""Minimum share of the time the others waited for the late rank that it was itself waiting."""


_Members: TypeAlias = tuple[str, tuple[int, ...]]


class Link(NamedTuple):
    """A rank that came late because it was waiting."""

    rank: int
    group: str
    """Group of the collective that it was waiting in."""


@dataclass(frozen=True, slots=True)
class PassedOnWait:
    """The cause of a late rank's lateness."""

    root: int
    """Rank that all of them waited for in the end."""
    chain: tuple[Link, ...]
    """The late rank first. The last one waited for the root."""


class _Wait(NamedTuple):
    start_ns: int
    end_ns: int
    at: int
    """Index of the collective."""


def passed_on_waits(collectives: Sequence[Collective]) -> dict[int, PassedOnWait]:
    """Return the passed-on waits, by index of their collective. Takes all of a step or of a trace."""
    members = [(each.group, each.ranks if each.sender is not None else ()) for each in collectives]
    if len({own for own, each in zip(members, collectives, strict=True) if not each.not_attributed}) < 2:
        return {}
    late = [each.late_rank for each in collectives]
    waits: dict[int, list[_Wait]] = {}
    for at, each in enumerate(collectives):
        for part in each.parts if late[at] is not None else ():
            if wait_ns := each.wait_ns(part.rank):
                waits.setdefault(part.rank, []).append(_Wait(part.start_ns, part.start_ns + wait_ns, at))
    for own in waits.values():
        own.sort()
    longest = {rank: max(wait.end_ns - wait.start_ns for wait in own) for rank, own in waits.items()}
    found = {}
    for at, each in enumerate(collectives):
        rank, met, chain = late[at], members[at], []
        since_ns, until_ns = each.first_start_ns, each.last_start_ns
        seen = {rank}
        while rank is not None and rank in waits:
            wait = _longest(waits[rank], longest[rank], since_ns, until_ns, met, members)
            if wait is None or late[wait.at] in seen:
                break
            chain.append(Link(rank, collectives[wait.at].group))
            rank, met = late[wait.at], members[wait.at]
            seen.add(rank)
            since_ns, until_ns = max(since_ns, wait.start_ns), wait.end_ns
        if chain and rank is not None:
            found[at] = PassedOnWait(rank, tuple(chain))
    return found


def _longest(
    waits: Sequence[_Wait],
    longest_ns: int,
    since_ns: int,
    until_ns: int,
    met: _Members,
    members: Sequence[_Members],
) -> _Wait | None:
    """Return the collective with other ranks where a rank waited longest during this time, or None."""
    best, most_ns = None, PASSED_ON_SHARE * (until_ns - since_ns)
    for at in range(bisect_left(waits, (until_ns,)) - 1, -1, -1):
        wait = waits[at]
        if wait.start_ns + longest_ns <= since_ns:
            break
        within_ns = min(wait.end_ns, until_ns) - max(wait.start_ns, since_ns)
        if within_ns > 0 and within_ns >= most_ns and members[wait.at] != met:
            best, most_ns = wait, within_ns
    return best
