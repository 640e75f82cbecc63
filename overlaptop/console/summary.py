"""What the terminal keeps of a job when the dashboard is left."""

from __future__ import annotations

from overlaptop import text
from overlaptop.console.findings import found_in
from overlaptop.findings.first_line import first_line
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.fleet.trouble import trouble_of
from overlaptop.report import troubles
from overlaptop.report.figures import totals_in_words
from overlaptop.report.order import all_see_gaps

MOST_FINDINGS = 3


def summary(snapshot: Snapshot, watched_s: float) -> str:
    """Return a few lines: the job and its figures, what is wrong, and its findings; empty without steps."""
    job, totals = snapshot.job, snapshot.totals
    if job is None or totals.step is None or snapshot.hub_state is HubState.TRACE:
        return ""
    overlap = totals_in_words(totals, exact=all_see_gaps(snapshot.ranks))["overlap"]
    ranks, watched = text.plural(job.world_size, "rank"), text.age(watched_s)
    lines = [
        f"{job.script}, {ranks}, watched for {watched}: step {text.count(totals.step)}, "
        f"{text.duration(totals.step_ns)} a step, overlap {overlap}"
    ]
    found = found_in(snapshot)
    said, trouble = first_line(snapshot, found), trouble_of(snapshot)
    lines += [troubles.in_full(trouble)] if trouble is not None else []
    lines += [said.because.words] if said is not None else []
    told = (said.rule, said.cause_rule) if said is not None else ()
    others = [each for each in found if each.rule not in told]
    lines += [f"{each.headline}, {each.certainty.value}" for each in others[:MOST_FINDINGS]]
    return "\n".join(map(text.printable, lines))
