"""Timing events on one hardware connection serialise streams.

With CUDA_DEVICE_MAX_CONNECTIONS=1 and TORCH_NCCL_ENABLE_TIMING=1 the overlap fell from 93.6 % to 0 % (two
H200s, DDP; pytorch issue 143890, TransformerEngine issue 1353). Raised if both are set and nothing
overlaps.
"""

from overlaptop import text
from overlaptop.findings.exposure import exposure
from overlaptop.findings.finding import SWITCHED_ON, Certainty, Evidence, Finding, Findings


def look(evidence: Evidence) -> Findings:
    timed = frozenset(evidence.ranks_with("TORCH_NCCL_ENABLE_TIMING", *SWITCHED_ON))
    ranks = tuple(rank for rank in evidence.ranks_with("CUDA_DEVICE_MAX_CONNECTIONS", "1") if rank in timed)
    mean = exposure(evidence)
    if not ranks or mean is None or not mean.one_after_the_other:
        return
    yield Finding(
        title="timing events on one hardware connection keep compute and communication apart: "
        f"{text.duration(mean.could_be_hidden_ns)} a step could be hidden",
        measured="CUDA_DEVICE_MAX_CONNECTIONS=1 and TORCH_NCCL_ENABLE_TIMING=1 are set, and "
        f"{mean.describe}",
        advice="unset TORCH_NCCL_ENABLE_TIMING, or CUDA_DEVICE_MAX_CONNECTIONS where nothing needs it",
        certainty=Certainty.LIKELY,
        gain_ns=mean.could_be_hidden_ns,
        ranks=ranks,
    )
