"""Gradients are accumulated over several micro-batches, and reduced in each."""

from overlaptop import text
from overlaptop.findings.exposure import exposed_sum_ns, step_calls
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings

MUCH = 0.25  # Smallest share of the gradients' bytes: less may be a compressed reduction


def look(evidence: Evidence) -> Findings:
    gradients, calls = evidence.gradients, step_calls(evidence)
    if calls is None or (gradients is None and not evidence.uses_fsdp2):
        return
    kind, group = ("allreduce", gradients.group) if gradients is not None else ("reducescatter", "")
    least_bytes = MUCH * sum(gradients.size_bytes) if gradients is not None else 0
    sent = calls.bytes_by_backward(kind, group)
    count, reduced = len(sent), calls.of(kind, group=group, phase="backward")
    if count < 2 or len(set(sent)) > 1 or sent[0] < max(1, least_bytes):
        return
    saved_ns = exposed_sum_ns(each for each in reduced if each.nth < count - 1)
    gain_ns = calls.mean.gain_ns(saved_ns)
    if calls.mean.is_little(gain_ns):
        return
    yield Finding(
        title=f"gradients are reduced in each of {count} micro-batches: {text.duration(gain_ns)} a step "
        "for nothing",
        measured=f"{count} backward passes a step, {text.byte_count(sent[0])} reduced in each; "
        f"{text.duration(saved_ns)} of all but the last is exposed",
        advice="with model.no_sync(): around forward and backward of all micro-batches but the last"
        if gradients is not None
        else "model.set_requires_gradient_sync(False) before all micro-batches but the last, True before "
        "it; whole gradients stay in memory meanwhile",
        certainty=Certainty.MEASURED,
        gain_ns=gain_ns,
    )
