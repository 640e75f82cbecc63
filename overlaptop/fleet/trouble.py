"""Whether a job hangs, and which rank is to blame, or how it came to an end: one verdict for every view.

Three things show a hang. No step ends (`is_stale`, here): Fleet marks such ranks. A rank's agent, which
sends something each second, is silent: only the hub can see that (hub/ranks.py), and publishes it. And the
agents that still speak say in what their ranks stand (Standstill), which `hang_cause.py` judges. Pure.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from overlaptop.fleet.hang_cause import Blame, Hang, hang_of
from overlaptop.fleet.snapshot import HubState, RankView, Snapshot
from overlaptop.wire.messages import RankEnd, StepTotals

NOTICED_NS = 100_000_000
"""A hub may notice a death only so long after it; ranks that fail because of it report that at once. Those
that a launcher ends because another has failed die later than that."""
STALE_AFTER_S = 5.0
STALE_AFTER_STEPS = 5
"""No step ends for longer than both: five times the median of the last 32."""
_RECENT_STEPS = 32


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
    HUNG = "hung"
    """No step ends, no collective is issued, and some ranks stand in one that others keep from ending."""
    NO_STEP = "no step"
    """The hub receives messages of all ranks, and no step ends."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The worst that is known of a job."""

    kind: Kind
    ranks: tuple[int, ...]
    """Those that it is about, in order; empty where no rank can be blamed."""
    since_ns: int
    """Unix time of the end, or of the newest step."""
    why: str = ""
    """``ValueError: ...``, as the rank itself sent it."""
    others: int = 0
    """Ranks that ended badly after it."""
    hang: Hang | None = None
    """What hangs, where `kind` is HUNG; where it is NO_STEP, at which lines ranks stand, if known."""
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
        view.rank: view.standstill for view in running if view.standstill is not None and not view.silent
    }
    ended = frozenset(view.rank for view in snapshot.ranks if view.ended)
    hang = hang_of(standstills, frozenset(view.rank for view in silent), ended) if standstills else None
    all_stale = bool(running) and all(view.stale for view in running)
    if all_stale and hang is not None and hang.blame is not Blame.NO_COLLECTIVE:
        mute = {view.rank for view in silent}.issuperset(hang.ranks)
        return Trouble(Kind.HUNG, hang.ranks, _since_ns(snapshot, running), hang=hang, silent=mute)
    if silent:
        ranks = tuple(view.rank for view in silent)
        return Trouble(Kind.SILENT, ranks, _since_ns(snapshot, silent), silent=True)
    if all_stale:  # a long evaluation, or they hang where nobody sees it
        return Trouble(Kind.NO_STEP, (), _since_ns(snapshot, running), hang=hang)
    return None


def first_failure(ranks: Sequence[RankView]) -> Trouble | None:
    """The rank that ended badly before all others: these lost their peer, or their launcher ended them."""
    seen = sum(view.info is not None or view.last is not None for view in ranks)
    return first_of([view.end for view in ranks if view.end is not None], seen)


def first_of(ends: Sequence[RankEnd], seen: int) -> Trouble | None:
    """As `first_failure`, of the ends of those that have ended of so many ranks."""
    failed = [end for end in ends if end.failed]
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
