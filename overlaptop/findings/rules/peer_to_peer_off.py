"""GPUs are told not to copy to each other directly, and transferring is exposed.

NCCL_P2P_DISABLE=1 makes NCCL go through the host's memory even where there are NVLinks, NCCL_SHM_DISABLE=1
through the network where GPUs do not reach each other. Both are left over from a workaround more often than
they are needed.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop.findings.evidence import Evidence
from overlaptop.findings.exposure import exposure
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.settings import ranks_with

INSTEAD = {"NCCL_P2P_DISABLE": "the memory of the host", "NCCL_SHM_DISABLE": "the network"}


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for each of these variables; on one rank alone nothing would change."""
    mean = exposure(evidence)
    if mean is None or not mean.costly:
        return
    for variable, instead in INSTEAD.items():
        ranks = ranks_with(evidence, variable, "1")
        if len(ranks) < 2:
            continue
        yield Finding(
            title=f"{variable}=1 sends what goes between GPUs through {instead}",
            measured=mean.in_words,
            advice=f"unset {variable}, unless it is there for a fault of this machine",
            certainty=Certainty.POSSIBLE,
            gain_ns=round(mean.exposed_transfer_ns),
            ranks=ranks,
        )
