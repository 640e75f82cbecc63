"""One finished step of one rank as a flat record: the lines of ``overlaptop --json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlaptop.wire.messages import RankInfo, StepTotals

if TYPE_CHECKING:  # it would import numpy, which those who print steps do without
    from overlaptop.timeline.breakdown import Breakdown


def step_record(job: str, info: RankInfo | None, totals: StepTotals) -> dict[str, object]:
    """The record of one step, in the documented order of its fields.

    Times are ns, ``overlap`` is a fraction. None is "not known", and for ``overlap`` also "no
    communication". With ``compute_exact`` false, compute is an upper bound (gaps between kernels are not
    seen) and idle a lower one; it is None until the rank has said how it is measured.
    """
    return {
        "type": "step",
        "job": job,
        "rank": totals.rank,
        "step": totals.step,
        "source": info.source if info else None,
        "step_ns": totals.step_ns,
        "compute_ns": totals.compute_ns,
        "comm_ns": totals.comm_ns,
        "hidden_ns": totals.hidden_ns,
        "exposed_ns": totals.exposed_ns,
        "compute_only_ns": totals.compute_only_ns,
        "copy_only_ns": totals.copy_only_ns,
        "idle_ns": totals.idle_ns,
        "stall_ns": totals.stall_ns,
        "overlap": totals.overlap,
        "collectives": totals.collectives,
        "dropped": totals.dropped,
        "compute_exact": info.compute_exact if info else None,
        "launch_lead_ns": totals.launch_lead_ns,
        "comm_kernels_ns": totals.comm_kernels_ns,
        "matched_ns": totals.matched_ns,
        "captured": totals.captured,
    }


def rank_record(rank: int, whole: Breakdown) -> dict[str, object]:
    """The record of one rank's whole trace, in the documented order of its fields.

    Times are ns, ``overlap`` is a fraction, None without communication.
    """
    return {
        "type": "rank",
        "rank": rank,
        "overlap": whole.overlap,
        "comm_ns": whole.comm_ns,
        "hidden_ns": whole.hidden_ns,
        "exposed_ns": whole.exposed_ns,
        "compute_ns": whole.compute_ns,
        "copy_only_ns": whole.copy_only_ns,
        "idle_ns": whole.idle_ns,
    }
