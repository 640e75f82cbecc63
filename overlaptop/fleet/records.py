"""Steps, devices and ranks as records of ``overlaptop --json``."""

from __future__ import annotations

from overlaptop.fleet.snapshot import RankView
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import RankInfo, StepTotals


def step_record(job: str, info: RankInfo | None, totals: StepTotals) -> dict[str, object]:
    """The record of one step, in the documented order of its fields.

    Times are ns, ``overlap`` is a fraction. None is "not known", and for ``overlap`` also "no
    communication". With ``compute_exact`` false, compute is an upper bound: gaps between kernels are not
    seen, and so idle is not known. ``compute_exact`` is None until the rank's RankInfo has come.
    """
    exact = info.compute_exact if info else None
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
        "idle_ns": totals.idle_ns if exact else None,
        "stall_ns": totals.stall_ns,
        "overlap": totals.overlap,
        "collectives": totals.collectives,
        "dropped": totals.dropped,
        "compute_exact": exact,
        "launch_lead_ns": totals.launch_lead_ns,
        "comm_kernels_ns": totals.comm_kernels_ns,
        "matched_ns": totals.matched_ns,
        "captured": totals.captured,
        "link_tx_bytes": totals.link_tx_bytes,
        "link_rx_bytes": totals.link_rx_bytes,
        "transitional": totals.transitional,
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
        "nvlink_rx_bytes_per_s": sample.nvlink_rx_bytes_per_s if sample else None,
        "nvlink_tx_bytes_per_s": sample.nvlink_tx_bytes_per_s if sample else None,
        "pcie_rx_bytes_per_s": sample.pcie_rx_bytes_per_s if sample else None,
        "pcie_tx_bytes_per_s": sample.pcie_tx_bytes_per_s if sample else None,
        "nvlink_peak_bytes_per_s": device.nvlink_peak_bytes_per_s if device else None,
        "pcie_peak_bytes_per_s": device.pcie_peak_bytes_per_s if device else None,
        "collectives_over": traffic.over if traffic else None,
        "collectives_rx_bytes_per_s": traffic.collectives_rx_bytes_per_s if traffic else None,
        "collectives_tx_bytes_per_s": traffic.collectives_tx_bytes_per_s if traffic else None,
        "sm_activity": sample.sm_activity if sample else None,
        "tensor_activity": sample.tensor_activity if sample else None,
        "dram_activity": sample.dram_activity if sample else None,
        "memory_used_bytes": sample.memory_used_bytes if sample else None,
        "memory_total_bytes": device.memory_total_bytes if device else None,
        "power_mw": sample.power_mw if sample else None,
        "power_limit_mw": device.power_limit_mw if device else None,
        "sm_clock_hz": sample.sm_clock_hz if sample else None,
        "memory_clock_hz": sample.memory_clock_hz if sample else None,
        "throttle_reasons": sample.throttle_reasons if sample else None,
        "numa_node": numa.gpu_node if numa else None,
        "numa_state": numa.state if numa else None,
        "cpu_set": (numa.cpu_set or None) if numa else None,
        "cpu_nodes": [share.node for share in numa.cpu_nodes] if numa and numa.cpu_set else None,
        "memory_policy": (numa.memory_policy or None) if numa else None,
        "nic": (numa.nic or None) if numa else None,
        "nic_node": numa.nic_node if numa else None,
    }


def rank_record(rank: int, whole: StepTotals, *, compute_exact: bool) -> dict[str, object]:
    """The record of one rank's whole trace, in the documented order of its fields.

    Times are ns, ``overlap`` is a fraction, None without communication. ``compute_exact`` as in a step's.
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
        "compute_exact": compute_exact,
    }
