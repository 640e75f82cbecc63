"""What a check found: one line, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How it is."""

    OK = "ok"
    WARNING = "warning"
    """Monitoring works, but shows less, or not everything can be done."""
    FAULT = "fault"
    """Monitoring does not work."""
    UNKNOWN = "unknown"
    """It could not be looked at, or is not to be had here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, in words for one line."""

    check: str
    """What was looked at, in one short word."""
    status: Status
    text: str
    remedy: str = ""
    """What to do; empty: nothing has to be done, or `text` has it."""

    @property
    def line(self) -> str:
        """The finding, and what to do."""
        return f"{self.text}: {self.remedy}" if self.remedy else self.text

    def record(self, host: str) -> dict[str, object]:
        """As a line of JSON has it. ``host``: as the user named it; empty: here."""
        return {
            "type": "check",
            "host": host,
            "check": self.check,
            "status": self.status.value,
            "finding": self.text,
            "remedy": self.remedy,
        }


def ok(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(check, Status.OK, text)


def warning(check: str, text: str, remedy: str = "") -> Finding:
    """It works, less well."""
    return Finding(check, Status.WARNING, text, remedy)


def fault(check: str, text: str, remedy: str = "") -> Finding:
    """It does not work."""
    return Finding(check, Status.FAULT, text, remedy)


def unknown(check: str, text: str, remedy: str = "") -> Finding:
    """It could not be found out."""
    return Finding(check, Status.UNKNOWN, text, remedy)


def works(findings: Iterable[Finding]) -> bool:
    """Whether monitoring will work where these were found."""
    return all(finding.status is not Status.FAULT for finding in findings)
