"""The job's present findings, refreshed at intervals, and their first line. No drawing."""

from overlaptop.findings.finding import Finding
from overlaptop.findings.first_line import first_line
from overlaptop.findings.steady import SteadyFindings, SteadyLine
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.fleet.trouble import trouble_of
from overlaptop.report.who_is_late import FirstLine

LOOK_EVERY_NS = 2_000_000_000
"""Interval between two runs of all rules, which take about 30 ms."""
LEAST_COUNTED = 10
"""Fewest steps whose counters are evaluated before any step is measured."""
LOOK_SOON_NS = 500_000_000
"""Interval while nothing is known of the job's present state."""


class LatestFindings:
    """The last results of the rules, and the findings to show."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._looked_at: Snapshot | None = None
        self._found: tuple[Finding, ...] | None = None
        self._findings, self._line = SteadyFindings(), SteadyLine()

    def take(self, latest: Snapshot) -> tuple[Finding, ...] | None:
        """Return the findings of this or a recent snapshot; None if too few steps are known."""
        if self._looked_at is not None and self._looked_at.job != latest.job:
            self._forget()
        if self._is_due(latest):
            # The rules take 50 ms to import: not before the first paint.
            from overlaptop.findings.evidence import evidence_of
            from overlaptop.findings.find import find

            evidence = evidence_of(latest)
            self._looked_at = latest
            is_known = bool(evidence.steps or evidence.counted)
            shown = self._findings.take(latest, find(evidence) if is_known else None)
            if is_known:
                self._found = shown
        return self._found

    def line(self, latest: Snapshot) -> FirstLine | None:
        """Return the first line, after `take`."""
        if latest.hub_state is HubState.TRACE:
            return first_line(latest, self._found or ())
        listed = self._found or ()
        said = first_line(latest, self._findings.present(latest), listed, self._line.rule)
        if trouble_of(latest) is not None:
            return said
        return self._line.take(latest, said, first_line(latest, (), listed))

    def _is_due(self, latest: Snapshot) -> bool:
        last = self._looked_at
        if last is None:
            counted = any(len(view.history) >= LEAST_COUNTED for view in latest.ranks)
            return counted or latest.totals.exposed_ns is not None
        if latest.hub_state is HubState.TRACE:
            return last is not latest
        every_ns = LOOK_EVERY_NS if self._line.is_settled else LOOK_SOON_NS
        return not 0 <= latest.at_ns - last.at_ns < every_ns
