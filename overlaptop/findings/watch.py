"""Looks for the findings of a running job at intervals, and tells its hub of each rule that warns."""

from collections.abc import Callable, Iterable

from overlaptop.findings.finding import Finding
from overlaptop.findings.steady import SteadyFindings
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.wire.messages import Found


class FindingsTold:
    """Tells a job's hub of each rule once: the hub then keeps the job's last minutes."""

    def __init__(self, send: Callable[[Found], str]) -> None:
        """``send``: as a Session's."""
        self._send = send
        self._told: set[tuple[str, str]] = set()

    def tell(self, job: str, found: Iterable[Finding]) -> None:
        """Tell the hub of the rules that warn."""
        for each in found:
            told = job, each.rule
            if each.warns and told not in self._told and not self._send(Found(each.rule)):
                self._told.add(told)


class FindingsWatch:
    """The findings that hold."""

    def __init__(self, every_ns: int, send: Callable[[Found], str] | None = None) -> None:
        """``every_ns``: between two looks. ``send``: as a Session's; None: the hub is not told."""
        self._every_ns = every_ns
        self._told = None if send is None else FindingsTold(send)
        self._steady = SteadyFindings()
        self._due_ns = 0

    def look(self, snapshot: Snapshot) -> tuple[Finding, ...] | None:
        """Return the findings that hold; None: no look is due."""
        if snapshot.job is None or snapshot.replaying or snapshot.at_ns < self._due_ns:
            return None
        # The rules take 50 ms to import.
        from overlaptop.findings.evidence import evidence_of
        from overlaptop.findings.find import find

        self._due_ns = snapshot.at_ns + self._every_ns
        found = self._steady.take(snapshot, find(evidence_of(snapshot)))
        if self._told is not None:
            self._told.tell(snapshot.job.job, found)
        return found
