"""Communication takes longer than compute, so that no overlap can hide it.

Perfect overlap hides as much as there is compute, so ``transfer - compute`` stays exposed. Not raised if
ranks wait for CPUs, which may move the bytes: then transfer gets shorter with more CPUs.
"""

from math import ceil

from overlaptop import text
from overlaptop.findings.exposure import exposure, step_calls
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.findings.measures import cpus_explain

SMALL_BYTES = 256 << 10
MANY = 16
MOST_MICRO_STEPS = 64  # Largest plausible number of accumulation steps


def look(evidence: Evidence) -> Findings:
    mean = exposure(evidence)
    if mean is None or not mean.costly or cpus_explain(evidence, mean.exposed_transfer_ns):
        return
    left_ns = mean.gain_ns(mean.transfer_ns - mean.compute_ns)
    if left_ns <= 0 or mean.is_little(left_ns):
        return
    yield Finding(
        title=f"bytes move for {text.duration(mean.transfer_ns)} a step, compute takes "
        f"{text.duration(mean.compute_ns)}: overlap alone leaves {text.duration(left_ns)} exposed",
        measured=f"transfer is {text.percent(mean.transfer_ns / mean.step_ns)} of the step, compute "
        f"{text.percent(mean.compute_ns / mean.step_ns)}",
        advice=_advice(evidence, mean.transfer_ns / mean.compute_ns if mean.compute_ns else None),
        certainty=Certainty.MEASURED,
        gain_ns=left_ns,
    )


def _advice(evidence: Evidence, micro_steps: float | None) -> str:
    count = "more" if micro_steps is None or micro_steps > MOST_MICRO_STEPS else str(ceil(micro_steps))
    if evidence.gradients is not None:
        return (
            f"accumulate gradients over {count} micro-batches, all but the last in model.no_sync(); or a "
            "larger batch; or halve the bytes of fp32 gradients: model.register_comm_hook(None, "
            "torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook)"
        )
    if evidence.uses_fsdp2:
        return (
            f"a larger micro-batch; or, if memory holds whole gradients, accumulate over {count} with "
            "model.set_requires_gradient_sync(False) in all but the last; or shard within a host only: "
            "fully_shard(..., mesh=) with a mesh of hosts by GPUs"
        )
    calls = step_calls(evidence)
    issued = calls.issued if calls is not None else ()
    small = sum((each.bytes or SMALL_BYTES) < SMALL_BYTES for each in issued)
    if small >= MANY and 2 * small > len(issued):
        return (
            f"{small} of {len(issued)} collectives move less than {text.byte_count(SMALL_BYTES)} each, and "
            "are bound by latency: send them together as one flat buffer"
        )
    return "a larger batch, accumulation of gradients, or fewer bytes: a smaller type, or less sharding"
