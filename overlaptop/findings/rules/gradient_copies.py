"""DDP copies gradients out of its buckets at the end of backward, since they are not views of them."""

from statistics import fmean

from overlaptop import text
from overlaptop.findings.exposure import computing, phases_of, step_calls
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.timeline.spans import clip, difference, length_ns, unflatten, union
from overlaptop.wire.messages import StepDetail

COSTLY_SHARE = 0.01


def look(evidence: Evidence) -> Findings:
    gradients, calls = evidence.gradients, step_calls(evidence)
    if gradients is None or gradients.gradient_as_bucket_view is not False or calls is None:
        return
    copies_ns = fmean(map(_copies_alone_ns, calls.step.details.values()))
    if copies_ns < COSTLY_SHARE * calls.mean.step_ns:
        return
    yield Finding(
        title=f"gradients are copied out of their buckets: {text.duration(copies_ns)} a step",
        measured="copies with nothing beside them at backward's end; DDP was made with "
        "gradient_as_bucket_view=False",
        advice="DistributedDataParallel(model, gradient_as_bucket_view=True), which also saves "
        "as much memory as the gradients take; gradients must not be detached in place then",
        certainty=Certainty.LIKELY,
        gain_ns=round(copies_ns),
    )


def _copies_alone_ns(detail: StepDetail) -> int:
    compute = computing(detail)
    alone = difference(unflatten(detail.copy_spans_ns), union(compute, unflatten(detail.comm_spans_ns)))
    found_ns = 0
    for phase in phases_of(detail, "backward"):
        busy = clip(compute, phase.start_ns, phase.end_ns)
        last_ns = int(busy[-1, 1]) if len(busy) else phase.start_ns
        found_ns += length_ns(clip(alone, last_ns, phase.end_ns))
    return found_ns
