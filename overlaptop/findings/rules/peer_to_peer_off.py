"""Direct copies between GPUs are disabled, and transfer is exposed.

NCCL_P2P_DISABLE=1 makes NCCL use host memory even beside NVLinks. NCCL_SHM_DISABLE=1 makes it use the
network between GPUs without peer access. Both are often left over from a workaround.
"""

from overlaptop.findings.exposure import exposure
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings

INSTEAD = {"NCCL_P2P_DISABLE": "the memory of the host", "NCCL_SHM_DISABLE": "the network"}


def look(evidence: Evidence) -> Findings:
    mean = exposure(evidence)
    if mean is None or not mean.costly:
        return
    for variable, instead in INSTEAD.items():
        ranks = evidence.ranks_with(variable, "1")
        if len(ranks) < 2:
            continue
        yield Finding(
            title=f"{variable}=1 sends traffic between GPUs through {instead}",
            measured=mean.describe,
            advice=f"unset {variable}, unless it works around a fault of this machine",
            certainty=Certainty.POSSIBLE,
            gain_ns=round(mean.exposed_transfer_ns),
            ranks=ranks,
        )
