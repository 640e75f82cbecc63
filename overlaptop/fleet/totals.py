"""The job in one line: what the ranks' newest steps say together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from overlaptop.fleet.snapshot import RankView, Totals
from overlaptop.timeline.launch import launch_bound


def total(ranks: Sequence[RankView], dropped: int) -> Totals:
    """Sum up ``ranks``; ``dropped`` is what was lost on the way here.

    Ranks that ended count only when all have, and those of nodes that are lost only while no other rank
    is heard from: the job goes on there or not at all, and its figures must not stand still with a line.
    The step time is that of each rank's newest step that no
    command disturbed; lane figures come from its newest measured step, which is older where only every
    n-th step is measured.
    """
    seen = [view for view in ranks if view.last is not None]
    running = [view for view in seen if not view.ended]
    counted = [view for view in running if not view.node_lost] or running or seen
    newest = [view.last for view in counted if view.last is not None]
    measured = [view.measured for view in counted if view.measured is not None]

    compute_ns = sum(step.compute_ns or 0 for step in measured)
    comm_ns = sum(step.comm_ns or 0 for step in measured)
    hidden_ns = sum(step.hidden_ns or 0 for step in measured)
    step_ns = sum(step.step_ns for step in measured)
    leads_ns = [step.launch_lead_ns for step in measured if step.launch_lead_ns is not None]
    busy_ns, longer_ns = compute_ns + comm_ns, max(compute_ns, comm_ns)
    return Totals(
        step=min((step.step for step in newest), default=None),
        step_ns=_median(undisturbed_step_ns(view) for view in counted),
        overlap=hidden_ns / comm_ns if comm_ns else None,
        exposed_ns=_median(step.exposed_ns for step in measured),
        stall_ns=_median(step.stall_ns for step in measured),
        idle_ns=_median(
            view.measured.idle_ns
            for view in counted
            if view.measured is not None and view.info is not None and view.info.compute_exact
        ),
        speedup=busy_ns / step_ns if busy_ns and step_ns else None,
        attainable=busy_ns / longer_ns if longer_ns else None,
        launch_lead_ns=min(leads_ns, default=None),
        launch_bound=sum(
            launch_bound(step.step_ns, step.launch_lead_ns, step.idle_ns) is True for step in measured
        ),
        dropped=dropped,
    )


def undisturbed_step_ns(view: RankView) -> int | None:
    """The length of this rank's newest step that no command disturbed."""
    return next((step.step_ns for step in reversed(view.history) if not step.disturbed), None)


def _median(values_ns: Iterable[int | None]) -> int | None:
    known = [value for value in values_ns if value is not None]
    return round(median(known)) if known else None
