"""Who is late, or what else the waits show, in one line: first on the overview and in ``--once``. Pure.

findings/first_line.py adds the cause, or puts a costlier finding in its place; findings/watch.py keeps the
chosen line on the screen.
"""

from collections.abc import Sequence
from enum import Enum
from statistics import fmean
from typing import NamedTuple

from overlaptop.fleet.records import BOUNDS
from overlaptop.fleet.snapshot import WHOLE_TRACE, RankView, Snapshot
from overlaptop.fleet.trouble import trouble_of
from overlaptop.fleet.wait_breakdown import NOT_YET
from overlaptop.fleet.waits import LATE_SHARE, WaitWindow
from overlaptop.report.hosts import ranks_and_hosts
from overlaptop.report.order import all_see_gaps
from overlaptop.text import (
    MOST_RUNS,
    bounded,
    duration,
    percent,
    whole_percent,
)

OF_COLLECTIVES = " of collectives"
EXPOSED_SHARE = 0.1  # Smallest share of exposed communication that is worth fixing
CLEAR_STEPS = 16  # Steps needed to say that no rank is late, if waits cost time
NOBODY, TOO_FEW = "No rank is clearly late", "Too few steps yet to say who is late"
NOTHING = "Nothing to fix"
UNTIL_THEN = "until then: "  # Before figures of a job that is stuck or has failed


class Kind(Enum):
    """The kind of a first line."""

    MEASURING = "measuring"  # No answer yet
    UNKNOWN = "unknown"  # The reason why the answer stays unknown
    HEALTHY = "healthy"
    EXPOSED = "exposed"  # No rank is late, and much communication is exposed
    SLACK = "slack"  # A rank is late, at no cost
    LATE = "late"
    FINDING = "finding"


NOBODY_LATE = (Kind.HEALTHY, Kind.EXPOSED)  # Kinds for "no rank is late"


class FirstLine(NamedTuple):
    """The first line."""

    words: str
    brief: str  # Short form for little space
    warns: bool = False  # True if there is a problem that can be fixed
    late_rank: int | None = None  # The rank concerned
    rule: str = ""  # Rule of the finding shown; empty: not a finding
    kind: Kind = Kind.HEALTHY
    cause: str = ""
    """Why the rank is late: ``it computes 12.1 ms a step longer than the others``; empty: unknown."""
    cause_rule: str = ""  # Rule of the finding that gives the cause
    shorter: tuple[str, ...] = ()
    """Forms shorter than ``brief``, longest first. Of a late rank with a known cause: the cause with the
    rank's name, ``rank 1 computes 12.1 ms a step longer than the others``."""

    @property
    def key(self) -> tuple[Kind, str, int | None]:
        return self.kind, self.rule or self.cause_rule, self.late_rank

    @property
    def because(self) -> "FirstLine":
        """With why the rank is late."""
        words, brief = (each.replace("; ", f": {self.cause}; ", 1) for each in (self.words, self.brief))
        return self._replace(words=words, brief=brief) if self.cause else self

    @property
    def forms(self) -> tuple[str, ...]:
        """The sentence, then shorter ones. Figures go before the cause and its line."""
        full = self.because
        forms = full.words, full.brief, full.brief.replace(OF_COLLECTIVES, "")
        # Else a cost without its share of the step.
        return (*forms, *(self.shorter or (forms[-1].partition(" (")[0],)))

    @property
    def without_nothing(self) -> "FirstLine":
        """Without saying that there is nothing to fix."""
        words, brief, *shorter = (
            each.replace(NOTHING, NOBODY) for each in (self.words, self.brief, *self.shorter)
        )
        return self._replace(words=words, brief=brief, shorter=tuple(shorter))


def overlap_line(snapshot: Snapshot) -> FirstLine:
    """Return how much communication is hidden and exposed, without a verdict."""
    return _nobody_late(snapshot, None)


def who_is_late(snapshot: Snapshot) -> FirstLine | None:
    """Return who is late and the cost; else how much communication is exposed, or why it is not known. None
    before the first measured step. See `until_then`.
    """
    return until_then(snapshot, of_steps(snapshot))


def until_then(snapshot: Snapshot, said: FirstLine | None) -> FirstLine | None:
    """Mark a line as one about the steps before, if the job is stuck or has failed; None: it says nothing
    of them.
    """
    if said is None or trouble_of(snapshot) is None:
        return said
    if said.kind in (Kind.MEASURING, Kind.UNKNOWN):
        return None
    words, brief = f"{UNTIL_THEN}{said.words}", f"{UNTIL_THEN}{said.brief}"
    return said._replace(words=words, brief=brief, shorter=(), warns=False)


def of_steps(snapshot: Snapshot) -> FirstLine | None:
    totals, window = snapshot.totals, snapshot.wait_window
    if totals.exposed_ns is None:
        why = why_unmeasured(snapshot.ranks)
        brief = "overlap is not known"
        return FirstLine(f"{brief}: {why}", brief, kind=Kind.UNKNOWN) if why else None
    if window is None:
        if snapshot.job is None or snapshot.job.world_size == 1:
            return _nobody_late(snapshot, "")
        why = why_not_attributed(snapshot) or NOT_YET
        is_to_come = why == NOT_YET or (snapshot.waits is None and why == snapshot.not_attributed)
        kind = Kind.MEASURING if is_to_come else Kind.UNKNOWN
        return FirstLine(f"who waits for whom is not known: {why}", f"not attributed: {why}", kind=kind)
    if not window.late:
        return _nobody_late(snapshot, TOO_FEW if needs_steps(snapshot) else NOBODY)
    if len(window.late) > 1:
        return _in_turn(snapshot, window)
    (late,) = window.late
    others = [each for each in window.lateness.ranks if each is not late]
    who = "the others wait" if len(others) > 1 else f"rank {others[0].rank} waits"
    if 0 < len(snapshot.compared) < len(snapshot.ranks):
        who = f"{len(others)} compared ranks wait"
    cost, brief_cost = _costs(snapshot, window)
    if late.share >= LATE_SHARE:
        late_in = f"late in {late.late_count} of {late.collectives} collectives"
        in_brief = f"late in {whole_percent(late.share)}{OF_COLLECTIVES}"
    else:  # most collectives of a step only follow the one where all ranks waited
        late_in = in_brief = f"late in {window.late_steps} of {window.steps} steps"
    rank, through = f"rank {late.rank}", ""
    if window.passed_on_wait is not None and window.passed_on_wait.root == late.rank:
        links = [f"rank {each.rank} ({each.group})" for each in reversed(window.passed_on_wait.chain)]
        through = f", also through {' and '.join(links)}"
    return FirstLine(
        f"{rank} is {late_in}; {who} {cost}{through}",
        f"{rank} {in_brief}; {who.removeprefix('the ')} {brief_cost}",
        warns=True,
        late_rank=late.rank,
        kind=Kind.LATE,
    )


def needs_steps(snapshot: Snapshot) -> bool:
    """Return whether waits cost time, and it takes more steps to say which rank is late or that none is."""
    window = snapshot.wait_window
    if window is None or window.late or window.share < window.worth_share or window.chances is None:
        return False
    return not (window.is_enough and (_is_trace(snapshot) or window.steps >= CLEAR_STEPS))


def why_not_attributed(snapshot: Snapshot) -> str:
    """Return why it is not known who waits for whom; empty if it is known."""
    return why_unmeasured(snapshot.ranks) or snapshot.not_attributed


def why_unmeasured(ranks: Sequence[RankView]) -> str:
    """Return why no step of some of these ranks will be measured in detail; empty if one may be."""
    reasons: dict[str, list[int]] = {}
    for view in ranks:
        if (info := view.info) is None or view.last is None:
            continue
        if info.detail_every == 0:
            reasons.setdefault("the agent measures phases only", []).append(view.rank)
        elif info.left_out and not any(step.measured for step in view.history):
            reasons.setdefault(info.left_out, []).append(view.rank)
    if not reasons:
        return ""
    reason, of_ranks = max(reasons.items(), key=lambda each: len(each[1]))
    return reason if len(of_ranks) == len(ranks) else f"{ranks_and_hosts(of_ranks, ranks)}: {reason}"


def _in_turn(snapshot: Snapshot, window: WaitWindow) -> FirstLine:
    late = window.late
    numbers = [str(each.rank) for each in late]
    who = f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
    if len(late) > MOST_RUNS:
        who = ranks_and_hosts([each.rank for each in late], snapshot.ranks)
    number, collectives = sum(each.late_count for each in late), window.lateness.collectives
    cost, brief_cost = _costs(snapshot, window)
    return FirstLine(
        f"{who} are late in turn, in {number} of {collectives} collectives; others wait {cost}",
        f"{who} late in turn; others wait {brief_cost}",
        warns=True,
        kind=Kind.LATE,
    )


def _costs(snapshot: Snapshot, window: WaitWindow) -> tuple[str, str]:
    wait_ns, share = _shown_wait(snapshot, window)
    waits = f"{duration(wait_ns)} {'of the trace' if _is_trace(snapshot) else 'a step'}"
    return f"{waits} ({percent(share)})", f"{waits} ({whole_percent(share)})"


def _shown_wait(snapshot: Snapshot, window: WaitWindow) -> tuple[float, float]:
    """Return the others' wait per step and its share: by the rows, which are shown beside it, if these are
    means.
    """
    late = {each.rank for each in window.late}
    waits = [
        each.row_waits if each.mean is not None else None
        for each in snapshot.ranks
        if each.rank not in late and each.rank in snapshot.compared
    ]
    known = [each.exposed_wait_ns for each in waits if each is not None and each.exposed_known]
    step_ns = snapshot.totals.step_ns
    if not known or len(known) < len(waits) or not step_ns:
        return window.exposed_wait_ns, window.share
    return fmean(known), fmean(known) / step_ns


def _is_trace(snapshot: Snapshot) -> bool:
    return snapshot.totals.measured_step == WHOLE_TRACE


def _nobody_late(snapshot: Snapshot, who: str | None) -> FirstLine:
    """``who``: the words about late ranks; None: give no verdict."""
    totals = snapshot.totals
    fused = f"; {duration(totals.fused_ns)} is fused" if totals.fused_ns else ""
    if totals.overlap is None:
        return FirstLine(f"no communication was measured{fused}", f"no communication{fused}")
    exact = all_see_gaps(snapshot.ranks)
    overlap = bounded(whole_percent(totals.overlap), BOUNDS["overlap"], exact=exact)
    exposed_ns, step_ns = totals.exposed_ns or 0, totals.measured_ns or 0
    share = exposed_ns / step_ns if step_ns else 0.0
    kind = Kind.MEASURING if who == TOO_FEW else Kind.EXPOSED if share >= EXPOSED_SHARE else Kind.HEALTHY
    # A lower bound cannot show that nothing is wrong.
    said = NOTHING if who is not None and kind is Kind.HEALTHY and exact else who
    words, figures = f"{overlap} of communication is hidden", [f"{overlap} hidden"]
    if exposed_ns and step_ns:
        parts = f"{duration(exposed_ns)} of {duration(step_ns)} ({whole_percent(share)})"
        words = f"{words}; {parts} is not"
        figures = [f"{parts} is exposed"]
        figures += [f"{whole_percent(share)} {each}" for each in ("of the step is exposed", "exposed")]
    verdict = f"{said}; " if said else ""
    brief, *shorter = (f"{verdict}{each}" for each in figures)
    words = f"{words}{fused}. {said}." if said else f"{words}{fused}."
    return FirstLine(words, brief, kind=kind, shorter=(*shorter, said or figures[-1]))
