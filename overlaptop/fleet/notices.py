"""What several ranks say alike of one event, told once. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from overlaptop.wire.messages import Notice

TOGETHER_NS = 10_000_000_000
"""Ranks that say the same of one event do so within moments; later it is another event."""


@dataclass(frozen=True, slots=True)
class Told:
    """A notice, and who gave it."""

    at_ns: int
    """Unix time of the first."""
    level: str
    text: str
    ranks: tuple[int, ...]
    """In order."""


def gathered(notices: Iterable[Notice]) -> tuple[Told, ...]:
    """Notices of the same words from several ranks as one each; in their order."""
    found: list[Told] = []
    newest: dict[tuple[str, str], int] = {}
    """Where in `found` the last one with these words stands."""
    for notice in notices:
        words = notice.level, notice.text
        at = newest.get(words)
        if (
            at is not None
            and notice.rank not in found[at].ranks
            and abs(notice.at_ns - found[at].at_ns) <= TOGETHER_NS
        ):
            held = found[at]
            first_ns = min(held.at_ns, notice.at_ns)
            found[at] = Told(first_ns, *words, tuple(sorted((*held.ranks, notice.rank))))
            continue
        newest[words] = len(found)
        found.append(Told(notice.at_ns, *words, (notice.rank,)))
    return tuple(found)
