"""DDP has many small buckets whose all-reduces are bound by latency, not by bandwidth."""

from overlaptop import text
from overlaptop.findings.buckets import advice, buckets_of
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings

MOSTLY = 0.5


def look(evidence: Evidence) -> Findings:
    found = buckets_of(evidence)
    if found is None or (model := found.model) is None:
        return
    count, better_mib = len(found.reduced), model.best_mib()
    fewer = model.count(better_mib)
    latency_ns = count * model.alpha_ns
    all_ns = latency_ns + model.total_bytes * model.ns_per_byte
    gain_ns = found.calls.mean.gain_ns(model.exposed_ns(count) - model.exposed_ns(fewer))
    if fewer >= count or latency_ns < MOSTLY * all_ns or found.calls.mean.is_little(gain_ns):
        return
    yield Finding(
        title=f"buckets of {found.cap_mib} MiB are too small: larger ones can save "
        f"{text.duration(gain_ns)} a step",
        measured=f"{count} all-reduces a step have a latency of {text.duration(model.alpha_ns)} each, "
        f"{text.duration(latency_ns)} of {text.duration(all_ns)} in total",
        advice=advice(evidence, better_mib),
        certainty=Certainty.POSSIBLE,  # from a model, not from a trial
        gain_ns=gain_ns,
    )
