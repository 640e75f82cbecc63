"""Waiting beside compute is not free: NCCL's kernels hold SMs and memory while they wait.

Raised where a rank is late clearly, and the others compute WORTH_SHARE of the step longer than it does, by
no more than the time for which they have more communication beside that. A late rank then costs more than
what is exposed of the waiting.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import late_ranks
from overlaptop.fleet.waits import WORTH_SHARE


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for each late rank."""
    for late in late_ranks(evidence):
        if not late.slows_ns or late.slows_ns < WORTH_SHARE * evidence.step_ns:
            continue
        yield Finding(
            title=f"compute takes {text.duration(late.slows_ns)} a step longer beside waiting for rank "
            f"{late.rank} than on rank {late.rank}",
            measured=f"of {text.named_ranks(late.others)}, with communication beside compute for "
            f"{text.duration(late.beside_ns)} a step longer; NCCL holds SMs while it waits",
            advice="what ends the waiting ends this, too; NCCL_MAX_CTAS=8 holds fewer SMs, and may make "
            "transfers longer: compare step times",
            certainty=Certainty.POSSIBLE,
            ranks=late.others,
        )
