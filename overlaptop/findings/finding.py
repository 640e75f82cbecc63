"""A finding: the result of a rule."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from math import inf
from pathlib import PurePath
from typing import TypeAlias

from overlaptop.records import FindingRecord, shared

OPPOSITES = {"bucket_too_large": "bucket_too_small", "bucket_too_small": "bucket_too_large"}
"""Rules that exclude each other within one job. Their evidence is a model, so they raise no alarm."""


_FIGURES = re.compile(r" [\d.]+ (?:ns|µs|ms|s)(?= )|: its .*| for \d.*")
"""The figures in a short title that says why a rank is late."""


def headline(title: str, line: str | None) -> str:
    """Return the title and the script line, if known: ``... (train.py:57 in collate)``."""
    return f"{title} ({line})" if line and line not in title else title


class Certainty(Enum):
    """How sure a finding is."""

    MEASURED = "measured"
    """The cause itself was measured."""
    LIKELY = "likely"
    """The measurement fits this cause, and similar causes are excluded."""
    POSSIBLE = "possible"
    """The measurement fits this cause and others."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, its cost and the advice."""

    title: str
    """One line, subject first, with the measured figure."""
    measured: str
    """The measurement in words, with figures."""
    advice: str
    """The command to type or the setting to change."""
    certainty: Certainty
    gain_ns: int | None = None
    """Shorter step after the fix, in ns (`gains`). None: not known."""
    ranks: tuple[int, ...] = ()
    """The ranks concerned; empty: the whole job."""
    rule: str = ""
    """The rule's file name, set by `find`."""
    step_ns: int | None = None
    """Step time behind the gain; by default `find` sets the median one. None: not known."""
    why_late: bool = False
    """It says why its rank is late. The title then begins with ``rank 2 ...`` or ``rank 2's ...``."""
    line: str = ""
    """The script line concerned, ``train.py:57 in collate``; empty: not known."""

    @property
    def warns(self) -> bool:
        """Return whether a known cause costs the job something."""
        return self.certainty is not Certainty.POSSIBLE and self.gain_ns != 0

    @property
    def gain_share(self) -> float | None:
        """Return the gain as a share of the step that it was found in."""
        return self.gain_ns / self.step_ns if self.gain_ns is not None and self.step_ns else None

    @property
    def order_ns(self) -> float:
        """Return the gain, by which findings are sorted. Unknown, it is the smallest, or the largest if the
        finding says why a rank is late.
        """
        if self.gain_ns is None:
            return inf if self.why_late else -1
        return self.gain_ns or -1

    @property
    def headline(self) -> str:
        return headline(self.title, self.line)

    @property
    def headlines(self) -> tuple[str, ...]:
        """Return `headline`, then shorter ones. Rank and cause stay longest, then the time, then the line:
        ``rank 1 sleeps 161 ms longer (train.py:57)``.
        """
        compared = self.title.partition(" than ")[0]
        place = PurePath(self.line.rpartition(" in ")[0]).name
        at = f" ({place})" if place and place not in self.title else ""
        brief = compared.partition(", ")[0].replace("'s training thread", "").replace(" a step", "")
        if place:
            brief = brief.replace(self.line, place)
        return self.headline, f"{compared}{at}", f"{brief}{at}", brief, _FIGURES.sub("", brief)

    @property
    def titles(self) -> tuple[str, ...]:
        """Return the title, then shorter ones."""
        short = self.title.partition(": ")[0]
        return self.title, *(self.headlines[2:] if self.why_late else (short, short.replace(" a step", "")))

    def record(self, job: str) -> FindingRecord:
        own = {"job": job, "certainty": self.certainty.value, "line": self.line or None}
        return FindingRecord(**{**shared(FindingRecord, self), **own})


Findings: TypeAlias = Iterable[Finding]
Key = tuple[str, tuple[int, ...], int]
"""Identifies a finding over time: rule, ranks, and its number among equal ones."""


def by_key(found: Findings) -> dict[Key, Finding]:
    keyed: dict[Key, Finding] = {}
    for each in found:
        nth = sum(key[:2] == (each.rule, each.ranks) for key in keyed)
        keyed[each.rule, each.ranks, nth] = each
    return keyed


def late_finding(found: Findings, rank: int) -> Finding | None:
    return next((each for each in found if each.why_late and each.ranks == (rank,)), None)


def why_late(found: Findings, rank: int) -> str:
    """Return such as ``it computes 12.1 ms a step longer than the others``; empty: no finding says."""
    late = late_finding(found, rank)
    if late is None:
        return ""
    words = late.headline.removeprefix(f"rank {rank}")
    return f"its{words[2:]}" if words.startswith("'s ") else f"it{words}"
