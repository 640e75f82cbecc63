"""Collectives between hosts are far slower than those within a host, and are exposed.

The baseline are collectives within a host, else the peak rate of its GPUs' NVLinks.
"""

from collections.abc import Iterable
from statistics import median

from overlaptop import text
from overlaptop.findings.exposure import LEAST_BYTES, exposed_sum_ns, step_calls
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.timeline.arrivals import Collective
from overlaptop.wire.knobs import BUCKET_CAP_MB

FAR_BELOW = 0.25


def look(evidence: Evidence) -> Findings:
    calls = step_calls(evidence)
    if calls is None or not calls.mean.costly:
        return
    issued = [(each, len(evidence.hosts_of(each))) for each in calls.issued]
    within = [each for each, hosts in issued if hosts == 1]
    between = [each for each, hosts in issued if hosts > 1]
    devices = [view.device for view in evidence.ranks.values() if view.device is not None]
    peak = min((peak for each in devices if (peak := each.nvlink_peak_bytes_per_s)), default=None)
    rate, reference = _usual_bandwidth(between), _usual_bandwidth(within) or peak
    if rate is None or reference is None or rate >= FAR_BELOW * reference:
        return
    exposed_ns = calls.mean.gain_ns(exposed_sum_ns(between))
    if calls.mean.is_little(exposed_ns):
        return
    inside = "collectives within a host move" if within else "its NVLinks can move"
    yield Finding(
        title=f"collectives between hosts move {text.rate(rate)} and cost "
        f"{text.duration(exposed_ns)} a step",
        measured=f"{inside} {text.rate(reference)}; {len(between)} of {len(calls.issued)} collectives "
        "a step go between hosts",
        advice=_advice(evidence),
        certainty=Certainty.MEASURED,
        gain_ns=round(exposed_ns * (1 - rate / reference)),
    )


def _usual_bandwidth(issued: Iterable[Collective]) -> float | None:
    rates = [
        rate
        for each in issued
        if (each.bytes or 0) >= LEAST_BYTES and (rate := each.bus_bandwidth) is not None
    ]
    return median(rates) if rates else None


def _advice(evidence: Evidence) -> str:
    if evidence.ranks_with("NCCL_IB_DISABLE", "1"):
        return "unset NCCL_IB_DISABLE if the hosts have InfiniBand or RoCE"
    if evidence.uses_fsdp2:
        return (
            "shard within a host and replicate between them: fully_shard(..., mesh="
            "init_device_mesh('cuda', (hosts, GPUs of one)))"
        )
    if evidence.gradients is not None:
        measure = "; overlaptop tune measures it" if evidence.can_set(BUCKET_CAP_MB) else ""
        larger = f"larger buckets (DDP's {BUCKET_CAP_MB}{measure})"
        return f"{larger}, or fewer reductions: accumulate with model.no_sync()"
    return "keep the groups that move most within a host; NCCL_DEBUG=INFO says over which network they go"
