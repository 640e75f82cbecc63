"""DDP's last bucket is too large: little of backward is left to hide its all-reduce.

The advised size comes from the model of `findings/buckets.py` if the all-reduces reveal their latency, else
it is half the present size.
"""

from overlaptop import text
from overlaptop.findings.buckets import Buckets, advice, buckets_of
from overlaptop.findings.exposure import exposed_sum_ns
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.models.buckets import MIB

MOSTLY = 0.7  # Smallest share of the total exposed time


def look(evidence: Evidence) -> Findings:
    found = buckets_of(evidence)
    if found is None:
        return
    last = found.reduced[-1]
    last_mib = (last.bytes or 0) / MIB
    if last.exposed_transfer_ns < MOSTLY * exposed_sum_ns(found.reduced) or last_mib < 2:
        return
    better_mib, saved = _better(found, last_mib)
    gain_ns = round(found.calls.mean.gain_ns(last.exposed_transfer_ns) * saved)
    if better_mib >= min(found.cap_mib, last_mib) or found.calls.mean.is_little(gain_ns):
        return
    yield Finding(
        title=f"the last bucket of {last_mib:.0f} MiB is too large to hide: smaller ones can save "
        f"{text.duration(gain_ns)} a step",
        measured=f"{text.duration(last.exposed_transfer_ns)} of it is exposed, out of "
        f"{text.duration(exposed_sum_ns(found.reduced))} for all {len(found.reduced)} all-reduces",
        advice=advice(evidence, better_mib),
        certainty=Certainty.POSSIBLE,  # from a model, not from a trial
        gain_ns=gain_ns,
    )


def _better(found: Buckets, last_mib: float) -> tuple[int, float]:
    """Return a size in MiB and the share of the exposed time that it saves."""
    if (model := found.model) is None:
        return max(1, round(last_mib / 2)), 0.5
    better_mib, present_ns = model.best_mib(), model.exposed_ns(len(found.reduced))
    return better_mib, max(0.0, 1 - model.exposed_ns(model.count(better_mib)) / present_ns)
