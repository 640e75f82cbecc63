"""Ask all rules about a running job at intervals, and keep their findings and the first line steady."""

from collections.abc import Callable
from typing import NamedTuple

from overlaptop.findings.evidence import Evidence, evidence_of
from overlaptop.findings.finding import Finding
from overlaptop.findings.first_line import first_line
from overlaptop.findings.steady import SteadyFindings, SteadyLine
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.fleet.trouble import trouble_of
from overlaptop.report.who_is_late import FirstLine
from overlaptop.wire.messages import Found

LOOK_EVERY_NS = 5_000_000_000
LEAST_COUNTED = 8
"""Fewest steps whose counters are evaluated before any step is measured."""


class Look(NamedTuple):
    """The result of all rules on one Snapshot."""

    snapshot: Snapshot
    evidence: Evidence
    found: tuple[Finding, ...]
    """Findings of this moment, costliest first."""
    shown: tuple[Finding, ...]
    """The steady ones, some from before."""
    present: tuple[Finding, ...]
    """Those of `shown` that are found now and concern the job's present state."""


class FindingsWatch:
    """Looks at one job at a time. A look takes about 30 ms."""

    def __init__(self, every_ns: int = LOOK_EVERY_NS, soon_ns: int | None = None) -> None:
        """``every_ns``: between two looks. ``soon_ns``: the same while the first line does not concern the
        job's present state; by default ``every_ns``.
        """
        self._every_ns, self._soon_ns = every_ns, every_ns if soon_ns is None else soon_ns
        self._forget()

    def _forget(self) -> None:
        self.findings: tuple[Finding, ...] | None = None
        """Those to show, costliest first; None: too few steps are known."""
        self._last: Look | None = None
        self._findings, self._line = SteadyFindings(), SteadyLine()

    def look(self, snapshot: Snapshot) -> Look | None:
        """Look, or return None if no look is due. Forget all of another job."""
        if self._last is not None and self._last.snapshot.job != snapshot.job:
            self._forget()
        return self.look_now(snapshot) if self._is_due(snapshot) else None

    def look_now(self, snapshot: Snapshot) -> Look:
        """Look, also if no look is due. The job must be the last one's."""
        # The rules take 50 ms to import: not before the dashboard's first paint.
        from overlaptop.findings.find import find

        evidence = evidence_of(snapshot)
        fewest = LEAST_COUNTED if snapshot.totals.exposed_ns is None else 1
        found = find(evidence) if evidence.steps or len(evidence.counted) >= fewest else None
        if found is not None:
            self.findings = self._findings.take(snapshot, found)
        self._last = Look(snapshot, evidence, found or (), self.findings or (), self._present(snapshot))
        return self._last

    def _is_due(self, snapshot: Snapshot) -> bool:
        last = self._last.snapshot if self._last is not None else None
        if snapshot.hub_state is HubState.TRACE:
            return last is not snapshot
        if snapshot.job is None or snapshot.replaying:
            return False
        if last is None:
            return True
        every_ns = self._every_ns if self._line.is_settled else self._soon_ns
        return not 0 <= snapshot.at_ns - last.at_ns < every_ns

    def _present(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        if snapshot.hub_state is HubState.TRACE:
            return self.findings or ()
        return self._findings.present(snapshot)

    def line(self, snapshot: Snapshot) -> FirstLine | None:
        """Return the first line to show, after `look`."""
        listed = self.findings or ()
        said = first_line(snapshot, self._present(snapshot), listed, self._line.rule)
        if snapshot.hub_state is HubState.TRACE or trouble_of(snapshot) is not None:
            return said
        return self._line.take(snapshot, said, first_line(snapshot, (), listed))


class FindingsTold:
    """Tells a job's hub of each rule that warns, once: the hub then keeps the job's last minutes."""

    def __init__(self, send: Callable[[Found], str]) -> None:
        """``send``: as a Session's."""
        self._send = send
        self._told: set[tuple[str, str]] = set()

    def tell(self, look: Look) -> None:
        for each in look.shown:
            told = look.snapshot.job.job if look.snapshot.job is not None else "", each.rule
            if each.warns and told not in self._told and not self._send(Found(each.rule)):
                self._told.add(told)
