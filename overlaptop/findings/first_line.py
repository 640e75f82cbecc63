"""The first line of a job: the late rank, or a finding that costs more; and what bounds the step. Pure.

report/who_is_late.py words the late rank; findings/watch.py keeps the chosen line on the screen.
"""

from collections.abc import Sequence

from overlaptop.findings.finding import OPPOSITES, Finding, late_finding, why_late
from overlaptop.fleet.snapshot import WHOLE_TRACE, Snapshot
from overlaptop.fleet.trouble import trouble_of
from overlaptop.fleet.waits import WORTH_SHARE
from overlaptop.report.who_is_late import NOBODY_LATE, FirstLine, Kind, of_steps, overlap_line, until_then
from overlaptop.text import whole_percent

OF_WAITING = ("jitter", "late_unexplained", "uneven_batches")  # Rules about the same wait as `who_is_late`

NEARLY_ALL = 0.9  # Share of the collectives from which a late rank is named, whatever else gains more
STAYS = 1.5  # The shown finding stays until another line concerns this much more time
MOSTLY = 0.5  # Smallest share of the step that bounds it


def first_line(
    snapshot: Snapshot, found: Sequence[Finding], listed: Sequence[Finding] = (), shown: str = ""
) -> FirstLine | None:
    """Return who is late and why, or that lateness costs nothing. The finding with the largest gain takes
    its place if no rank is late in nearly all collectives, and it gains more than the whole wait and
    deserves a warning.

    ``found``: of this moment, costliest first. ``listed``: earlier findings still shown. ``shown``: rule of
    the finding that is the first line now, and stays it until it gains clearly less.
    """
    return until_then(snapshot, _of_steps(snapshot, found, listed, shown))


def _of_steps(
    snapshot: Snapshot, found: Sequence[Finding], listed: Sequence[Finding], shown: str
) -> FirstLine | None:
    said, totals = of_steps(snapshot), snapshot.totals
    if said is None or said.kind in (Kind.MEASURING, Kind.UNKNOWN):
        return _late_by(found) or said
    if slack := next((each for each in found if each.rule == "slack"), None):
        brief = slack.title.partition(":")[0]
        said = FirstLine(slack.title, brief, rule=slack.rule, kind=Kind.SLACK)
    if said.late_rank is not None and (late := late_finding(found, said.late_rank)) is not None:
        cause = why_late([late], said.late_rank)
        said = said._replace(cause=cause, shorter=late.headlines, cause_rule=late.rule)
    if said.kind in NOBODY_LATE and any(each.why_late for each in listed):
        said = overlap_line(snapshot)._replace(kind=said.kind)
    elif found or listed:
        said = said.without_nothing
    first = next((each for each in found if each.rule not in OPPOSITES), None)
    if first is None or not totals.step_ns:
        return said
    if totals.measured_step == WHOLE_TRACE or trouble_of(snapshot) is not None:
        return said
    if first.why_late:
        is_little = first.gain_ns is not None and first.gain_ns <= WORTH_SHARE * totals.step_ns
        return said if said.kind in (Kind.LATE, Kind.SLACK) or is_little else _late_by([first])
    if not first.gain_ns:
        return said
    window = snapshot.wait_window
    if (
        said.kind is Kind.LATE
        and window is not None
        and any(each.rank == said.late_rank and each.share >= NEARLY_ALL for each in window.late)
    ):
        return said
    wait_ns = window.exposed_wait_ns if window is not None and said.kind is not Kind.SLACK else 0
    if first.rule in OF_WAITING:
        if said.kind is Kind.LATE or first.rule == "late_unexplained":
            return said
        wait_ns = 0
    stays = STAYS if first.rule == shown else 1.0
    if stays * first.gain_ns <= max(wait_ns, WORTH_SHARE * totals.step_ns):
        return said
    wins = f"; fixing it wins up to {whole_percent(first.gain_share or first.gain_ns / totals.step_ns)}"
    title, short = first.title, first.title.partition(": ")[0]
    return FirstLine(
        f"{title}{wins} of the step ({first.certainty.value})",
        f"{title}{wins}",
        warns=first.warns,
        rule=first.rule,
        kind=Kind.FINDING,
        shorter=(f"{short}{wins}", title, short),
    )


def most_urgent(found: Sequence[Finding], line: FirstLine | None) -> Finding | None:
    """Return the finding that the first line is about; else the first of them."""
    if line is not None:
        for each in found:
            if each.rule in (line.rule, line.cause_rule) and line.late_rank in (None, *each.ranks):
                return each
    return found[0] if found else None


def bound_by(snapshot: Snapshot, found: Sequence[Finding], said: FirstLine | None) -> str:
    """Return ``GPU-bound``, ``host-bound``, ``communication-bound``, ``data-bound`` or ``waiting for rank
    2``; empty: nothing takes most of the step, or parts are unknown.
    """
    totals, window = snapshot.totals, snapshot.wait_window
    if said is None or totals.measured_ns is None or totals.exposed_ns is None:
        return ""
    if said.late_rank is not None:
        return f"waiting for rank {said.late_rank}"
    if found and found[0].rule == "data_loading" and not found[0].ranks:
        return "data-bound"
    if totals.launch_bound and (said.kind is Kind.SLACK or len(totals.launch_bound) == totals.ranks):
        return "host-bound"
    if said.kind is Kind.SLACK:
        return ""
    wait_ns = window.exposed_wait_ns if window is not None else 0
    if totals.exposed_ns - wait_ns >= MOSTLY * totals.measured_ns:
        return "communication-bound"
    if totals.idle_ns is None:
        return ""
    if totals.idle_ns >= MOSTLY * totals.measured_ns:
        return "host-bound"
    busy_ns = totals.measured_ns - totals.exposed_ns - totals.idle_ns
    return "GPU-bound" if busy_ns >= MOSTLY * totals.measured_ns else ""


def _late_by(found: Sequence[Finding]) -> FirstLine | None:
    """Return who is late by these findings alone, such as by counters; None: no finding says."""
    first = next((each for each in found if each.why_late), None)
    if first is None:
        return None
    return FirstLine(
        f"{first.headline}, {first.certainty.value}",
        first.headline,
        warns=True,
        late_rank=first.ranks[0],
        kind=Kind.LATE,
        cause_rule=first.rule,
        shorter=first.headlines,
    )
