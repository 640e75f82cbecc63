"""Ask every rule."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from overlaptop.findings import rules
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Finding

RULES = {each.name: import_module(f"{rules.__name__}.{each.name}") for each in iter_modules(rules.__path__)}
"""By name: each file of the folder is one."""


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """What the rules find; what costs most first, then what it costs is not known of."""
    found = [replace(each, rule=name) for name, rule in RULES.items() for each in rule.look(evidence)]
    return tuple(sorted(found, key=lambda each: (-(each.gain_ns or -1), each.rule, each.ranks)))
