"""DDP searches the graph for unused parameters, on the CPU, while the GPU is idle."""

from statistics import fmean

from overlaptop import text
from overlaptop.findings.exposure import computing, phases_of, step_calls
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.report.order import all_see_gaps
from overlaptop.timeline.spans import difference, unflatten
from overlaptop.wire.messages import StepDetail

COSTLY_SHARE = 0.01


def look(evidence: Evidence) -> Findings:
    gradients, calls = evidence.gradients, step_calls(evidence)
    if gradients is None or not gradients.find_unused_parameters or gradients.static_graph:
        return
    if calls is None or not all_see_gaps(evidence.ranks.values()):
        return
    gap_ns = fmean(map(_gap_ns, calls.step.details.values()))
    if gap_ns < COSTLY_SHARE * calls.mean.step_ns:
        return
    yield Finding(
        title=f"DDP searches for unused parameters while GPUs are idle: {text.duration(gap_ns)} a step",
        measured="no compute between forward and backward; DDP was made with find_unused_parameters=True",
        advice="DistributedDataParallel(model, find_unused_parameters=False) if each pass uses all of "
        "them; static_graph=True if each uses the same ones",
        certainty=Certainty.POSSIBLE,
        gain_ns=round(gap_ns),
    )


def _gap_ns(detail: StepDetail) -> int:
    begins = [phase.start_ns for phase in phases_of(detail, "backward")]
    gaps = difference(unflatten((0, detail.step_ns)), computing(detail)).tolist()
    return sum(end - start for start, end in gaps if any(start <= at < end for at in begins))
