"""Ask every rule."""

from dataclasses import replace
from importlib import import_module
from math import inf
from pkgutil import iter_modules

from overlaptop.findings import rules
from overlaptop.findings.finding import OPPOSITES, Evidence, Finding
from overlaptop.findings.gains import most_by_gpus_ns, sure_gain
from overlaptop.findings.measures import cpus_are_short

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
    # `long_steps` is about other steps than usual ones.
    blamed = [each for each in every if each.why_late and each.rule != "long_steps"]
    blamed = [each for each in blamed if each.gain_ns or each.rule == "busy_cpu"]
    is_alone = len(blamed) == 1
    every = [sure_gain(evidence, each, by_change=is_alone) if each in blamed else each for each in every]
    # Other rules tell the mean of what a rank does there in some steps.
    long = {(each.ranks, each.line) for each in every if each.rule == "long_steps" and each.line}
    every = [each for each in every if each.rule == "long_steps" or (each.ranks, each.line) not in long]
    every.sort(key=lambda each: (-each.order_ns, each.rule, each.ranks))
    found: list[Finding] = []
    for each in every:
        if OPPOSITES.get(each.rule) not in {other.rule for other in found}:
            found.append(each)
    return tuple(found)
