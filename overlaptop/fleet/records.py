"""The parts of a Snapshot as ``--json`` records. None means "not known", never zero."""

from __future__ import annotations

from typing import TypedDict

from overlaptop.fleet.snapshot import RankView, Snapshot
from overlaptop.fleet.trouble import first_failure
from overlaptop.fleet.waits import StepWaits
from overlaptop.jobs.processes import signal_name
from overlaptop.records import (
    CollectiveRecord,
    CostRecord,
    DeviceRecord,
    EndRecord,
    NoticeRecord,
    StepRecord,
    TraceRankRecord,
)
from overlaptop.text import ABOUT, AT_LEAST, AT_MOST
from overlaptop.timeline.arrivals import Collective
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import Notice, OwnCost, RankInfo, StepTotals

BOUNDS = {
    "compute_ns": AT_MOST, "hidden_ns": AT_MOST, "compute_only_ns": AT_MOST, "overlap": AT_MOST,
    "exposed_ns": AT_LEAST, "exposed_wait_ns": AT_LEAST, "exposed_transfer_ns": AT_LEAST,
    "speedup": AT_MOST, "attainable": ABOUT,
}  # fmt: skip
"""Figures that become bounds if compute is an upper bound, with the kind of bound. Screens use it, too."""


class _Waits(TypedDict):
    """A rank's waiting and transfer in a step."""

    wait_ns: int | None
    transfer_ns: int | None
    not_attributed_ns: int | None
    exposed_wait_ns: int | None
    exposed_transfer_ns: int | None
    late_rank: int | None


def step_record(
    job: str, info: RankInfo | None, totals: StepTotals, waits: StepWaits | None = None
) -> StepRecord:
    """Return the record of one step. `waits`: of that step, if known.

    If compute is an upper bound, gaps between kernels are invisible, so idle is not known.
    """
    exact = info.compute_exact if info else None
    waited = _waits(totals.rank, waits)
    return StepRecord(
        job=job,
        rank=totals.rank,
        step=totals.step,
        source=info.source if info else None,
        step_ns=totals.step_ns,
        compute_ns=totals.compute_ns,
        comm_ns=totals.comm_ns,
        hidden_ns=totals.hidden_ns,
        exposed_ns=totals.exposed_ns,
        compute_only_ns=totals.compute_only_ns,
        copy_only_ns=totals.copy_only_ns,
        idle_ns=totals.idle_ns if exact else None,
        stall_ns=totals.stall_ns,
        overlap=totals.overlap,
        collectives=totals.collectives,
        dropped=totals.dropped,
        compute_exact=exact,
        launch_lead_ns=totals.launch_lead_ns,
        comm_kernels_ns=totals.comm_kernels_ns,
        matched_ns=totals.matched_ns,
        captured=totals.captured,
        link_tx_bytes=totals.link_tx_bytes,
        link_rx_bytes=totals.link_rx_bytes,
        transitional=totals.transitional,
        cpu_ns=totals.cpu_ns,
        delayed_ns=totals.delayed_ns,
        loading_ns=totals.loading_ns,
        full_collections=totals.full_collections,
        fused_ns=totals.fused_ns,
        host_ns=totals.host_ns,
        trial=totals.trial,
        bounds=None if exact is None else _bounds(totals, waits, waited, exact=exact),
        **waited,
    )


def _bounds(totals: StepTotals, waits: StepWaits | None, waited: _Waits, *, exact: bool) -> dict[str, str]:
    known = {name: getattr(totals, name, None) for name in BOUNDS} | waited
    bounds = {} if exact else dict(BOUNDS)
    times = waits.times.get(totals.rank) if waits is not None else None
    if times is not None:  # communication that is not attributed may be waiting or transfer
        of_all = ("wait_ns", "transfer_ns") if times.unsplit_ns else ()
        of_exposed = ("exposed_wait_ns", "exposed_transfer_ns") if times.exposed_unsplit_ns else ()
        bounds |= dict.fromkeys((*of_all, *of_exposed), AT_LEAST)
    return {name: sign for name, sign in bounds.items() if known[name] is not None}


def _waits(rank: int, waits: StepWaits | None) -> _Waits:
    """Return a rank's part in `waits`. A total is None if none of its communication is attributed, and an
    exposed part if none of the exposed communication is.
    """
    times = waits.times.get(rank) if waits is not None else None
    known = times is not None and times.known
    exposed_known = times is not None and times.exposed_known
    return {
        "wait_ns": times.wait_ns if times and known else None,
        "transfer_ns": times.transfer_ns if times and known else None,
        "not_attributed_ns": times.unsplit_ns if times else None,
        "exposed_wait_ns": times.exposed_wait_ns if times and exposed_known else None,
        "exposed_transfer_ns": times.exposed_transfer_ns if times and exposed_known else None,
        "late_rank": waits.late_rank(rank) if waits and known else None,
    }


def collective_record(job: str, step: int, each: Collective) -> CollectiveRecord:
    """Return the record of one collective on all its ranks."""
    ranks = [part.rank for part in each.parts]
    return CollectiveRecord(
        job=job,
        step=step,
        op=each.op,
        group=each.group,
        bytes=each.bytes,
        start_ns=min(part.start_ns for part in each.parts),
        last_start_ns=each.last_start_ns,
        end_ns=max(part.end_ns for part in each.parts),
        ranks=ranks,
        wait_ns=[each.wait_ns(rank) for rank in ranks],
        transfer_ns=[each.transfer_ns(rank) for rank in ranks],
        late_rank=each.late_rank,
        least_transfer_ns=None if each.unsplit else each.least_transfer_ns,
        residual_ns=each.residual_ns,
        clock_error_ns=each.clock_error_ns,
        bus_bandwidth_bytes_per_s=each.bus_bandwidth,
        not_attributed=each.unsplit or None,
    )


def device_record(job: str, view: RankView, sample: DeviceSample | None) -> DeviceRecord:
    """Return the record of the devices that one rank uses.

    `sample` is the rank's, or None if nothing samples it: a rank without a GPU still has its CPUs.
    """
    device, numa = view.device, view.numa
    # Traffic accounted to collectives is known only for now, not for each sample of a hub's history.
    traffic = view.traffic if sample is view.sample else None
    return DeviceRecord(
        job=job,
        rank=view.rank,
        at_ns=sample.at_ns if sample else None,
        gpu_uuid=(device.gpu_uuid or None) if device else None,
        nvlink_rx_bytes_per_s=sample.nvlink_rx_bytes_per_s if sample else None,
        nvlink_tx_bytes_per_s=sample.nvlink_tx_bytes_per_s if sample else None,
        pcie_rx_bytes_per_s=sample.pcie_rx_bytes_per_s if sample else None,
        pcie_tx_bytes_per_s=sample.pcie_tx_bytes_per_s if sample else None,
        nvlink_peak_bytes_per_s=device.nvlink_peak_bytes_per_s if device else None,
        pcie_peak_bytes_per_s=device.pcie_peak_bytes_per_s if device else None,
        collectives_over=traffic.over if traffic else None,
        collectives_rx_bytes_per_s=traffic.collectives_rx_bytes_per_s if traffic else None,
        collectives_tx_bytes_per_s=traffic.collectives_tx_bytes_per_s if traffic else None,
        sm_activity=sample.sm_activity if sample else None,
        tensor_activity=sample.tensor_activity if sample else None,
        dram_activity=sample.dram_activity if sample else None,
        memory_used_bytes=sample.memory_used_bytes if sample else None,
        memory_total_bytes=device.memory_total_bytes if device else None,
        power_mw=sample.power_mw if sample else None,
        power_limit_mw=device.power_limit_mw if device else None,
        sm_clock_hz=sample.sm_clock_hz if sample else None,
        memory_clock_hz=sample.memory_clock_hz if sample else None,
        throttle_reasons=sample.throttle_reasons if sample else None,
        numa_node=numa.gpu_node if numa else None,
        numa_state=numa.state if numa else None,
        cpu_set=(numa.cpu_set or None) if numa else None,
        cpu_nodes=[share.node for share in numa.cpu_nodes] if numa and numa.cpu_set else None,
        memory_policy=(numa.memory_policy or None) if numa else None,
        nic=(numa.nic or None) if numa else None,
        nic_node=numa.nic_node if numa else None,
    )


def cost_record(job: str, cost: OwnCost) -> CostRecord:
    """Return the record of one rank's agent overhead."""
    return CostRecord(
        job=job,
        rank=cost.rank,
        change=cost.change,
        error=cost.error,
        measured_change=cost.measured_change,
        measured_error=cost.measured_error,
        watched=cost.watched,
    )


def notice_record(job: str, notice: Notice) -> NoticeRecord:
    """Return the record of a hidden process or of a restart."""
    return NoticeRecord(job=job, rank=notice.rank, at_ns=notice.at_ns, level=notice.level, text=notice.text)


def end_records(snapshot: Snapshot) -> list[EndRecord]:
    """Return a record for each rank that has ended."""
    first = first_failure(snapshot.ranks)
    return [
        EndRecord(
            job=snapshot.job.job if snapshot.job else "",
            rank=end.rank,
            at_ns=end.at_ns,
            failed=end.failed,
            first=first is not None and end.rank in first.ranks,
            exit_status=code if code is not None and code >= 0 else None,
            signal=signal_name(code) or None,
            failure=end.failure or None,
        )
        for end in (view.end for view in snapshot.ranks if view.end is not None)
        for code in (end.exit_code,)
    ]


def trace_rank_record(
    rank: int, whole: StepTotals, waits: StepWaits | None = None, *, compute_exact: bool
) -> TraceRankRecord:
    """Return the record of one rank's whole trace. ``compute_exact``: as in a step's record."""
    return TraceRankRecord(
        rank=rank,
        overlap=whole.overlap,
        comm_ns=whole.comm_ns,
        hidden_ns=whole.hidden_ns,
        exposed_ns=whole.exposed_ns,
        compute_ns=whole.compute_ns,
        copy_only_ns=whole.copy_only_ns,
        idle_ns=whole.idle_ns,
        fused_ns=whole.fused_ns,
        compute_exact=compute_exact,
        **_waits(rank, waits),
    )
