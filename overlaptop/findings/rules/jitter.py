"""Ranks wait more than they transfer, and the late rank changes: jitter without a single culprit.

Not raised for waits in receives: in a pipeline the late rank changes as stages pass work on.
"""

from overlaptop import text
from overlaptop.findings.finding import VAGUE_STEPS, Certainty, Evidence, Finding, Findings
from overlaptop.findings.late import named_late, slow_host
from overlaptop.findings.rules.uneven_batches import late_by_compute

JITTER_SHARE = 0.2
"""Smallest exposed wait as a share of the step. Every job has some jitter, more if ranks share CPUs."""


def look(evidence: Evidence) -> Findings:
    window = evidence.window
    if window is None or window.steps < VAGUE_STEPS or window.share < JITTER_SHARE or named_late(evidence):
        return
    # A rank's counters may say why ranks wait.
    if window.in_receives or late_by_compute(evidence) or slow_host(evidence):
        return
    times = [each for step in evidence.steps if step.waits for each in step.waits.times.values()]
    if sum(each.exposed_wait_ns for each in times) <= sum(each.exposed_transfer_ns for each in times):
        return
    most = window.lateness.first
    yield Finding(
        title=f"the late rank changes, and a rank waits {evidence.wait_text} a step",
        measured=f"waiting is {text.percent(window.share)} of the step; rank {most.rank} is late most "
        f"often, in {most.late_count} of {most.collectives} collectives",
        advice="look for occasional delays: garbage collection, data loading, processes on "
        "the same CPUs (top), clocks; bind ranks to CPUs of their own",
        certainty=Certainty.POSSIBLE,
        gain_ns=evidence.most_wait_ns,
    )
