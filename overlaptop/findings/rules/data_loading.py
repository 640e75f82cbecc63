"""The training thread loads data or waits for it, on a late rank or on each rank.

Titles say that ranks load data: waiting is the word for waiting for other ranks.

Loading beside a busy GPU costs nothing. What each rank does before its first kernel may be loading, too,
from something else than torch's DataLoader; a line of the script tells it better (`stalled_hosts`).
"""

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings, JobStep
from overlaptop.findings.late import Cause, suspects
from overlaptop.findings.measures import (
    STALL_SHARE,
    before_work_ns,
    may_load,
    on_each_rank_ns,
    on_host,
    stalled_at,
)
from overlaptop.fleet.snapshot import RankView
from overlaptop.report.order import sees_gaps

ADVICE = (
    "give its DataLoader more workers (num_workers), prefetch_factor and pin_memory=True, and copy with "
    "non_blocking=True on a stream of its own"
)


def look(evidence: Evidence) -> Findings:
    late = suspects(evidence, Cause.LOADING)
    for each in late:
        yield each.finding(f" loads data {each.longer} than {each.versus}", ADVICE, Certainty.MEASURED)
    if late or not evidence.steps:
        return
    if (lost_ns := on_each_rank_ns(evidence, _in_loaders_ns)) >= STALL_SHARE * evidence.step_ns:
        yield Finding(
            title=f"ranks load data for {text.duration(lost_ns)} a step",
            measured=f"{text.percent(lost_ns / evidence.step_ns)} of the step go by in DataLoaders, with "
            "nothing beside it",
            advice=ADVICE,
            certainty=Certainty.MEASURED,
            gain_ns=round(lost_ns),
        )
        return
    lost_ns = before_work_ns(evidence)
    # A line of the script may explain it, in a job without a DataLoader.
    if lost_ns < STALL_SHARE * evidence.step_ns or stalled_at(evidence) is not None:
        return
    yield Finding(
        title=f"GPUs have nothing to compute for the first {text.duration(lost_ns)} of each step",
        measured=f"{text.percent(lost_ns / evidence.step_ns)} of the step are idle or copies, before "
        "its first kernel",
        advice=f"where batches come from a DataLoader, {ADVICE}; else make them while the GPU works"
        if may_load(evidence)
        else "make batches while the GPU works",
        certainty=Certainty.POSSIBLE,
        gain_ns=round(lost_ns),
    )


def _in_loaders_ns(view: RankView, step: JobStep) -> int | None:
    own = step.totals[view.rank]
    if own.loading_ns is None or on_host(view.info):
        return own.loading_ns
    if not sees_gaps(view) or own.idle_ns is None or own.copy_only_ns is None:
        return None
    return min(own.loading_ns, own.idle_ns + own.copy_only_ns)
