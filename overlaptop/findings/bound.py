"""What bounds the step, in a word or two. Pure."""

from collections.abc import Sequence

from overlaptop.findings.finding import Finding
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.report.who_is_late import FirstLine, Kind

MOSTLY = 0.5
"""Smallest share of the step that bounds it."""


def bound_by(snapshot: Snapshot, found: Sequence[Finding], said: FirstLine | None) -> str:
    """Return ``GPU-bound``, ``host-bound``, ``communication-bound``, ``data-bound`` or ``waiting for rank
    2``; empty: nothing takes most of the step, or parts are unknown.
    """
    totals, window = snapshot.totals, snapshot.wait_window
    if said is None or totals.measured_ns is None or totals.exposed_ns is None:
        return ""
    if said.late_rank is not None:
        return f"waiting for rank {said.late_rank}"
    if found and found[0].rule == "data_loading" and not found[0].ranks:
        return "data-bound"
    if totals.launch_bound and (said.kind is Kind.SLACK or len(totals.launch_bound) == totals.ranks):
        return "host-bound"
    if said.kind is Kind.SLACK:
        return ""
    wait_ns = window.exposed_wait_ns if window is not None else 0
    if totals.exposed_ns - wait_ns >= MOSTLY * totals.measured_ns:
        return "communication-bound"
    if totals.idle_ns is None:
        return ""
    if totals.idle_ns >= MOSTLY * totals.measured_ns:
        return "host-bound"
    busy_ns = totals.measured_ns - totals.exposed_ns - totals.idle_ns
    return "GPU-bound" if busy_ns >= MOSTLY * totals.measured_ns else ""
