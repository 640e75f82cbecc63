"""Ask every rule."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from overlaptop.findings import rules
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import OPPOSITES, Finding
from overlaptop.findings.gains import host_bound

RULES = {each.name: import_module(f"{rules.__name__}.{each.name}") for each in iter_modules(rules.__path__)}
"""By name: each file of the folder is one."""
MENDS_HOST = (
    "data_loading", "garbage_collection", "launch_bound", "own_cost", "short_cpus", "stalled_hosts",
    "unused_parameters",
)  # fmt: skip
"""Rules whose advice makes hosts quicker."""


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """Return what the rules find: what wins most first, what wins nothing not at all. Nothing that GPUs do
    is worth mending while a host needs the whole step.
    """
    every = [
        replace(each, rule=name)
        for name, rule in RULES.items()
        for each in rule.look(evidence)
        if each.gain_ns is None
        or name == "slack"
        or (each.gain_ns and (each.why_late or name in MENDS_HOST or not host_bound(evidence)))
    ]
    every.sort(key=lambda each: (-(each.gain_ns or -1), each.rule, each.ranks))
    found: list[Finding] = []
    for each in every:
        if OPPOSITES.get(each.rule) not in {other.rule for other in found}:
            found.append(each)
    return tuple(found)
