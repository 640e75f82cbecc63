"""What is found of the job now, looked for at times. No drawing."""

from __future__ import annotations

from overlaptop.findings.finding import Finding
from overlaptop.fleet.snapshot import HubState, Snapshot

LOOK_EVERY_NS = 2_000_000_000
"""All rules together take some 30 ms."""


class LatestFindings:
    """What the rules found last."""

    def __init__(self) -> None:
        self._looked_at: Snapshot | None = None
        self._found: tuple[Finding, ...] | None = None

    def take(self, latest: Snapshot) -> tuple[Finding, ...] | None:
        """Of this snapshot, or of one a moment ago; None where too few steps are known."""
        if self._looked_at is not None and self._looked_at.job != latest.job:
            self._looked_at = self._found = None
        if self._is_due(latest):
            # The rules take 50 ms to import, which the first paint would pay.
            from overlaptop.findings.evidence import evidence_of
            from overlaptop.findings.find import find

            evidence = evidence_of(latest)
            self._looked_at, self._found = latest, find(evidence) if evidence.steps else None
        return self._found

    def _is_due(self, latest: Snapshot) -> bool:
        last = self._looked_at
        if last is None:
            return latest.totals.exposed_ns is not None
        if latest.hub_state is HubState.TRACE:
            return last is not latest
        return not 0 <= latest.at_ns - last.at_ns < LOOK_EVERY_NS
