"""DDP's first all-reduce begins late in backward, and the link is idle until then.

DDP fills its buckets in the order in which gradients became ready in the first step. A huge or late
gradient among the first ones delays its bucket and all later ones.
"""

from bisect import bisect_left
from itertools import accumulate

from overlaptop import text
from overlaptop.findings.buckets import buckets_of
from overlaptop.findings.exposure import phases_of
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.models.buckets import MIB, bucket_sizes
from overlaptop.wire.knobs import GradientFacts

LATE = 0.5  # Smallest share of backward before the first all-reduce
FEWEST = 4  # Fewest buckets: with fewer the first one is late in any case


def look(evidence: Evidence) -> Findings:
    found, gradients = buckets_of(evidence), evidence.gradients
    if found is None or gradients is None or len(found.reduced) < FEWEST:
        return
    first, mean = found.reduced[0], found.calls.mean
    rank, (start_ns, _) = next(iter(first.spans.items()))
    detail = found.calls.step.details[rank]
    backward = phases_of(detail, "backward")[first.nth]
    after_ns = start_ns - detail.start_ns - backward.start_ns
    length_ns = backward.end_ns - backward.start_ns
    gain_ns = mean.gain_ns(after_ns - length_ns / len(found.reduced))
    if after_ns < LATE * length_ns or mean.is_little(gain_ns):
        return
    size_bytes = bucket_sizes(gradients.size_bytes, found.cap_mib * MIB, gradients.first_cap_bytes)[0]
    inside = gradients.size_bytes[: 1 + bisect_left([*accumulate(gradients.size_bytes)], size_bytes)]
    yield Finding(
        title=f"the first bucket begins {text.duration(after_ns)} after backward, which takes "
        f"{text.duration(length_ns)}",
        measured=f"in it: {text.plural(len(inside), 'gradient')}, the largest of "
        f"{text.byte_count(max(inside))}; {text.duration(mean.exposed_transfer_ns)} of transfer "
        "is exposed a step",
        advice=_advice(gradients),
        certainty=Certainty.POSSIBLE,
        gain_ns=gain_ns,
    )


def _advice(gradients: GradientFacts) -> str:
    if gradients.find_unused_parameters and not gradients.static_graph:
        return (
            "static_graph=True if each pass uses the same parameters: buckets are then filled in the "
            "order in which gradients become ready"
        )
    if gradients.first_cap_bytes is None:
        return "DistributedDataParallel without bucket_cap_mb: its first bucket is then of 1 MiB"
    return "divide the huge layer among them, or shard it (fully_shard) rather than replicate it"
