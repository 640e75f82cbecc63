"""Compute and communication both take long and never overlap.

The finding names what serialises them if it is known: an environment variable, or the call. It is not
raised if a rule of CAUSES names the cause.
"""

from overlaptop import text
from overlaptop.findings.exposure import AFTER, exposed_sum_ns, exposure, step_calls
from overlaptop.findings.finding import SWITCHED_ON, Certainty, Evidence, Finding, Findings
from overlaptop.findings.rules import bucket_too_large, one_queue, prefetch_too_shallow, timing_events
from overlaptop.findings.stages import pipelines_of
from overlaptop.timeline.arrivals import Collective
from overlaptop.wire.knobs import PREFETCH

CAUSES = (timing_events, one_queue, bucket_too_large, prefetch_too_shallow)
BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")


def look(evidence: Evidence) -> Findings:
    mean = exposure(evidence)
    if mean is None or not mean.one_after_the_other:
        return
    cause = None if any(any(rule.look(evidence)) for rule in CAUSES) else _cause(evidence)
    if cause is None:
        return
    advice, certainty = cause
    yield Finding(
        title="compute and communication run one after the other: "
        f"{text.duration(mean.could_be_hidden_ns)} of {text.duration(mean.step_ns)} a step could be hidden",
        measured=mean.describe,
        advice=advice,
        certainty=certainty,
        gain_ns=mean.could_be_hidden_ns,
    )


def _cause(evidence: Evidence) -> tuple[str, Certainty] | None:
    """Return advice; None: it would be of no use."""
    if evidence.ranks_with("CUDA_LAUNCH_BLOCKING", "1"):
        return "unset CUDA_LAUNCH_BLOCKING: each launch waits for the GPU", Certainty.MEASURED
    for variable in BLOCKING:
        if evidence.ranks_with(variable, *SWITCHED_ON):
            return f"unset {variable}: wait() holds up the CPU until bytes have moved", Certainty.LIKELY
    if evidence.uses_fsdp2:
        return (
            "FSDP2 hides its gathers where the CPU runs ahead: leave out .item() and synchronize() "
            "in forward and backward, or call set_modules_to_forward_prefetch()"
            f"{evidence.try_now(PREFETCH['forward'], 2)}",
            Certainty.POSSIBLE,
        )
    # DDP issues them beside backward, a schedule says when: buckets and stages have rules of their own.
    if evidence.gradients is not None or pipelines_of(evidence):
        return None
    found = step_calls(evidence)
    if found is None or not found.issued:
        return (
            "issue collectives with async_op=True, and wait() where their result is needed",
            Certainty.POSSIBLE,
        )
    by_place: dict[tuple[str, str], list[Collective]] = {}
    for each in found.issued:
        by_place.setdefault((each.kind, each.phase), []).append(each)
    costly = max(by_place.values(), key=exposed_sum_ns)
    phase = costly[0].phase
    where = f" {'' if phase.startswith(AFTER) else 'in '}{phase}" if phase else ""
    call = f"{costly[0].kind or costly[0].op}{where} ({len(costly)} a step)"
    if phase == f"{AFTER}backward" and costly[0].kind == "allreduce":
        return (
            f"{call} could begin beside backward: with "
            "DistributedDataParallel or register_post_accumulate_grad_hook",
            Certainty.LIKELY,
        )
    return (
        f"{call}: issue it with async_op=True before compute that does not need its result, and wait() "
        "behind that; where all compute needs it, split the batch in two and overlap the halves",
        Certainty.POSSIBLE,
    )
