"""The SM clock of a late rank's GPU is lower than the others': power or heat."""

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Findings
from overlaptop.findings.late import Cause, clock_share, suspects


def look(evidence: Evidence) -> Findings:
    for late in suspects(evidence, Cause.LOW_CLOCK):
        share = clock_share(evidence, late.rank, late.others)
        samples = evidence.ranks[late.rank].samples
        reasons = sorted({reason for sample in samples for reason in sample.throttle_reasons or ()})
        why = f", reduced by {', '.join(reasons)}" if reasons else ""
        yield late.finding(
            f"'s GPU runs at {text.whole_percent(share)} of {late.whose} clock",
            "nvidia-smi -q -d POWER,TEMPERATURE,PERFORMANCE shows which limit it hits; look at its "
            "cooling, raise its power limit, or take another GPU",
            Certainty.MEASURED if reasons else Certainty.LIKELY,
            f"it computes {late.longer}{why}",
        )
