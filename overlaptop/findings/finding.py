"""What a rule found."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

from overlaptop.records import FindingRecord

OPPOSITES = {"bucket_too_large": "bucket_too_small", "bucket_too_small": "bucket_too_large"}
"""Rules of which one job is never told both. A model says so, and no trial: it is worth a try, and no
alarm."""


_FIGURES = re.compile(r" [\d.]+ (?:ns|µs|ms|s) a step|: its .*| for \d.*")
"""In a title that says why a rank is late."""


class Certainty(Enum):
    """How sure a finding is."""

    MEASURED = "measured"
    """The cause itself was measured."""
    LIKELY = "likely"
    """What was measured fits this cause, and the others that would look alike are excluded."""
    POSSIBLE = "possible"
    """What was measured fits this cause, and others too."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, what it costs and what to do."""

    title: str
    """One line, subject first, with the measured figure."""
    measured: str
    """What was measured, in words with figures."""
    advice: str
    """What to type or to change."""
    certainty: Certainty
    gain_ns: int | None = None
    """By how much mending it makes the step shorter (`gains`). Never more than the exposed or idle time
    that it explains. None: not known."""
    ranks: tuple[int, ...] = ()
    """Those that it is about; empty: the whole job."""
    rule: str = ""
    """Name of the rule's file; `find` fills it in."""
    why_late: bool = False
    """It says why its rank is late; the title begins with that: ``rank 2 ...`` or ``rank 2's ...``."""
    line: str = ""
    """The line of the script that it is about, ``train.py:57 in collate``; empty: not known."""

    @property
    def headline(self) -> str:
        """The title with the line of the script where that is known: ``... (train.py:57 in collate)``."""
        return f"{self.title} ({self.line})" if self.line and self.line not in self.title else self.title

    @property
    def headlines(self) -> tuple[str, ...]:
        """`headline`, then shorter ones: without the comparison, without figures (``rank 1 computes longer
        (train.py:57)``), without the line.
        """
        compared = self.title.partition(" than ")[0]
        bare = _FIGURES.sub("", compared)
        place = self.line.rpartition(" in ")[0]
        at = f" ({PurePath(place).name})" if place and place not in self.title else ""
        return self.headline, f"{compared}{at}", f"{bare}{at}", bare

    def record(self, job: str) -> FindingRecord:
        """The record of it."""
        return FindingRecord(
            job=job,
            rule=self.rule,
            title=self.title,
            ranks=self.ranks,
            measured=self.measured,
            gain_ns=self.gain_ns,
            certainty=self.certainty.value,
            advice=self.advice,
            line=self.line or None,
        )


Key = tuple[str, tuple[int, ...], int]
"""Of a finding as it comes up again: rule, ranks, and its number among those alike."""


def by_key(found: Iterable[Finding]) -> dict[Key, Finding]:
    """Each finding by its key, in their order."""
    keyed: dict[Key, Finding] = {}
    for each in found:
        nth = sum(key[:2] == (each.rule, each.ranks) for key in keyed)
        keyed[each.rule, each.ranks, nth] = each
    return keyed


def late_finding(found: Iterable[Finding], rank: int) -> Finding | None:
    """The first that says why this rank is late; None: none does."""
    return next((each for each in found if each.why_late and each.ranks == (rank,)), None)


def why_late(found: Iterable[Finding], rank: int) -> str:
    """Why a rank is late: ``it computes 12.1 ms a step longer than the others``; empty: no finding says.
    With the line of the script where that is known.
    """
    late = late_finding(found, rank)
    if late is None:
        return ""
    words = late.headline.removeprefix(f"rank {rank}")
    return f"its{words[2:]}" if words.startswith("'s ") else f"it{words}"
