"""All hosts spend long at one script line while their GPUs have nothing to compute."""

from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import late_ranks
from overlaptop.findings.stalls import stalled


def look(evidence: Evidence) -> Iterable[Finding]:
    stall = stalled(evidence)
    if stall is None or late_ranks(evidence):
        return
    yield Finding(
        title=f"GPUs have nothing to compute for the first {text.duration(stall.lost_ns)} of each step",
        measured=f"{text.percent(stall.lost_ns / evidence.step_ns)} of the step go by before the first "
        f"kernel; {stall.line.line}: {text.whole_percent(stall.line.share)} of each rank's step",
        advice=f"look at {stall.line.place}: run it less often, or beside the GPU's work",
        certainty=Certainty.POSSIBLE,
        gain_ns=round(stall.lost_ns),
        line=stall.line.line,
    )
