"""Whether a job hangs, and which rank is to blame, or how it came to an end: one verdict for every view.

Three things show a hang. No step ends (`is_stale`, here): Fleet marks such ranks. A rank's agent, which
sends something each second, is silent: only the hub can see that (hub/ranks.py), and publishes it. And the
agents that still speak say in what their ranks stand (Standstill), which `hang_cause.py` judges. Before the
first step nobody can tell a hang from a long preparation: it is said where each rank is. Pure.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median

from overlaptop.fleet.hang_cause import Blame, Hang, hang_of
from overlaptop.fleet.snapshot import HubState, RankView, Snapshot
from overlaptop.wire.messages import RankEnd, StepTotals

NOTICED_NS = 100_000_000
"""A hub may notice a death only so long after it; ranks that fail because of it report that at once. Those
that a launcher ends because another has failed die later than that."""
STALE_AFTER_S = 5.0
FIRST_STEP_AFTER_S = 20.0
"""From its start a job may take so long until its first step ends before anything is said."""
STALE_AFTER_STEPS = 5
"""No step ends for longer than both: five times the median of the last 32."""
_RECENT_STEPS = 32
HUNG_AFTER_S = 120.0
"""A rank that keeps the others waiting may save a checkpoint. Where the job is known to pause, it is given
`HUNG_AFTER_PAUSES` times its longest pause instead."""
HUNG_AFTER_PAUSES = 2.0
_MAY_BE_A_PAUSE = (Blame.NOT_ENTERED, Blame.DELAYED, Blame.UNKNOWN)
"""Of the others it is certain that they never end."""


class Kind(Enum):
    """What is wrong."""

    FAILED = "failed"
    """The first rank to fail sent the reason."""
    DIED = "died"
    """It ended without a reason of its own: by a signal, or os._exit."""
    ALL_DIED = "all died"
    """So did all others, in the same way: whoever did it to the first may have done it to each."""
    SILENT = "silent"
    """The hub receives nothing from some ranks, and no step of theirs ends."""
    WAITING = "waiting"
    """As HUNG, and the rank that the others wait for may still come, as after it has saved a checkpoint."""
    HUNG = "hung"
    """No step ends, no collective is issued, and some ranks stand in one that others keep from ending."""
    NO_STEP = "no step"
    """The hub receives messages of all ranks, and no step ends."""
    NO_FIRST_STEP = "no first step"
    """No rank has made a step yet, and none is known to move: they prepare, or wait for each other."""
    NO_STEP_SEEN = "no step seen"
    """No rank has made a step that is seen, and the script goes on."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The worst that is known of a job."""

    kind: Kind
    ranks: tuple[int, ...]
    """Those that it is about, in order; empty where no rank can be blamed. Before the first step those that
    have not come here."""
    since_ns: int
    """Unix time of the end, of the newest step, or of the job's begin before the first."""
    why: str = ""
    """``ValueError: ...``, as the rank itself sent it. Where no step is seen, its agent's reason."""
    others: int = 0
    """Ranks that ended badly after it."""
    hang: Hang | None = None
    """What hangs, where `kind` is HUNG or WAITING; without a step, at which lines ranks stand, if known."""
    lasted_ns: int = 0
    """Until now, where no rank has made a step."""
    silent: bool = False
    """The hub receives nothing from the ranks that it is about."""
    exit_code: int | None = None
    """Of the first rank that ended badly, as RankEnd has it."""


def is_stale(age_s: float, steps: Sequence[StepTotals]) -> bool:
    """Whether it is long since a rank's newest step ended, of one that makes ``steps``, oldest first."""
    if age_s <= STALE_AFTER_S:
        return False
    recent_ns = [step.step_ns for step in list(steps)[-_RECENT_STEPS:]]
    return age_s > STALE_AFTER_STEPS * median(recent_ns) / 1e9


def trouble_of(snapshot: Snapshot) -> Trouble | None:
    """What is wrong with the job; None: nothing that is known."""
    failure = first_failure(snapshot.ranks)
    if failure is not None:
        return failure
    if snapshot.hub_state is not HubState.LIVE:
        return None  # without a connection nothing is known of the ranks
    if not any(view.last is not None for view in snapshot.ranks):
        return _before_first_step(snapshot)
    running = [
        view
        for view in snapshot.ranks
        if view.age_s is not None
        and not view.ended
        and not view.node_lost
        and not (view.info is not None and view.info.agent_disabled)
    ]
    silent = [view for view in running if view.silent]
    standstills = {
        view.rank: view.standstill
        for view in snapshot.ranks
        if view.standstill is not None and not (view.silent or view.ended or view.node_lost)
    }
    ended = frozenset(view.rank for view in snapshot.ranks if view.ended)
    hang = hang_of(standstills, frozenset(view.rank for view in silent), ended) if standstills else None
    all_stale = bool(running) and all(view.stale for view in running)
    if all_stale and hang is not None and hang.blame is not Blame.NO_COLLECTIVE:
        mute = {view.rank for view in silent}.issuperset(hang.ranks)
        since_ns = _since_ns(snapshot, running)
        may_pause = hang.blame in _MAY_BE_A_PAUSE and not mute
        pauses = may_pause and snapshot.at_ns - since_ns < _hung_after_s(running) * 1e9
        kind = Kind.WAITING if pauses else Kind.HUNG
        return Trouble(kind, hang.ranks, since_ns, hang=hang, silent=mute)
    if silent:
        ranks = tuple(view.rank for view in silent)
        return Trouble(Kind.SILENT, ranks, _since_ns(snapshot, silent), silent=True)
    if all_stale:  # a long evaluation, or they hang where nobody sees it
        return Trouble(Kind.NO_STEP, (), _since_ns(snapshot, running), hang=hang)
    return None


def _hung_after_s(running: Sequence[RankView]) -> float:
    """How long a rank may keep the others waiting: clearly longer than the job's pauses."""
    longest_s = max(view.longest_step_ns for view in running) / 1e9
    is_pause = any(view.history and is_stale(longest_s, view.history) for view in running)
    return HUNG_AFTER_PAUSES * longest_s if is_pause else HUNG_AFTER_S


def _before_first_step(snapshot: Snapshot) -> Trouble | None:
    """Where the ranks are of a job that should have made a step by now."""
    here = [
        view
        for view in snapshot.ranks
        if view.info is not None and not (view.ended or view.node_lost or view.info.agent_disabled)
    ]
    standstills = {view.rank: view.standstill for view in here if view.standstill is not None}
    begun_ns = [each.since_ns for each in standstills.values() if each.since_ns is not None]
    if not here or snapshot.job is None or snapshot.replaying:
        return None
    since_ns = min(begun_ns, default=snapshot.job.started_ns)
    lasted_ns = snapshot.at_ns - since_ns
    if lasted_ns < FIRST_STEP_AFTER_S * 1e9:
        return None
    kind, why = Kind.NO_FIRST_STEP, ""
    absent = tuple(view.rank for view in snapshot.ranks if view.info is None)
    if standstills and not absent and not any(each.hung for each in standstills.values()):
        kind, why = Kind.NO_STEP_SEEN, next((view.info.source_reason for view in here if view.info), "")
    where = replace(hang_of(standstills, frozenset()), ranks=tuple(view.rank for view in here))
    return Trouble(kind, absent, since_ns, why, hang=where, lasted_ns=lasted_ns)


def first_failure(ranks: Sequence[RankView]) -> Trouble | None:
    """The rank that ended badly before all others: these lost their peer, or their launcher ended them."""
    seen = sum(view.info is not None or view.last is not None for view in ranks)
    return first_of([view.end for view in ranks if view.end is not None], seen)


def first_of(ends: Sequence[RankEnd], seen: int) -> Trouble | None:
    """As `first_failure`, of the ends of those that have ended of so many ranks."""
    failed = [end for end in ends if end.failed]
    if any(end.interrupted for end in ends):  # then the launcher ends by SIGTERM those that are left
        failed = [end for end in failed if end.exit_code != -signal.SIGTERM]
    if not failed:
        return None
    # With SIGTERM a launcher ends those that are left.
    own = [end for end in failed if end.exit_code != -signal.SIGTERM] or failed
    first = min(own, key=lambda end: end.at_ns - (0 if end.clean else NOTICED_NS))
    kind = Kind.FAILED if first.failure else Kind.DIED
    codes = {end.exit_code for end in failed}
    # How a rank ended is not known where its launcher asked first: that may have ended it, too.
    alike = len(codes) == 1 or codes == {None, -signal.SIGTERM}
    if len(failed) == seen > 1 and alike and not any(end.clean for end in failed):
        kind = Kind.ALL_DIED
    others = len(failed) - 1
    return Trouble(kind, (first.rank,), first.at_ns, first.failure, others, exit_code=first.exit_code)


def _since_ns(snapshot: Snapshot, views: Sequence[RankView]) -> int:
    """When the newest step ended; not later than it arrived, wherever its rank's clock is."""
    return max(
        min(snapshot.at_ns - round((view.age_s or 0.0) * 1e9), view.last.start_ns + view.last.step_ns)
        for view in views
        if view.last is not None
    )
