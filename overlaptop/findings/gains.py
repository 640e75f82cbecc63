"""How much shorter a step is after a fix. Pure.

All ranks share one step length. Alone, a rank needs the longer of two times: its GPU's without waiting for
other ranks, and its host's without being blocked by its GPU or by other ranks. The cost of a late rank is
the step's length minus the longest such time of the others. The rest of their wait is slack.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from statistics import fmean, median

from overlaptop import text
from overlaptop.findings.finding import Evidence, Finding, usual_ns
from overlaptop.findings.lines import apart
from overlaptop.findings.measures import (
    STEADY,
    Measure,
    cpu_ns,
    delayed_ns,
    excess,
    excess_over,
    exposed_ns,
    idling_ns,
    is_launch_bound,
    loading_ns,
)
from overlaptop.fleet.waits import WORTH_SHARE
from overlaptop.report.order import sees_gaps
from overlaptop.wire.messages import StepTotals

EXPLAINS = 0.5
"""Smallest share of a wait that a cause explains. Some of it hides behind compute, and causes add up."""
ABOUT = 2.5  # A change of the job by up to this factor of a promise shows the cause's true cost
STALLED = 3.0
"""A step this many times as long as the median one stalled, and promises nothing for a usual one."""
LOST_LEAD = 0.1
"""A host that loses this share of a step of its lead in each step is slowed, usually by a profiler."""
MOST_WANDERING, MOST_WANDERING_BY_CHANGE, MOST_BY_MEASURING = 0.25, 0.5, 0.5
"""A gain is not known if steps wander by more than the first share of it (the second, if it is itself a
change of the steps), or if measuring adds more than the third to a step."""


@dataclass(frozen=True, slots=True)
class OwnTime:
    """The shortest step that one rank could have alone. ns."""

    gpu_ns: float  # GPU time without waiting; without a GPU, the training thread's time without waiting
    host_ns: float = 0.0  # The training thread's time without being blocked, if known
    ahead_ns: tuple[float, ...] = ()  # How long it waits for others in each measured step; empty: not known

    @property
    def longest_ns(self) -> float:
        return max(self.gpu_ns, self.host_ns)


def gain_ns(
    step_ns: float, others: Iterable[OwnTime], late: OwnTime | None = None, cause_ns: float | None = None
) -> int:
    """Return how much shorter the step is without a late rank's cause; None: without its lateness."""
    stay = list(others)
    own_ns, most_ns = [each.longest_ns for each in stay], inf
    if late is not None and cause_ns is not None:
        own_ns.append(late.longest_ns - cause_ns)
        most_ns = _most_by_steps_ns(stay, late, cause_ns)
    return max(0, round(min(step_ns - max(own_ns, default=step_ns), most_ns)))


def _most_by_steps_ns(others: Collection[OwnTime], late: OwnTime, cause_ns: float) -> float:
    """Return the mean of what each step would lose: the least that any rank is ahead without the cause.

    That is less than by mean times, since all ranks vary and the last one sets the step. Infinite if steps
    are unknown, or if only some of them have the cause.
    """
    if len({len(each.ahead_ns) for each in (*others, late)}) > 1:
        return inf
    theirs_ns = [min(step) for step in zip(*(each.ahead_ns for each in others), strict=True)]
    if not theirs_ns or sum(each >= EXPLAINS * cause_ns for each in theirs_ns) < STEADY * len(theirs_ns):
        return inf
    return fmean(min(theirs, own + cause_ns) for theirs, own in zip(theirs_ns, late.ahead_ns, strict=True))


def sure_gain(evidence: Evidence, blamed: Finding, *, by_change: bool) -> Finding:
    """Return the finding about a late rank. Its gain is what the job lost when it changed, if that shows
    it, and not known if it may be a mere variation of the steps. ``by_change``: no other rank may have
    caused the change.
    """
    lost_ns = _lost_by_change_ns(evidence, blamed) if by_change else None
    if lost_ns is not None:
        since = f"steps take {text.duration(lost_ns)} longer since step {evidence.first}"
        blamed = replace(blamed, measured=f"{blamed.measured}; {since}", gain_ns=round(lost_ns))
    is_little = blamed.gain_share is not None and blamed.gain_share <= WORTH_SHARE
    if blamed.gain_ns is None or is_little:  # an unknown gain would be listed before all others
        return blamed
    # A change of the steps is the surer measure, and has no part of what measuring adds.
    most = MOST_WANDERING if lost_ns is None else MOST_WANDERING_BY_CHANGE
    adds_ns = evidence.step_ns - evidence.usual_ns if evidence.steps and lost_ns is None else 0.0
    if evidence.wander_ns > most * blamed.gain_ns:
        why = f"steps wander by {text.duration(evidence.wander_ns)}"
    elif adds_ns > MOST_BY_MEASURING * blamed.gain_ns:
        why = f"measuring makes steps longer by {text.duration(adds_ns)}"
    else:
        return blamed
    return replace(blamed, measured=f"{blamed.measured}; {why}, which hides the gain", gain_ns=None)


def _lost_by_change_ns(evidence: Evidence, blamed: Finding) -> float | None:
    """Return how much longer steps have become since the job changed, if that is about what the finding
    promises, and the others did not wait for the rank before; else None. A CPU that became busy then may
    cost any time: other threads wait for it, too.
    """
    before, (rank,), promised_ns = evidence.before, blamed.ranks, blamed.gain_ns or 0
    before_ns, now_ns = usual_ns(before), usual_ns(evidence.counted)
    waits_for_cpu = blamed.rule == "busy_cpu"
    if waits_for_cpu and now_ns is None and evidence.steps:  # long ones: each is measured
        now_ns = evidence.step_ns
    if before_ns is None or now_ns is None:
        return None

    def more_ns(measure: Measure, steps: Iterable[Mapping[int, StepTotals]]) -> float | None:
        found = excess(evidence, measure, steps, (rank,), evidence.ranks)[rank]
        return median(found) if found else None

    longer_ns = now_ns - before_ns
    if waits_for_cpu and (waited_ns := more_ns(delayed_ns, before)) is not None:
        waits_ns = more_ns(delayed_ns, evidence.counted)
        if waits_ns is not None and waited_ns < EXPLAINS * waits_ns:
            promised_ns = max(promised_ns, round(longer_ns))
    exposes_ns = more_ns(exposed_ns, before)
    if exposes_ns is None or -exposes_ns > EXPLAINS * promised_ns:
        return None
    return longer_ns if promised_ns / ABOUT <= longer_ns <= promised_ns * ABOUT else None


def own_times(
    evidence: Evidence,
    late: Collection[int],
    others: Collection[int],
    slows_ns: int = 0,
    *,
    work_stays: bool = True,
) -> Mapping[int, OwnTime]:
    """Return the own times of these ranks. ``slows_ns``: extra compute of the others caused by waiting.
    ``work_stays``: ranks that share a GPU will still have to wait for the late rank's work there.
    """
    step_ns = evidence.step_ns
    own: dict[int, OwnTime] = {}
    is_attributed = evidence.window is not None and evidence.window.is_attributed
    for rank in late:
        waits_ns, share = _waits(evidence, rank, exact=True)
        own[rank] = OwnTime(step_ns * (1 - share), ahead_ns=waits_ns)
    for rank in others:
        waits_ns, share = _waits(evidence, rank, late, exact=is_attributed, work_stays=work_stays)
        wait_ns = share * step_ns if waits_ns else evidence.most_wait_ns
        host_ns = _own_host_ns(evidence, rank)
        if host_ns is None:
            blocked_ns = (_blocked_ns(evidence, rank, each, wait_ns) for each in late)
            known_ns = [each for each in blocked_ns if each is not None]
            host_ns = step_ns - min(known_ns) if known_ns else 0.0
        ahead_ns = tuple(each + slows_ns for each in waits_ns)
        own[rank] = OwnTime(step_ns - wait_ns - slows_ns, host_ns, ahead_ns)
    return own


def most_by_gpus_ns(evidence: Evidence) -> float:
    """Return the gain if GPUs needed no time: the step less the slowest host. Infinite if not known."""
    if any(is_launch_bound(evidence, rank) for rank in evidence.ranks):
        return 0.0
    every_ns = (_own_host_ns(evidence, rank) for rank in evidence.ranks)
    known_ns = [each for each in every_ns if each is not None]
    return max(0.0, evidence.step_ns - max(known_ns)) if known_ns else inf


def _waits(
    evidence: Evidence, rank: int, late: Collection[int] = (), *, exact: bool, work_stays: bool = False
) -> tuple[tuple[float, ...], float]:
    """Return what waiting for late ranks costs the rank in each step, ns, and as a share of these steps.
    Not exact: includes exposed time without a breakdown. Empty and 0: not known, or in a pipeline, where
    ranks wait at different places of a step.
    """
    if evidence.window is None or evidence.window.in_receives:
        return (), 0.0
    waits_ns: list[float] = []
    lengths_ns: list[int] = []
    stalled_ns = STALLED * evidence.step_ns
    for step in evidence.steps:
        length_ns = step.totals[rank].step_ns
        if step.waits is None or rank not in step.waits.times or length_ns >= stalled_ns:
            continue
        own, times = step.waits.times[rank], step.waits.times
        bared_ns = (own.bared_ns(times[each]) for each in late if each in times)
        shared = step.waits.shared.get(rank) if work_stays else None
        wait_ns = own.exposed_wait_ns - (shared.wait_ns if shared is not None else 0)
        wait_ns += 0 if exact else own.exposed_not_attributed_ns
        waits_ns.append(wait_ns + min(bared_ns, default=0))
        lengths_ns.append(length_ns)
    return tuple(waits_ns), min(1.0, sum(waits_ns) / sum(lengths_ns)) if waits_ns else 0.0


def _own_host_ns(evidence: Evidence, rank: int) -> float | None:
    """Return the measured host time. None: not measured, or slowed by tracing: its lead shrinks."""
    steps = evidence.steps_of(rank)
    # The last step of a trace ends with the profiler, which waits for the GPU.
    steps = steps[:-1] if len(steps) > 1 else steps
    known = [step.host_ns for step in steps if step.host_ns is not None]
    leads_ns = [step.launch_lead_ns for step in steps if step.launch_lead_ns is not None]
    won_ns = [later - earlier for earlier, later in pairwise(leads_ns)]
    is_slowed = bool(won_ns) and median(won_ns) < -LOST_LEAD * evidence.step_ns
    return median(known) if known and not is_slowed else None


def _blocked_ns(evidence: Evidence, rank: int, late: int, wait_ns: float) -> float | None:
    """Return how long the rank's host is blocked in a step. None: not known, or for most of its GPU's wait.

    A host that waits for its GPU in each step ends that wait without a lead. One that always leads may wait
    for space in the launch queue. The late rank's host never waits there, so the two then differ in CPU
    time or in their lines.
    """
    found, own = apart(evidence, rank, late), evidence.steps_of(rank)
    leads = (step.launch_lead_ns if step.least_lead_ns is None else step.least_lead_ns for step in own)
    leads_ns = [lead_ns for lead_ns in leads if lead_ns is not None]
    if found is None or not leads_ns or not all(sees_gaps(evidence.ranks[each]) for each in (rank, late)):
        return None
    lines, error = found
    is_ahead = median(leads_ns) >= EXPLAINS * wait_ns
    if not is_ahead or 2 * error > EXPLAINS * wait_ns / evidence.step_ns:
        return None

    def more_ns(measure: Measure, own: int = rank, other: int = late) -> float | None:
        found = excess_over(evidence, own, (other,), measure)
        return median(found) if found else None

    idle_ns, cpu_own_ns = more_ns(idling_ns, late, rank), more_ns(cpu_ns)
    if idle_ns is None or cpu_own_ns is None:
        return None
    blocked_ns = max(
        0.0,
        wait_ns - idle_ns,
        abs(cpu_own_ns),
        more_ns(loading_ns, late, rank) or 0.0,
        more_ns(delayed_ns, late, rank) or 0.0,
        lines * evidence.step_ns,
    )
    return blocked_ns if blocked_ns < EXPLAINS * wait_ns else None
