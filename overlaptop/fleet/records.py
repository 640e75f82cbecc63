"""Steps, devices and ranks as records of ``overlaptop --json``."""

from __future__ import annotations

from overlaptop.fleet.snapshot import RankView, Snapshot
from overlaptop.fleet.trouble import first_failure
from overlaptop.fleet.waits import StepWaits
from overlaptop.jobs.processes import signal_name
from overlaptop.text import ABOUT, AT_LEAST, AT_MOST
from overlaptop.timeline.arrivals import Collective
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import Notice, OwnCost, RankInfo, StepTotals

_STEP_TIMES = (
    "step_ns", "compute_ns", "comm_ns", "hidden_ns", "exposed_ns", "compute_only_ns", "copy_only_ns",
)  # fmt: skip
_STEP_DETAILS = (
    "launch_lead_ns", "comm_kernels_ns", "matched_ns", "captured", "link_tx_bytes", "link_rx_bytes",
    "transitional", "cpu_ns", "delayed_ns", "loading_ns", "full_collections", "fused_ns", "host_ns",
    "trial",
)  # fmt: skip
_WAIT_FIELDS = (
    "wait_ns", "transfer_ns", "unsplit_ns", "exposed_wait_ns", "exposed_transfer_ns", "late_rank",
)  # fmt: skip
_RATES = tuple(f"{link}_{way}_bytes_per_s" for link in ("nvlink", "pcie") for way in ("rx", "tx"))
_PEAKS = ("nvlink_peak_bytes_per_s", "pcie_peak_bytes_per_s")
_COLLECTIVE_RATES = ("collectives_rx_bytes_per_s", "collectives_tx_bytes_per_s")
_ACTIVITY = ("sm_activity", "tensor_activity", "dram_activity")
_CLOCKS = ("sm_clock_hz", "memory_clock_hz", "throttle_reasons")


BOUNDS = {
    "compute_ns": AT_MOST, "hidden_ns": AT_MOST, "compute_only_ns": AT_MOST, "overlap": AT_MOST,
    "exposed_ns": AT_LEAST, "exposed_wait_ns": AT_LEAST, "exposed_transfer_ns": AT_LEAST,
    "speedup": AT_MOST, "attainable": ABOUT,
}  # fmt: skip
"""What an upper bound of compute makes of the figures, in records and on screens; of all others nothing."""


def step_record(
    job: str, info: RankInfo | None, totals: StepTotals, waits: StepWaits | None = None
) -> dict[str, object]:
    """The record of one step, in the documented order of its fields. `waits`: of that step, where known.

    Times are ns, ``overlap`` is a fraction. None is "not known", and for ``overlap`` also "no
    communication". With ``compute_exact`` false, compute is an upper bound: gaps between kernels are not
    seen, and so idle is not known; ``bounds`` says which figures are bounds, ≤ or ≥. Both are None until
    the rank's RankInfo has come.
    """
    exact = info.compute_exact if info else None
    waited = _wait_fields(totals.rank, waits)
    return {
        "type": "step",
        "job": job,
        "rank": totals.rank,
        "step": totals.step,
        "source": info.source if info else None,
        **{name: getattr(totals, name) for name in _STEP_TIMES},
        "idle_ns": totals.idle_ns if exact else None,
        **{name: getattr(totals, name) for name in ("stall_ns", "overlap", "collectives", "dropped")},
        "compute_exact": exact,
        **{name: getattr(totals, name) for name in _STEP_DETAILS},
        **waited,
        "bounds": None if exact is None else _bounds(totals, waits, waited, exact=exact),
    }


def _bounds(
    totals: StepTotals, waits: StepWaits | None, waited: dict[str, object], *, exact: bool
) -> dict[str, str]:
    known = {name: getattr(totals, name, None) for name in BOUNDS} | waited
    bounds = {} if exact else dict(BOUNDS)
    times = waits.times.get(totals.rank) if waits is not None else None
    if times is not None:  # what is not split may be either
        of_all = ("wait_ns", "transfer_ns") if times.unsplit_ns else ()
        of_exposed = ("exposed_wait_ns", "exposed_transfer_ns") if times.exposed_unsplit_ns else ()
        bounds |= dict.fromkeys((*of_all, *of_exposed), AT_LEAST)
    return {name: sign for name, sign in bounds.items() if known[name] is not None}


def _wait_fields(rank: int, waits: StepWaits | None) -> dict[str, object]:
    """A rank's waiting and transferring; None where nothing of its communication is split, and of what was
    exposed where nothing of that is.
    """
    times = waits.times.get(rank) if waits is not None else None
    fields: dict[str, object] = dict.fromkeys(_WAIT_FIELDS)
    if waits is None or times is None:
        return fields
    fields["unsplit_ns"] = times.unsplit_ns
    if times.known:
        fields |= {name: getattr(times, name) for name in ("wait_ns", "transfer_ns")}
        fields["late_rank"] = waits.late_rank(rank)
    if times.exposed_known:
        fields |= {name: getattr(times, name) for name in ("exposed_wait_ns", "exposed_transfer_ns")}
    return fields


def collective_record(job: str, step: int, each: Collective) -> dict[str, object]:
    """The record of one collective on all its ranks, in the documented order of its fields.

    Times are ns, moments are Unix ns. ``wait_ns`` and ``transfer_ns`` are of the ``ranks``, one by one;
    None where they are not split, and ``unsplit`` says why.
    """
    ranks = [part.rank for part in each.parts]
    return {
        "type": "collective",
        "job": job,
        "step": step,
        "op": each.op,
        "group": each.group,
        "bytes": each.bytes,
        "start_ns": min(part.start_ns for part in each.parts),
        "last_start_ns": each.last_start_ns,
        "end_ns": max(part.end_ns for part in each.parts),
        "ranks": ranks,
        "wait_ns": [each.wait_ns(rank) for rank in ranks],
        "transfer_ns": [each.transfer_ns(rank) for rank in ranks],
        "late_rank": each.late_rank,
        "least_transfer_ns": None if each.unsplit else each.least_transfer_ns,
        "residual_ns": each.residual_ns,
        "clock_error_ns": each.clock_error_ns,
        "bus_bandwidth_bytes_per_s": each.bus_bandwidth,
        "unsplit": each.unsplit or None,
    }


def device_record(job: str, view: RankView, sample: DeviceSample | None) -> dict[str, object]:
    """The record of what is under one rank, in the documented order of its fields. None is "not known".

    `sample` is the rank's, or None where nothing samples: a rank without a GPU still has its CPUs. Rates
    and peaks are of one direction; rx is what the GPU receives.
    """
    device, numa = view.device, view.numa
    # What the collectives account for is known for now, and not for each sample of a hub's history.
    traffic = view.traffic if sample is view.sample else None
    return {
        "type": "device",
        "job": job,
        "rank": view.rank,
        "at_ns": sample.at_ns if sample else None,
        "gpu_uuid": (device.gpu_uuid or None) if device else None,
        **{name: getattr(sample, name, None) for name in _RATES},
        **{name: getattr(device, name, None) for name in _PEAKS},
        "collectives_over": traffic.over if traffic else None,
        **{name: getattr(traffic, name, None) for name in _COLLECTIVE_RATES},
        **{name: getattr(sample, name, None) for name in (*_ACTIVITY, "memory_used_bytes")},
        "memory_total_bytes": device.memory_total_bytes if device else None,
        "power_mw": sample.power_mw if sample else None,
        "power_limit_mw": device.power_limit_mw if device else None,
        **{name: getattr(sample, name, None) for name in _CLOCKS},
        "numa_node": numa.gpu_node if numa else None,
        "numa_state": numa.state if numa else None,
        "cpu_set": (numa.cpu_set or None) if numa else None,
        "cpu_nodes": [share.node for share in numa.cpu_nodes] if numa and numa.cpu_set else None,
        "memory_policy": (numa.memory_policy or None) if numa else None,
        "nic": (numa.nic or None) if numa else None,
        "nic_node": numa.nic_node if numa else None,
    }


_COST_FIELDS = ("change", "error", "measured_change", "measured_error", "watched")


def cost_record(job: str, cost: OwnCost) -> dict[str, object]:
    """What one rank's agent costs, in the documented order of its fields."""
    return {
        "type": "cost",
        "job": job,
        "rank": cost.rank,
        **{name: getattr(cost, name) for name in _COST_FIELDS},
    }


def notice_record(job: str, notice: Notice) -> dict[str, object]:
    """The record of a process that is not shown, in the documented order of its fields."""
    return {
        "type": "notice", "job": job, "rank": notice.rank, "at_ns": notice.at_ns, "level": notice.level,
        "text": notice.text,
    }  # fmt: skip


def end_records(snapshot: Snapshot) -> list[dict[str, object]]:
    """A record for each rank that has ended, in the documented order of its fields."""
    first = first_failure(snapshot.ranks)
    return [
        {
            "type": "end",
            "job": snapshot.job.job if snapshot.job else "",
            "rank": end.rank,
            "at_ns": end.at_ns,
            "failed": end.failed,
            "first": first is not None and end.rank in first.ranks,
            "exit_status": code if code is not None and code >= 0 else None,
            "signal": signal_name(code) or None,
            "failure": end.failure or None,
        }
        for end in (view.end for view in snapshot.ranks if view.end is not None)
        for code in (end.exit_code,)
    ]


def rank_record(
    rank: int, whole: StepTotals, waits: StepWaits | None = None, *, compute_exact: bool
) -> dict[str, object]:
    """The record of one rank's whole trace, in the documented order of its fields.

    Times are ns, ``overlap`` is a fraction, None without communication. ``compute_exact`` as in a step's.
    """
    names = (
        "overlap", "comm_ns", "hidden_ns", "exposed_ns", "compute_ns", "copy_only_ns", "idle_ns",
        "fused_ns",
    )  # fmt: skip
    values = {name: getattr(whole, name) for name in names}
    fields = _wait_fields(rank, waits)
    return {"type": "rank", "rank": rank, **values, "compute_exact": compute_exact, **fields}
