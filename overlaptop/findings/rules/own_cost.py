"""overlaptop itself makes steps longer. The baseline are the job's own unmeasured steps."""

from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.fleet.totals import middle_cost
from overlaptop.report.figures import LOWER_COST, cost_in_brief

COSTLY_SHARE = 0.02  # Twice the agent's budget while a dashboard watches
ERRORS = 2
"""Standard errors of one look. Of the looks of a whole run, one in forty would exceed two by chance."""


def look(evidence: Evidence) -> Findings:
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
