"""The parts of a Snapshot as ``--json`` records. None means "not known", never zero."""

from typing import Any

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
    shared,
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


def step_record(
    job: str, info: RankInfo | None, totals: StepTotals, waits: StepWaits | None = None
) -> StepRecord:
    """Return the record of one step. `waits`: of that step, if known. If compute is an upper bound, gaps
    between kernels are invisible, so idle is not known.
    """
    exact = info.compute_exact if info else None
    waited = _waits(totals.rank, waits)
    fields: dict[str, Any] = {
        **shared(StepRecord, totals),
        **waited,
        "idle_ns": totals.idle_ns if exact else None,
        "bounds": None if exact is None else _bounds(totals, waits, waited, exact=exact),
    }
    return StepRecord(job=job, source=info.source if info else None, compute_exact=exact, **fields)


def _bounds(
    totals: StepTotals, waits: StepWaits | None, waited: dict[str, int | None], *, exact: bool
) -> dict[str, str]:
    known: dict[str, Any] = {name: getattr(totals, name, None) for name in BOUNDS} | waited
    bounds = {} if exact else dict(BOUNDS)
    times = waits.times.get(totals.rank) if waits is not None else None
    if times is not None:  # communication that is not attributed may be waiting or transfer
        of_all = ("wait_ns", "transfer_ns") if times.not_attributed_ns else ()
        of_exposed = ("exposed_wait_ns", "exposed_transfer_ns") if times.exposed_not_attributed_ns else ()
        bounds |= dict.fromkeys((*of_all, *of_exposed), AT_LEAST)
    return {name: sign for name, sign in bounds.items() if known[name] is not None}


def _waits(rank: int, waits: StepWaits | None) -> dict[str, int | None]:
    """Return a rank's waiting and transfer. A total is None if none of its communication is attributed, and
    an exposed part if none of the exposed communication is.
    """
    times = waits.times.get(rank) if waits is not None else None
    known = times if times is not None and times.known else None
    exposed = times if times is not None and times.exposed_known else None
    return {
        "wait_ns": known and known.wait_ns,
        "transfer_ns": known and known.transfer_ns,
        "not_attributed_ns": times and times.not_attributed_ns,
        "exposed_wait_ns": exposed and exposed.exposed_wait_ns,
        "exposed_transfer_ns": exposed and exposed.exposed_transfer_ns,
        "late_rank": waits.late_rank(rank) if waits and known else None,
    }


def collective_record(job: str, step: int, each: Collective) -> CollectiveRecord:
    return CollectiveRecord(
        job=job,
        step=step,
        op=each.op,
        group=each.group,
        bytes=each.bytes,
        start_ns=each.first_start_ns,
        last_start_ns=each.last_start_ns,
        end_ns=each.last_end_ns,
        ranks=list(each.ranks),
        wait_ns=[each.wait_ns(rank) for rank in each.ranks],
        transfer_ns=[each.transfer_ns(rank) for rank in each.ranks],
        late_rank=each.late_rank,
        least_transfer_ns=None if each.not_attributed else each.least_transfer_ns,
        residual_ns=each.residual_ns,
        clock_error_ns=each.clock_error_ns,
        bus_bandwidth_bytes_per_s=each.bus_bandwidth,
        not_attributed=each.not_attributed or None,
    )


def device_record(job: str, view: RankView, sample: DeviceSample | None) -> DeviceRecord:
    """Return the record of the devices that one rank uses. `sample` is the rank's, or None if nothing
    samples it: a rank without a GPU still has its CPUs.
    """
    device, numa = view.device, view.numa
    # Traffic accounted to collectives is known only for now, not for each sample of a hub's history.
    traffic = view.traffic if sample is view.sample else None
    fields = {
        **dict.fromkeys(DeviceRecord.__struct_fields__),
        **shared(DeviceRecord, numa),
        **shared(DeviceRecord, device),
        **shared(DeviceRecord, sample),
        **shared(DeviceRecord, traffic),
        "collectives_over": traffic.over if traffic else None,
        "job": job,
        "rank": view.rank,
        "gpu_uuid": (device.gpu_uuid or None) if device else None,
    }
    if numa is not None:
        fields |= {
            "numa_node": numa.gpu_node,
            "numa_state": numa.state,
            "cpu_set": numa.cpu_set or None,
            "cpu_nodes": [share.node for share in numa.cpu_nodes] if numa.cpu_set else None,
            "memory_policy": numa.memory_policy or None,
            "nic": numa.nic or None,
        }
    if view.nic_traffic is not None and sample is view.sample:
        fields["nic_collectives_rx_bytes_per_s"] = view.nic_traffic.collectives_rx_bytes_per_s
        fields["nic_collectives_tx_bytes_per_s"] = view.nic_traffic.collectives_tx_bytes_per_s
    nic, errors = view.nic, device.nic_errors if device else None
    fields["nic_peak_bytes_per_s"] = nic.bits_per_s // 8 if nic and nic.bits_per_s else None
    fields["nic_errors"] = {each.counter: each.count for each in errors} if errors is not None else None
    return DeviceRecord(**fields)


def cost_record(job: str, cost: OwnCost) -> CostRecord:
    return CostRecord(job=job, **shared(CostRecord, cost))


def notice_record(job: str, notice: Notice) -> NoticeRecord:
    return NoticeRecord(job=job, **shared(NoticeRecord, notice))


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
    fields: dict[str, Any] = {**shared(TraceRankRecord, whole), **_waits(rank, waits), "rank": rank}
    return TraceRankRecord(compute_exact=compute_exact, **fields)
