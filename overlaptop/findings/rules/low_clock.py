"""The SM clock of a late rank's GPU is lower than the others': power or heat."""

from collections import Counter
from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import Cause, clock_share, late_by
from overlaptop.findings.measures import computing_ns


def look(evidence: Evidence) -> Iterable[Finding]:
    for late in late_by(evidence, Cause.LOW_CLOCK):
        share = clock_share(evidence, late.rank, late.others)
        samples = evidence.ranks[late.rank].samples
        reasons = Counter(reason for sample in samples for reason in sample.throttle_reasons or ())
        why = f", reduced by {', '.join(sorted(reasons))}" if reasons else ""
        longer_ns = late.excess_ns(computing_ns)
        yield late.finding(
            f"'s GPU runs at {text.whole_percent(share)} of {late.whose} clock",
            longer_ns,
            "nvidia-smi -q -d POWER,TEMPERATURE,PERFORMANCE shows which limit it hits; look at its "
            "cooling, raise its power limit, or take another GPU",
            Certainty.MEASURED if reasons else Certainty.LIKELY,
            f"it computes {text.duration(longer_ns)} a step longer{why}",
        )
