"""FSDP2 runs on one hardware queue: its gathers wait for compute, and compute for gathers.

CUDA_DEVICE_MAX_CONNECTIONS=1 orders the launches of all streams. Megatron's tensor parallelism needs it.
FSDP2 gathers and reduces on streams of its own, which it serialises with compute.
"""

from overlaptop import text
from overlaptop.findings.exposure import exposure
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.findings.rules import timing_events


def look(evidence: Evidence) -> Findings:
    ranks = evidence.ranks_with("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    mean = exposure(evidence)
    if not ranks or not evidence.uses_fsdp2 or mean is None or not mean.one_after_the_other:
        return
    if any(timing_events.look(evidence)):
        return
    yield Finding(
        title="FSDP2's streams share one hardware queue with compute: "
        f"{text.duration(mean.could_be_hidden_ns)} a step could be hidden",
        measured=f"CUDA_DEVICE_MAX_CONNECTIONS=1 is set, and {mean.describe}",
        advice="unset CUDA_DEVICE_MAX_CONNECTIONS; with tensor parallelism beside it, 16 to 32",
        certainty=Certainty.LIKELY,
        gain_ns=mean.could_be_hidden_ns,
        ranks=ranks,
    )
