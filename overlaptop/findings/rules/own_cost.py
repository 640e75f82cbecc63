"""overlaptop itself makes steps longer.

Raised where the measured change of the mean step, less ERRORS times its error, is COSTLY_SHARE or more. It
is measured on the job itself, by its unmeasured steps.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.fleet.totals import middle_cost
from overlaptop.report.figures import LOWER_COST, cost_in_brief

COSTLY_SHARE = 0.02
"""Twice what the agent may spend while somebody looks."""
ERRORS = 2
"""The error is that of one look. Rules look for as long as the job runs, and one look in forty would find
more than there is."""


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for the job, or none."""
    middle = middle_cost(evidence.ranks.values())
    if middle is None or not evidence.steps or middle.change - ERRORS * middle.error < COSTLY_SHARE:
        return
    yield Finding(
        title=f"overlaptop makes steps {cost_in_brief(middle)} longer",
        measured="measured steps of this job against its unmeasured ones",
        advice=LOWER_COST,
        certainty=Certainty.MEASURED,
        gain_ns=round(evidence.step_ns * middle.change / (1 + middle.change)),
    )
