"""FSDP2's all-gathers are exposed in layer after layer although there is compute to hide them.

The first gather of a pass has nothing to hide behind, and is not counted. If a gather takes longer than a
layer computes, no prefetch depth helps: the stream is never idle, so it never gets ahead. With depth d, the
all-gather of layer i + d is issued when layer i begins to compute, so the slowest one may take d layers.
"""

from statistics import median

from overlaptop import text
from overlaptop.findings.exposure import StepCalls, exposed_sum_ns, fsdp2_calls
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.wire.knobs import PREFETCH

EXPOSED = 0.25  # Smallest exposed share of a gather's transfer
MOSTLY = 0.6
FEWEST = 3  # Fewest gathers after the first


def look(evidence: Evidence) -> Findings:
    found = fsdp2_calls(evidence)
    for which, name in PREFETCH.items() if found is not None else ():
        knob = evidence.knob(name)
        if found is not None and knob is not None and not knob.refusal:
            yield from _of_pass(evidence, found, which, name, knob.value or 0)


def _of_pass(evidence: Evidence, found: StepCalls, which: str, name: str, present: int) -> Findings:
    gathers = found.gathers(which)
    layer_ns, behind = round(found.compute_ns(which) / max(1, len(gathers))), gathers[1:]
    if len(behind) < FEWEST or not layer_ns:
        return
    exposed = [each for each in behind if each.exposed_transfer_ns >= EXPOSED * each.least_transfer_ns]
    gain_ns = found.mean.gain_ns(exposed_sum_ns(exposed))
    if len(exposed) < MOSTLY * len(behind) or found.mean.is_little(gain_ns):
        return
    usual_ns = round(median(each.least_transfer_ns for each in gathers))
    depth = -(-max(each.least_transfer_ns for each in gathers) // layer_ns)
    if not 0 < usual_ns < layer_ns or depth <= present:
        return
    memory = text.byte_count(depth * max(each.bytes or 0 for each in gathers))
    yield Finding(
        title=f"all-gathers in {which} are exposed at {len(exposed)} of {len(gathers)} layers: "
        f"{text.duration(gain_ns)} a step",
        measured=f"a gather takes {text.duration(usual_ns)}, a layer computes for "
        f"{text.duration(layer_ns)}; {name} is {present}",
        advice=f"set_modules_to_{which}_prefetch() with the next {text.plural(depth, 'module')} in each, "
        f"which takes up to {memory} of memory{evidence.try_now(name, depth)}",
        certainty=Certainty.LIKELY,
        gain_ns=gain_ns,
    )
