"""All hosts spend long at one script line while their GPUs have nothing to compute."""

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.findings.late import late_ranks
from overlaptop.findings.measures import before_work_ns, stalled_at


def look(evidence: Evidence) -> Findings:
    line, lost_ns = stalled_at(evidence), before_work_ns(evidence)
    if line is None or late_ranks(evidence):
        return
    yield Finding(
        title=f"GPUs have nothing to compute for the first {text.duration(lost_ns)} of each step",
        measured=f"{text.percent(lost_ns / evidence.step_ns)} of the step go by before the first kernel; "
        f"{line.describe}",
        advice=f"look at {line.place}: run it less often, or beside the GPU's work",
        certainty=Certainty.POSSIBLE,
        gain_ns=round(lost_ns),
        line=line.line,
    )
