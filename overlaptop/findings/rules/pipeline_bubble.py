"""Pipeline stages are idle while the pipeline fills and drains, as the schedule's formula has it."""

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.findings.stages import bubble, pipelines_of

LARGE = 0.15  # Smallest idle share of the step
AS_PREDICTED = 0.5, 2.0  # Limits of the predicted over the measured idle time
MORE = 4  # Advised micro-batches per stage: they leave a bubble of a fifth


def look(evidence: Evidence) -> Findings:
    for found in pipelines_of(evidence):
        share, stages = found.idle_ns / found.step_ns, len(found.compute_ns)
        least, most = AS_PREDICTED
        if share < LARGE or not least * share <= found.bubble <= most * share:
            continue
        more, left = MORE * stages, 0.0
        advice = (
            "an interleaved schedule (ScheduleInterleaved1F1B) with several stages a rank, or zero-bubble"
        )
        if found.micro_batches < more:
            left = bubble(stages, more)
            advice = (
                f"n_microbatches={more} leaves {text.percent(left)}, if the batch allows it; or {advice}"
            )
        yield Finding(
            title=f"a pipeline of {stages} stages is idle for {text.percent(share)} of each step",
            measured=f"{text.duration(found.idle_ns)} without compute in {text.duration(found.step_ns)}; "
            f"with {found.micro_batches} micro-batches the formula says {text.percent(found.bubble)}",
            advice=advice,
            certainty=Certainty.LIKELY,
            # The time that ranks compute stays as it is.
            gain_ns=round(min(found.idle_ns, (found.bubble - left) / (1 - left) * found.step_ns)),
            ranks=tuple(sorted(found.compute_ns)),
        )
