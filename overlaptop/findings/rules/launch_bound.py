"""The CPU cannot launch kernels as fast as the GPU runs them, on a late rank or on each rank."""

from statistics import median

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.findings.late import Cause, late_ranks, suspects
from overlaptop.findings.measures import is_launch_bound, short_pauses_ns

ADVICE = (
    "launch less: torch.compile (mode='reduce-overhead' for CUDA graphs), a fused optimizer, a larger "
    "micro-batch"
)


def look(evidence: Evidence) -> Findings:
    for each in suspects(evidence, Cause.LAUNCHING):
        yield each.finding(
            f" is launch-bound: GPU idle {each.longer} than {each.whose}",
            f"top shows what else runs on its CPUs; {ADVICE}",
            Certainty.LIKELY,
        )
    if late_ranks(evidence) or not evidence.steps:
        return
    if not all(is_launch_bound(evidence, rank) for rank in evidence.ranks):
        return
    idles_ns = [short_pauses_ns(evidence, rank) for rank in evidence.ranks]
    leads = [each.launch_lead_ns for step in evidence.steps for each in step.totals.values()]
    lead_ns = median(lead for lead in leads if lead is not None)
    yield Finding(
        title=f"the CPU launches too slowly: GPUs are idle {text.duration(median(idles_ns))} a step",
        measured=f"it is {text.duration(lead_ns)} ahead of the GPU when a step ends, in the median",
        advice=ADVICE,
        certainty=Certainty.LIKELY,
        gain_ns=round(min(idles_ns)),
    )
