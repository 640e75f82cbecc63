"""Slack: how much the job's step grows if one rank is delayed on purpose. Pure.

Each rank in turn is delayed by a known time in each step of a trial. The slope of the step's length over
the delay is 1 if the rank is on the critical path, and 0 if the job waits for something else anyway.
"""

from collections.abc import Sequence
from functools import partial
from statistics import median

from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.text import duration
from overlaptop.timeline.averages import sigma
from overlaptop.trials.effect import LOOKS, Effect, slope
from overlaptop.trials.runner import Candidate, Trials, Tried, trial_steps
from overlaptop.wire.commands import HOW_TO_ALLOW, make_delay
from overlaptop.wire.messages import AGENT_DISABLED

SHARE, JITTERS = 0.02, 3.0  # Default delay: SHARE of the step, or JITTERS times its jitter if that is more
USUAL_STEPS = 50  # Newest steps of a rank, to estimate the step's length and jitter
NARROW = 0.2
"""A slope is known once its interval extends at most this far to each side. Excluding a value is no
criterion: intervals of trials that stop then are biased."""
HALF = 0.5  # Threshold between slack and critical
CRITICAL, SLACK, PARTLY, NOT_KNOWN = "critical", "slack", "partly critical", "not known"
REFUSED = "refused"


def refusal(snapshot: Snapshot) -> str:
    """Return why no rank of the job can be delayed, as one line. Empty if they can."""
    for view in snapshot.ranks:
        if view.info is not None and view.info.agent_disabled:
            return f"rank {view.rank}: {AGENT_DISABLED}"
        if view.info is not None and not view.info.control_allowed:
            return f"{HOW_TO_ALLOW} trials"
    return ""


def usual_step_ns(snapshot: Snapshot) -> float:
    """Return the median of the newest steps. 0 before the first."""
    return median(_lengths_ns(snapshot))


def usual_delay_ns(snapshot: Snapshot) -> int:
    """Return SHARE of the step, or JITTERS times its jitter: a shorter delay would be lost in that."""
    lengths_ns = _lengths_ns(snapshot)
    return max(1, round(SHARE * median(lengths_ns)), round(JITTERS * sigma(lengths_ns)))


def _lengths_ns(snapshot: Snapshot) -> list[int]:
    """Return the lengths of the newest undisturbed steps of the lowest rank that has any; else 0."""
    steps = next((view.history[-USUAL_STEPS:] for view in snapshot.ranks if view.history), ())
    return [step.step_ns for step in steps if not step.disturbed] or [0]


def delay_ranks(
    session: Session, ranks: Sequence[int], delay_ns: int, place: int, *, budget_steps: int | None = None
) -> Trials:
    """Return trials that delay each of these ranks in turn. ``place``: commands.HOST or GPU.

    Raises ValueError with one line if the delay is not allowed.
    """
    candidates = [
        Candidate(rank, f"rank {rank}", partial(make_delay, rank, delay_ns, place)) for rank in ranks
    ]
    for candidate in candidates:
        candidate.make(1)
    return Trials(session, candidates, slope, is_narrow, budget_steps=budget_steps)


def is_narrow(effect: Effect) -> bool:
    """Whether a slope is known well enough."""
    return effect.pairs in LOOKS and (
        effect.high - effect.absorbed - effect.low - effect.woken <= 2 * NARROW
    )


def cost_words(ranks: int, delay_ns: int, step_ns: float) -> str:
    """Return what the job loses at most if each rank is delayed in the fewest trials, as words."""
    return f"costs the job {duration(ranks * LOOKS[0] * trial_steps(step_ns) * delay_ns)} or more"


def verdict(tried: Tried) -> str:
    """Return the trials' verdict on a rank, in one or two words."""
    effect = tried.effect
    if tried.refused:
        return REFUSED
    if effect is None or not effect.bounded:
        return NOT_KNOWN
    if effect.low > HALF:
        return CRITICAL
    if effect.high < HALF:
        return SLACK
    return PARTLY if effect.low > 0 and effect.high < 1 else NOT_KNOWN


def slope_words(effect: Effect | None) -> str:
    """``0.93 (0.84 to 1.02)``."""
    if effect is None:
        return ""
    if not effect.bounded:
        return f"{effect.centre:.2f}"
    return f"{effect.centre:.2f} ({effect.low:.2f} to {effect.high:.2f})"
