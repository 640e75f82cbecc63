"""Waiting slows compute: NCCL's kernels use SMs and memory bandwidth while they wait.

A late rank then costs more than the exposed wait.
"""

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.findings.late import late_ranks
from overlaptop.fleet.waits import WORTH_SHARE


def look(evidence: Evidence) -> Findings:
    for late in late_ranks(evidence):
        slows_ns, beside_ns = late.slowed_ns
        if not slows_ns or slows_ns < WORTH_SHARE * evidence.step_ns:
            continue
        yield Finding(
            title=f"compute takes {text.duration(slows_ns)} a step longer beside waiting for rank "
            f"{late.rank} than on rank {late.rank}",
            measured=f"of {text.named_ranks(late.others)}, with communication beside compute for "
            f"{text.duration(beside_ns)} a step longer; NCCL holds SMs while it waits",
            advice="fixing the wait fixes this, too; NCCL_MAX_CTAS=8 uses fewer SMs, and may make "
            "transfers longer: compare step times",
            certainty=Certainty.POSSIBLE,
            ranks=late.others,
        )
