"""Groups equal notices that several ranks sent about one event. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from overlaptop.wire.messages import RESTARTED, Notice

TOGETHER_NS = 10_000_000_000
"""Notices of one event arrive within this time. A later one is about another event."""


@dataclass(frozen=True, slots=True)
class GroupedNotice:
    """A notice, and the ranks that sent it."""

    at_ns: int  # Unix time of the first notice
    level: str
    text: str
    ranks: tuple[int, ...]


def grouped(notices: Iterable[Notice]) -> tuple[GroupedNotice, ...]:
    """Return each text once, with the ranks that sent it, in order of arrival."""
    found: list[GroupedNotice] = []
    newest: dict[tuple[str, str], int] = {}
    """Index in `found` of the last notice with this level and text."""
    for notice in notices:
        key = notice.level, notice.text
        at = newest.get(key)
        if (
            at is not None
            and notice.rank not in found[at].ranks
            and abs(notice.at_ns - found[at].at_ns) <= TOGETHER_NS
        ):
            held = found[at]
            first_ns = min(held.at_ns, notice.at_ns)
            found[at] = GroupedNotice(first_ns, *key, tuple(sorted((*held.ranks, notice.rank))))
            continue
        newest[key] = len(found)
        found.append(GroupedNotice(notice.at_ns, *key, (notice.rank,)))
    return tuple(found)


def last_restart(notices: Sequence[Notice]) -> Notice | None:
    """Return the notice of the job's newest restart."""
    return next((each for each in reversed(notices) if each.text.startswith(RESTARTED)), None)
