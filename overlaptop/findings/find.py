"""Ask every rule."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from overlaptop.findings import rules
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import OPPOSITES, Finding

RULES = {each.name: import_module(f"{rules.__name__}.{each.name}") for each in iter_modules(rules.__path__)}
"""By name: each file of the folder is one."""


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """What the rules find; what costs most first, then what it costs is not known of."""
    every = [replace(each, rule=name) for name, rule in RULES.items() for each in rule.look(evidence)]
    every.sort(key=lambda each: (-(each.gain_ns or -1), each.rule, each.ranks))
    found: list[Finding] = []
    for each in every:
        if OPPOSITES.get(each.rule) not in {other.rule for other in found}:
            found.append(each)
    return tuple(found)
