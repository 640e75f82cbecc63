"""DDP has many small buckets whose all-reduces are bound by latency, not by bandwidth."""

from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.buckets import advice, buckets_of
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.models.buckets import MIB

MOSTLY = 0.5


def look(evidence: Evidence) -> Iterable[Finding]:
    found = buckets_of(evidence)
    link = found.link() if found is not None else None
    if found is None or link is None:
        return
    now, best = found.now(link), found.best(link)
    latency_ns = now.count * link.alpha_ns
    gain_ns = found.mean.gain_ns(now.exposed_ns - best.exposed_ns)
    if best.cap_bytes <= now.cap_bytes or latency_ns < MOSTLY * now.comm_ns:
        return
    if found.mean.is_little(gain_ns):
        return
    yield Finding(
        title=f"buckets of {found.cap_mib} MiB are too small: larger ones can save "
        f"{text.duration(gain_ns)} a step",
        measured=f"{len(found.reduced)} all-reduces a step have a latency of "
        f"{text.duration(link.alpha_ns)} each, {text.duration(latency_ns)} of "
        f"{text.duration(now.comm_ns)} in total",
        advice=advice(evidence, best.cap_bytes // MIB),
        certainty=Certainty.POSSIBLE,  # from a model, not from a trial
        gain_ns=gain_ns,
    )
