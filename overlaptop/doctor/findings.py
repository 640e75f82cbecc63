"""What a check found: one line, and what to do. Also as a record, which may come from another host."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

MAX_FINDINGS = 128
"""Taken from another host."""
_MAX_TEXT_CHARS = 600
_MAX_NAME_CHARS = 20


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


def read_records(text: str) -> list[Finding]:
    """The findings among the lines that another host has printed; what is no finding is passed over."""
    found: list[Finding] = []
    for line in text.splitlines():
        if len(found) < MAX_FINDINGS and (finding := _read(line)) is not None:
            found.append(finding)
    return found


def _read(line: str) -> Finding | None:
    if not line.startswith("{"):
        return None
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or values.get("type") != "check":
        return None
    words = [values.get(name) for name in ("check", "status", "finding", "remedy")]
    check, status, text, remedy = (word if isinstance(word, str) else "" for word in words)
    if not check or not text or status not in {each.value for each in Status}:
        return None
    return Finding(
        check[:_MAX_NAME_CHARS], Status(status), text[:_MAX_TEXT_CHARS], remedy[:_MAX_TEXT_CHARS]
    )
