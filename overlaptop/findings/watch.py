"""Ask all rules about a running job at intervals, and keep their findings and the first line steady: these
change with the job, or on lasting evidence.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from overlaptop.findings.finding import OPPOSITES, Evidence, Finding, Findings, Key, by_key, evidence_of
from overlaptop.findings.first_line import first_line
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.fleet.trouble import trouble_of
from overlaptop.report.who_is_late import NOBODY_LATE, FirstLine, Kind, overlap_line
from overlaptop.wire.messages import Found

LOOK_EVERY_NS = 5_000_000_000
LEAST_COUNTED = 8  # Fewest steps whose counters are evaluated before any step is measured

HOLD_NS = 1_000_000_000  # A finding is shown after it held for this time
VAGUE_HOLD_NS = 5_000_000_000  # The same for a finding without a cause: the cause often comes later
VAGUE = ("jitter", "late_unexplained")
WEAK_CAUSES = ("", "launch_bound")
"""Rules that another may replace soon: a slow CPU is the rest when nothing else is found."""
NAMELESS_HOLD_NS = 3_000_000_000  # The same for a late rank without a known cause
NEWS_HOLD_NS = 3_000_000_000
"""The same for a problem that replaces "nothing is wrong", and for a late rank with a known cause that
replaces a finding about the whole job."""
HEALTHY_HOLD_NS, HEALTHY_HOLD_STEPS = 4_000_000_000, 8
"""The same for "nothing is wrong", in time and in steps."""
TURN_NS = 10_000_000_000
"""Time until another first line replaces the shown one, while the job does not change. A gain that was lost
has to be known again for this time."""
LOST_NS = 30_000_000_000  # The replacement is faster if the shown line has not come up for this time
FORGOTTEN_NS = 60_000_000_000  # A shown line that has not come up for this time is removed
HEALTHY_MEASURED = 6
"""Measured steps since a change that "nothing is wrong" needs to replace a problem of before it."""
KEPT_NS = 15_000_000_000  # After a change the earlier line stays for this time, until there is a new one
LONG_NS = 10_000_000_000  # After this time without a first line the screen names the missing data
REORDER = 1.25  # Findings keep their order until a gain changes by this factor


class Look(NamedTuple):
    """The result of all rules on one Snapshot."""

    snapshot: Snapshot
    evidence: Evidence
    found: tuple[Finding, ...]  # Findings of this moment, costliest first
    shown: tuple[Finding, ...]  # The steady ones, some from before
    present: tuple[Finding, ...]  # Those of `shown` that are found now and concern the job's present state


class FindingsWatch:
    """Looks at one job at a time. A look takes about 30 ms."""

    def __init__(self, every_ns: int = LOOK_EVERY_NS, soon_ns: int | None = None) -> None:
        """``every_ns``: between two looks. ``soon_ns``: the same while the first line does not concern the
        job's present state; by default ``every_ns``.
        """
        self._every_ns, self._soon_ns = every_ns, every_ns if soon_ns is None else soon_ns
        self._forget()

    def _forget(self) -> None:
        self.findings: tuple[Finding, ...] | None = None
        """Those to show, costliest first; None: too few steps are known."""
        self._last: Look | None = None
        self._findings, self._line = SteadyFindings(), SteadyLine()

    def look(self, snapshot: Snapshot) -> Look | None:
        """Look, or return None if no look is due. Forget all of another job."""
        if self._last is not None and self._last.snapshot.job != snapshot.job:
            self._forget()
        return self.look_now(snapshot) if self._is_due(snapshot) else None

    def look_now(self, snapshot: Snapshot) -> Look:
        """Look, also if no look is due. The job must be the last one's."""
        # The rules take 50 ms to import: not before the dashboard's first paint.
        from overlaptop.findings.find import find

        evidence = evidence_of(snapshot)
        fewest = LEAST_COUNTED if snapshot.totals.exposed_ns is None else 1
        found = find(evidence) if evidence.steps or len(evidence.counted) >= fewest else None
        if found is not None:
            self.findings = self._findings.take(snapshot, found)
        self._last = Look(
            snapshot, evidence, found or (), self.findings or (), self._findings.present(snapshot)
        )
        return self._last

    def _is_due(self, snapshot: Snapshot) -> bool:
        last = self._last.snapshot if self._last is not None else None
        if snapshot.hub_state is HubState.TRACE:
            return last is not snapshot
        if snapshot.job is None or snapshot.replaying:
            return False
        if last is None:
            return True
        every_ns = self._every_ns if self._line.is_settled else self._soon_ns
        return not 0 <= snapshot.at_ns - last.at_ns < every_ns

    def line(self, snapshot: Snapshot) -> FirstLine | None:
        """Return the first line to show, after `look`."""
        listed = self.findings or ()
        said = first_line(snapshot, self._findings.present(snapshot), listed, self._line.rule)
        if snapshot.hub_state is HubState.TRACE or trouble_of(snapshot) is not None:
            return said
        return self._line.take(snapshot, said, first_line(snapshot, (), listed))


class FindingsTold:
    """Tells a job's hub of each rule that warns, once: the hub then keeps the job's last minutes."""

    def __init__(self, send: Callable[[Found], str]) -> None:
        """``send``: as a Session's."""
        self._send = send
        self._told: set[tuple[str, str]] = set()

    def tell(self, look: Look) -> None:
        for each in look.shown:
            told = look.snapshot.job.job if look.snapshot.job is not None else "", each.rule
            if each.warns and told not in self._told and not self._send(Found(each.rule)):
                self._told.add(told)


@dataclass(slots=True)
class _Held:
    finding: Finding
    since_ns: int  # Found in each look since then, unless it is shown
    first_step: int  # The snapshot's `first_step` when it was last found
    cost_ns: float  # The sort key
    shown: bool
    gone_ns: int | None = None  # Time of the first look without it; None: it is found
    lost_ns: int | None = None
    """Time of the last look at which its gain, known before, was not. None: there was none."""

    def update(self, found: Finding, at_ns: int, first_step: int) -> None:
        if first_step != self.first_step:
            self.lost_ns = None
        elif found.gain_ns is None and (self.lost_ns is not None or self.finding.gain_ns is not None):
            self.lost_ns = at_ns
        if found.gain_ns is not None and self.lost_ns is not None and at_ns - self.lost_ns < TURN_NS:
            measured = f"{found.measured}; its gain was not known a moment ago"
            found = replace(found, gain_ns=None, measured=measured)
        self.finding, self.first_step, self.gone_ns = found, first_step, None


class SteadyFindings:
    """The findings to show: each appears after it held for a while, and stays a while after it is gone."""

    def __init__(self) -> None:
        self._held: dict[Key, _Held] = {}
        self._is_first = True

    def take(self, snapshot: Snapshot, found: Findings) -> tuple[Finding, ...]:
        """Return the findings to show, costliest first; those of the first look at once. ``found``: of this
        moment.
        """
        at_ns, first_step = snapshot.at_ns, snapshot.first_step
        is_trace = snapshot.hub_state is HubState.TRACE
        at_once, self._is_first = self._is_first or is_trace, False
        if is_trace:
            self._held.clear()
        shown = {each.finding.rule for each in self._shown}
        now = by_key(each for each in found if OPPOSITES.get(each.rule) not in shown)
        for key, each in now.items():
            held = self._held.setdefault(key, _Held(each, at_ns, first_step, 0, at_once))
            held.update(each, at_ns, first_step)
            is_weak = each.rule in VAGUE or (each.rule in WEAK_CAUSES and each.why_late)
            held.shown |= at_ns - held.since_ns >= (VAGUE_HOLD_NS if is_weak else HOLD_NS)
            cost_ns = held.finding.order_ns
            if not cost_ns * REORDER > held.cost_ns > cost_ns / REORDER:
                held.cost_ns = cost_ns
        for key in self._held.keys() - now.keys():
            held = self._held[key]
            held.gone_ns = at_ns if held.gone_ns is None else held.gone_ns
            is_past, is_vague = held.first_step != first_step, held.finding.rule in VAGUE
            stays_ns = HOLD_NS if is_vague else VAGUE_HOLD_NS if is_past else TURN_NS
            if not held.shown or at_ns - held.gone_ns >= stays_ns:
                del self._held[key]
        return tuple(each.finding for each in self._shown)

    def present(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """Return the shown findings that the last look found and that concern the job's present state."""
        now = [each for each in self._shown if each.gone_ns is None]
        return tuple(each.finding for each in now if each.first_step == snapshot.first_step)

    @property
    def _shown(self) -> list[_Held]:
        shown = [each for each in self._held.values() if each.shown]
        return sorted(shown, key=lambda each: (-each.cost_ns, each.finding.rule, each.finding.ranks))


class SteadyLine:
    """The first line to show. It changes only when the job changes, or after TURN_NS."""

    def __init__(self) -> None:
        self._shown: FirstLine | None = None
        self._shown_ns = 0  # Time when it last came up
        self._other: tuple[object, int] = (None, 0)
        """The key of the line that comes up instead without interruption, and since when."""
        self._begun_ns: int | None = None  # Start of the watch, or time of the job's last known change
        self._first_step = 0
        self._past_ns: int | None = None
        """Time since which the shown line is from before a change. None: it is not."""
        self._exposed_ns = 0  # When much communication was last exposed

    @property
    def rule(self) -> str:
        """The rule of the shown line; empty: none is shown, or it is no finding."""
        return self._shown.rule if self._shown is not None else ""

    @property
    def is_settled(self) -> bool:
        """Return whether the shown line is about the job's present state."""
        return self._shown is not None and self._past_ns is None

    def take(
        self, snapshot: Snapshot, line: FirstLine | None, plain: FirstLine | None = None
    ) -> FirstLine | None:
        """Return the line to show. ``line``: of this moment; on the first look a certain line is shown at
        once. ``plain``: the line from waits alone.
        """
        at_ns, is_first = snapshot.at_ns, self._begun_ns is None
        if is_first and (snapshot.replaying or not _has_steps(snapshot)):
            return None
        if self._begun_ns is None or snapshot.first_step != self._first_step:
            self._begun_ns, self._first_step = at_ns, snapshot.first_step
            self._exposed_ns = at_ns - LOST_NS
            if self._shown is not None and self._past_ns is None:
                self._past_ns = at_ns
        if self._shown and self._shown.kind is Kind.UNKNOWN and line and line.kind is not Kind.UNKNOWN:
            self._shown = None
        if line is None or line.kind is Kind.MEASURING:
            self._other = None, 0
        elif (
            (is_first and line.kind in (Kind.LATE, Kind.UNKNOWN))
            or snapshot.hub_state is HubState.ENDED
            or (self._shown is not None and line.key == self._shown.key)
            or self._turns(snapshot, line)
        ):
            self._shown, self._shown_ns, self._past_ns = line, at_ns, None
            self._other = None, 0
        unseen_ns = at_ns - self._shown_ns
        is_outdated = self._past_ns is not None and at_ns - self._past_ns >= KEPT_NS
        if is_outdated or unseen_ns >= FORGOTTEN_NS:
            self._shown, self._past_ns = None, None
        shown = self._shown
        if plain is not None and plain.kind is Kind.EXPOSED:
            self._exposed_ns = at_ns
        if shown and plain and (plain.key == shown.key or {shown.kind, plain.kind} <= set(NOBODY_LATE)):
            if plain.kind is Kind.HEALTHY and at_ns - self._exposed_ns < LOST_NS:  # it is near the limit
                return plain.without_nothing._replace(kind=Kind.EXPOSED)
            return plain  # the same with newer figures
        if shown and plain and shown.kind in NOBODY_LATE:
            # Only the present waits can repeat its verdict.
            return overlap_line(snapshot)._replace(kind=shown.kind)
        return shown or _measuring(snapshot, line, (at_ns - self._begun_ns) // 1_000_000_000)

    def _turns(self, snapshot: Snapshot, line: FirstLine) -> bool:
        window, shown = snapshot.wait_window, self._shown
        is_thin = window is not None and window.steps < HEALTHY_MEASURED
        is_past_problem = self._past_ns is not None and shown and shown.kind not in NOBODY_LATE
        if is_past_problem and line.kind in NOBODY_LATE and is_thin:
            return False
        # The line alternates between these two if exposed communication is near the limit.
        key = NOBODY_LATE if line.kind in NOBODY_LATE else line.key
        if self._other[0] != key:
            self._other = key, snapshot.at_ns
        return snapshot.at_ns - self._other[1] >= self._hold_ns(snapshot, line)

    def _hold_ns(self, snapshot: Snapshot, line: FirstLine) -> int:
        shown, hold_ns = self._shown, HOLD_NS
        if line.kind is Kind.SLACK and shown is not None and shown.kind is Kind.LATE:
            return hold_ns  # nobody is to blame
        if line.kind in NOBODY_LATE:
            hold_ns = max(HEALTHY_HOLD_NS, HEALTHY_HOLD_STEPS * (snapshot.totals.step_ns or 0))
        elif line.kind is Kind.UNKNOWN:
            hold_ns = VAGUE_HOLD_NS
        elif line.kind is Kind.LATE and not line.cause_rule:
            hold_ns = NAMELESS_HOLD_NS
        if shown is None or self._past_ns is not None or snapshot.at_ns - self._shown_ns >= LOST_NS:
            return hold_ns
        has_cause = line.cause_rule not in WEAK_CAUSES
        is_same_rank = line.late_rank == shown.late_rank is not None
        adds_cause = is_same_rank and shown.cause_rule in WEAK_CAUSES and has_cause
        gives_way = bool(shown.rule) and shown.rule in (line.cause_rule, *WEAK_CAUSES)
        if adds_cause or (gives_way and line.late_rank is not None):
            return hold_ns
        names_cause = line.kind is Kind.LATE and has_cause
        if (shown.kind in NOBODY_LATE and line.warns) or (shown.kind is Kind.FINDING and names_cause):
            return max(hold_ns, NEWS_HOLD_NS)
        return max(hold_ns, TURN_NS)


def _has_steps(snapshot: Snapshot) -> bool:
    return any(view.last is not None for view in snapshot.ranks)


def _measuring(snapshot: Snapshot, line: FirstLine | None, seconds: int) -> FirstLine | None:
    """Return ``measuring, 3 s``, later with the missing part. None without a step, and after the job."""
    if snapshot.hub_state is not HubState.LIVE or not _has_steps(snapshot):
        return None
    words, is_long = f"measuring, {seconds} s", seconds * 1_000_000_000 >= LONG_NS
    if is_long and line is not None and snapshot.waits is not None:
        # The verdict of another line has not held yet; its figures count.
        return line if line.kind is Kind.MEASURING else overlap_line(snapshot)._replace(kind=Kind.MEASURING)
    why = snapshot.not_attributed if snapshot.waits is None and is_long else ""
    return FirstLine(f"{words}: {why}" if why else words, words, kind=Kind.MEASURING)
