"""The same collectives take longer than before: a link became slow, or others use it now.

Steps are compared in blocks of three. The newest blocks must be slow, and take 1.5 times as long as nine of
ten earlier blocks. A block is slow if it took 1.5 times the lower quartile, so that a slowdown becomes the
baseline after three quarters of the history. Not raised if ranks wait for CPUs, which may move the bytes.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from statistics import median_low

from overlaptop import text
from overlaptop.findings.exposure import LEAST_BYTES, exposure
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.findings.measures import cpus_explain

SLOWER = 1.5
STRETCH = 3  # Steps per block
LEAST_SLOW, LEAST_BEFORE = 3, 16  # Fewest blocks: fewer may be slow by chance
NEARLY_ALL = 0.9  # Share of the earlier blocks
KIND_STEPS = 16  # Newest steps that decide which kind of step is compared: some jobs alternate


def look(evidence: Evidence) -> Findings:
    mean = exposure(evidence)
    if mean is None or not mean.costly:
        return
    newest = Counter((each.collectives, each.bytes) for each in evidence.transfers[-KIND_STEPS:])
    kinds = [kind for kind, _ in newest.most_common(1)]
    alike = [each for each in evidence.transfers if (each.collectives, each.bytes) in kinds]
    if not alike or alike[-1].bytes < LEAST_BYTES:
        return
    starts = range(len(alike) % STRETCH, len(alike), STRETCH)  # blocks are counted from the newest step
    stretches_ns = [median_low([each.transfer_ns for each in alike[at : at + STRETCH]]) for at in starts]
    if len(stretches_ns) < LEAST_BEFORE + LEAST_SLOW:
        return
    usual_ns = _quantile(stretches_ns, 0.25)
    slow_ns = list(takewhile(lambda each: each >= SLOWER * usual_ns, reversed(stretches_ns)))
    before_ns = stretches_ns[: len(stretches_ns) - len(slow_ns)]
    if len(slow_ns) < LEAST_SLOW or len(before_ns) < LEAST_BEFORE:
        return
    recent_ns = min(slow_ns[:LEAST_SLOW])
    if recent_ns < SLOWER * _quantile(before_ns, NEARLY_ALL):
        return
    if cpus_explain(evidence, recent_ns - usual_ns):
        return
    since_s = max(0, alike[-1].start_ns - alike[-len(slow_ns) * STRETCH].start_ns) / 1e9
    yield Finding(
        title=f"transfer takes {text.duration(round(recent_ns))} a step, before it took "
        f"{text.duration(round(usual_ns))}",
        measured=f"for {since_s:.0f} s; each of these steps moves {text.byte_count(alike[-1].bytes)} in "
        f"{text.plural(alike[-1].collectives, 'collective')}",
        advice="a link has become slow, or something else uses it: nvidia-smi nvlink --errorcounters, "
        "ethtool -S and other jobs on these hosts and their network show which",
        certainty=Certainty.POSSIBLE,
        gain_ns=round(mean.exposed_transfer_ns * (1 - usual_ns / recent_ns)),
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]
