"""Decides whether a job hangs and which rank is to blame, or how it ended: one verdict for every view.

A hang has three signs. No step ends: JobState marks these ranks with `is_stale`. A rank's agent, which
normally sends something each second, is silent: only the hub can see that (hub/ranks.py). The agents that
still report say where their ranks are stuck (RankStalled), and `hang_cause.py` judges that. Before the
first step, a hang looks like a long preparation, so only the position of each rank is reported.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median

from overlaptop.fleet.hang_cause import Blame, Hang, hang_of
from overlaptop.fleet.snapshot import HubState, RankView, Snapshot, filled_hosts
from overlaptop.wire.messages import RankEnd, StepTotals

NOTICED_NS = 100_000_000
"""Maximum delay with which a hub notices a death. Ranks that fail because of it report that at once. Ranks
that a launcher ends because of another failure die later than this."""
STALE_AFTER_S = 5.0
FIRST_STEP_AFTER_S = 20.0  # Time from a job's start to its first step before anything is reported
STALE_AFTER_STEPS = 5
"""A rank is stale once its newest step is older than STALE_AFTER_S and five recent medians."""
_RECENT_STEPS = 32
HUNG_AFTER_S = 120.0
"""How long a rank may keep the others waiting, for example for a checkpoint. If the job is known to pause,
the limit is `HUNG_AFTER_PAUSES` times its longest pause."""
HUNG_AFTER_PAUSES = 2.0
_MAY_BE_A_PAUSE = (Blame.NOT_ENTERED, Blame.DELAYED, Blame.UNKNOWN)  # All other kinds certainly never end


class Kind(Enum):
    """Kind of problem."""

    FAILED = "failed"  # A rank failed first and sent the reason
    DIED = "died"  # A rank ended without a reason: by a signal, or os._exit
    ALL_DIED = "all died"  # All ranks died in the same way, so one cause may have killed each of them
    SILENT = "silent"  # The hub receives nothing from some ranks, and no step of theirs ends
    WAITING = "waiting"
    """As HUNG, but the blamed rank may still come, for example after it has saved a checkpoint."""
    HUNG = "hung"
    """No step ends, no collective is issued, and some ranks are in one that others keep from ending."""
    NO_STEP = "no step"  # All ranks still send messages, but no step ends
    NO_FIRST_STEP = "no first step"
    """No rank has made a step, and none is known to advance: they prepare, or wait for each other."""
    NO_STEP_SEEN = "no step seen"  # The script runs, but the agent has seen no step on any rank


@dataclass(frozen=True, slots=True)
class Trouble:
    """The worst known problem of a job."""

    kind: Kind
    ranks: tuple[int, ...]
    """Affected ranks; empty if none can be blamed. Before the first step: those not connected yet."""
    since_ns: int  # Unix time of the end, or of the newest step. Before the first step, of the job's start.
    why: str = ""  # ``ValueError: ...``, as sent by the rank. If no step is seen, the agent's reason.
    others: int = 0  # Ranks that ended badly after this one
    hang: Hang | None = None
    """The hang, if `kind` is HUNG or WAITING. Without a step, the ranks' lines, if known."""
    lasted_ns: int = 0  # Time until now, if no rank has made a step
    silent: bool = False  # The hub receives nothing from the affected ranks
    exit_code: int | None = None  # RankEnd's exit code of the first rank that ended badly
    hosts: tuple[str, ...] = ()
    """The hosts of silent ranks, if all of their ranks are silent and the job has other hosts."""


def is_stale(age_s: float, steps: Sequence[StepTotals]) -> bool:
    """Whether a rank's newest step ended long ago, judged by its ``steps``, oldest first."""
    if age_s <= STALE_AFTER_S:
        return False
    recent_ns = [step.step_ns for step in list(steps)[-_RECENT_STEPS:]]
    return age_s > STALE_AFTER_STEPS * median(recent_ns) / 1e9


def trouble_of(snapshot: Snapshot) -> Trouble | None:
    failure = first_failure(snapshot.ranks)
    if failure is not None:
        return failure
    if snapshot.hub_state is not HubState.LIVE:
        return None  # without a connection, the ranks' state is not known
    if not any(view.last is not None for view in snapshot.ranks):
        return _before_first_step(snapshot)
    here = [view for view in snapshot.ranks if not (view.ended or view.node_lost)]
    running = [
        view for view in here if view.age_s is not None and not (view.info and view.info.agent_disabled)
    ]
    silent = [view for view in running if view.silent]
    stalled = {view.rank: view.stalled for view in here if view.stalled is not None and not view.silent}
    ended = frozenset(view.rank for view in snapshot.ranks if view.ended)
    hang = hang_of(stalled, frozenset(view.rank for view in silent), ended) if stalled else None
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
        hosts = tuple(filled_hosts(ranks, snapshot.ranks))
        return Trouble(Kind.SILENT, ranks, _since_ns(snapshot, silent), silent=True, hosts=hosts)
    if all_stale:  # a long evaluation, or a hang that no agent can see
        return Trouble(Kind.NO_STEP, (), _since_ns(snapshot, running), hang=hang)
    return None


def _hung_after_s(running: Sequence[RankView]) -> float:
    """Return how long a rank may keep the others waiting: clearly longer than the job's pauses."""
    longest_s = max(view.longest_step_ns for view in running) / 1e9
    is_pause = any(view.history and is_stale(longest_s, view.history) for view in running)
    return HUNG_AFTER_PAUSES * longest_s if is_pause else HUNG_AFTER_S


def _before_first_step(snapshot: Snapshot) -> Trouble | None:
    here = [
        view
        for view in snapshot.ranks
        if view.info is not None and not (view.ended or view.node_lost or view.info.agent_disabled)
    ]
    stalled = {view.rank: view.stalled for view in here if view.stalled is not None}
    begun_ns = [each.since_ns for each in stalled.values() if each.since_ns is not None]
    if not here or snapshot.job is None or snapshot.replaying:
        return None
    since_ns = min(begun_ns, default=snapshot.job.started_ns)
    lasted_ns = snapshot.at_ns - since_ns
    if lasted_ns < FIRST_STEP_AFTER_S * 1e9:
        return None
    kind, why = Kind.NO_FIRST_STEP, ""
    absent = tuple(view.rank for view in snapshot.ranks if view.info is None)
    if stalled and not absent and not any(each.hung for each in stalled.values()):
        kind, why = Kind.NO_STEP_SEEN, next((view.info.source_reason for view in here if view.info), "")
    where = replace(hang_of(stalled, frozenset()), ranks=tuple(view.rank for view in here))
    return Trouble(kind, absent, since_ns, why, hang=where, lasted_ns=lasted_ns)


def first_failure(ranks: Sequence[RankView]) -> Trouble | None:
    """Return the rank that ended badly before others lost their peer or were ended by a launcher."""
    seen = sum(view.info is not None or view.last is not None for view in ranks)
    return first_of([view.end for view in ranks if view.end is not None], seen)


def first_of(ends: Sequence[RankEnd], seen: int) -> Trouble | None:
    """Apply `first_failure` to the ends of the ended ranks. ``seen``: ranks seen in total."""
    failed = [end for end in ends if end.failed]
    if any(end.interrupted for end in ends):  # the launcher then ends the remaining ranks by SIGTERM
        failed = [end for end in failed if end.exit_code != -signal.SIGTERM]
    if not failed:
        return None
    # A launcher ends the remaining ranks with SIGTERM.
    own = [end for end in failed if end.exit_code != -signal.SIGTERM] or failed
    first = min(own, key=lambda end: end.at_ns - (0 if end.clean else NOTICED_NS))
    kind = Kind.FAILED if first.failure else Kind.DIED
    codes = {end.exit_code for end in failed}
    # If the launcher collected the exit status first, it is unknown, and the launcher may have ended the
    # rank.
    alike = len(codes) == 1 or codes == {None, -signal.SIGTERM}
    if len(failed) == seen > 1 and alike and not any(end.clean for end in failed):
        kind = Kind.ALL_DIED
    others = len(failed) - 1
    return Trouble(kind, (first.rank,), first.at_ns, first.failure, others, exit_code=first.exit_code)


def hang_at_end(ranks: Sequence[RankView]) -> Hang | None:
    """Return where the ranks hung when they ended; None: they did not."""
    hung = {view.rank: view.stalled for view in ranks if view.stalled is not None and view.stalled.hung}
    return hang_of(hung, frozenset()) if hung else None


def _since_ns(snapshot: Snapshot, views: Sequence[RankView]) -> int:
    """Return when the newest step ended, at most its arrival, in case its rank's clock is ahead."""
    return max(
        min(snapshot.at_ns - round((view.age_s or 0.0) * 1e9), view.last.start_ns + view.last.step_ns)
        for view in views
        if view.last is not None
    )
