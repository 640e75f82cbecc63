"""The same collectives take longer than they did before: a link has become slow, or others use it now.

Steps are taken in stretches of eight. What is usual is what the three fastest stretches took; the newest
one is slow if nearly all its steps took longer than nearly all of those. Where ranks have no GPU and wait
for CPUs, nothing is said: these move the bytes, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import median

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.exposure import exposure
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import cpu_delay_ns

SLOWER = 1.5
STRETCH = 8
"""Steps."""
FASTEST = 3
"""Stretches."""
CPU_SHARE = 0.25
"""Of what transfers take longer: from this on it may be that CPUs are busy."""


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for the job, or none."""
    mean, kept = exposure(evidence), evidence.transfers
    if mean is None or not mean.costly or not kept:
        return
    newest = kept[-1]
    alike = [each for each in kept if (each.collectives, each.bytes) == (newest.collectives, newest.bytes)]
    stretches = _stretches([each.transfer_ns for each in alike])
    if len(stretches) <= FASTEST:
        return
    *earlier, recent = stretches
    fastest = sorted(earlier, key=median)[:FASTEST]
    usual = sorted(chain.from_iterable(fastest))
    usual_ns, recent_ns = median(usual), median(recent)
    if recent_ns < SLOWER * usual_ns or sorted(recent)[1] <= usual[-FASTEST]:
        return
    if cpu_delay_ns(evidence) > CPU_SHARE * (recent_ns - usual_ns):
        return
    seconds = (newest.start_ns - alike[0].start_ns) / 1e9
    yield Finding(
        title=f"transferring takes {text.duration(round(recent_ns))} a step, before it took "
        f"{text.duration(round(usual_ns))}",
        measured=f"the last {STRETCH} steps, and the fastest {len(usual)} of the last {seconds:.0f} s; "
        f"each moves {text.byte_count(newest.bytes)} in {text.plural(newest.collectives, 'collective')}",
        advice="a link has become slow, or something else uses it: nvidia-smi nvlink --errorcounters, "
        "ethtool -S and other jobs on these hosts and their network tell which",
        certainty=Certainty.POSSIBLE,
        gain_ns=round(mean.exposed_transfer_ns * (1 - usual_ns / recent_ns)),
    )


def _stretches(times_ns: Sequence[float]) -> list[Sequence[float]]:
    """Oldest first, and counted from the newest step on: what is left over is of the oldest ones."""
    return [times_ns[at : at + STRETCH] for at in range(len(times_ns) % STRETCH, len(times_ns), STRETCH)]
