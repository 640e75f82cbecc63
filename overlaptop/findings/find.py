"""Ask every rule."""

from dataclasses import replace
from importlib import import_module
from math import inf
from pkgutil import iter_modules

from overlaptop import text
from overlaptop.findings import rules
from overlaptop.findings.finding import OPPOSITES, Evidence, Finding
from overlaptop.findings.gains import by_change_ns, hidden_by, most_by_gpus_ns
from overlaptop.findings.measures import cpus_are_short
from overlaptop.fleet.waits import WORTH_SHARE

RULES = {each.name: import_module(f"{rules.__name__}.{each.name}") for each in iter_modules(rules.__path__)}
"""Modules by name: each file of the folder is a rule."""
MENDS_HOST = (
    "data_loading", "garbage_collection", "launch_bound", "own_cost", "short_cpus", "stalled_hosts",
    "unused_parameters",
)  # fmt: skip
"""Rules whose advice speeds up hosts."""


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the findings that gain something, largest first. A gain is at most the step, and a GPU's at
    most the time hosts leave. It is that of a usual step: measured ones take longer in some jobs.
    """
    step_ns = evidence.step_ns if evidence.steps else inf
    share = min(1.0, evidence.usual_ns / step_ns) if evidence.steps else 1.0
    known_ns = round(step_ns * share) if evidence.steps else None
    by_gpus_ns = min(step_ns, most_by_gpus_ns(evidence))
    are_short = cpus_are_short(evidence)  # others then use the time that a rank leaves
    every: list[Finding] = []
    for name, rule in RULES.items():
        for each in rule.look(evidence):
            gain_ns, of_ns = each.gain_ns, each.step_ns
            if gain_ns is not None and of_ns is None:
                most_ns = step_ns if each.why_late or name in MENDS_HOST else by_gpus_ns
                gain_ns = round(min(gain_ns, most_ns) * share)
            if are_short and each.why_late and gain_ns and name != "busy_cpu":
                gain_ns = None
            if gain_ns != 0 or name == "slack":
                every.append(replace(each, rule=name, gain_ns=gain_ns, step_ns=of_ns or known_ns))
    every = _sure_gains(evidence, every)
    # Other rules tell the mean of what a rank does there in some steps.
    long = {(each.ranks, each.line) for each in every if each.rule == "long_steps" and each.line}
    every = [each for each in every if each.rule == "long_steps" or (each.ranks, each.line) not in long]
    every.sort(key=lambda each: (-each.order_ns, each.rule, each.ranks))
    found: list[Finding] = []
    for each in every:
        if OPPOSITES.get(each.rule) not in {other.rule for other in found}:
            found.append(each)
    return tuple(found)


def _sure_gains(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """Let the finding about a late rank, if there is one, gain what the job lost when it changed. Let gains
    be unknown that varying steps hide.
    """

    def is_blamed(each: Finding) -> bool:  # `long_steps` is about other steps than usual ones
        return each.why_late and each.rule != "long_steps" and bool(each.gain_ns or each.rule == "busy_cpu")

    def sure(blamed: Finding) -> Finding:
        if longer_ns is not None:
            since = f"steps take {text.duration(longer_ns)} longer since step {evidence.first}"
            blamed = replace(blamed, measured=f"{blamed.measured}; {since}", gain_ns=round(longer_ns))
        is_little = blamed.gain_share is not None and blamed.gain_share <= WORTH_SHARE
        if blamed.gain_ns is None or is_little:  # an unknown gain would be listed before all others
            return blamed
        why = hidden_by(evidence, blamed.gain_ns, by_change=longer_ns is not None)
        measured = f"{blamed.measured}; {why}, which hides the gain"
        return replace(blamed, measured=measured, gain_ns=None) if why else blamed

    blamed = [each for each in found if is_blamed(each)]
    longer_ns = by_change_ns(evidence, blamed[0]) if len(blamed) == 1 else None
    return [sure(each) if is_blamed(each) else each for each in found]
