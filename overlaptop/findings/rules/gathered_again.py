"""Backward repeats forward's all-gathers, exposed, though memory could keep the parameters.

FSDP2 frees a layer's parameters after its forward pass by default.
"""

from overlaptop import text
from overlaptop.findings.exposure import exposed_sum_ns, fsdp2_calls
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings

AGAIN = 0.5  # Smallest share of the bytes that forward gathers
SPARE = 1.1  # Required free memory, as a multiple of the needed memory


def look(evidence: Evidence) -> Findings:
    found, free_bytes = fsdp2_calls(evidence), _free_bytes(evidence)
    if found is None or free_bytes is None:
        return
    again = found.gathers("backward")
    forward, backward = (
        sum(each.bytes or 0 for each in calls) for calls in (found.gathers("forward"), again)
    )
    gain_ns = found.mean.gain_ns(exposed_sum_ns(again))
    if backward < AGAIN * max(1, forward) or found.mean.is_little(gain_ns):
        return
    ranks = len(again[0].ranks)
    on_host = evidence.most_on_a_host
    if free_bytes >= SPARE * backward:
        advice = f"fully_shard(..., reshard_after_forward=False): takes {text.byte_count(backward)} more"
    elif 1 < on_host < ranks and ranks % on_host == 0 and free_bytes >= SPARE * backward / on_host:
        advice = (
            f"fully_shard(..., reshard_after_forward={on_host}): gathers within a host, and takes "
            f"{text.byte_count(backward // on_host)} more"
        )
    else:
        return
    yield Finding(
        title=f"backward gathers {text.byte_count(backward)} again, {text.duration(gain_ns)} of it exposed",
        measured=f"{len(again)} all-gathers in backward; the GPU with least memory has "
        f"{text.byte_count(free_bytes)} free",
        advice=advice,
        certainty=Certainty.MEASURED,
        gain_ns=gain_ns,
    )


def _free_bytes(evidence: Evidence) -> int | None:
    """Return the free memory of the fullest GPU; None if that of one GPU is not known."""
    free: list[int] = []
    for view in evidence.ranks.values():
        total = view.device.memory_total_bytes if view.device is not None else None
        used = [each.memory_used_bytes for each in view.samples if each.memory_used_bytes is not None]
        if total is None or not used:
            return None
        free.append(total - max(used))
    return min(free, default=None)
