"""Slack: how much the job's step grows when one rank is late on purpose. Pure.

Each rank in turn is delayed by a known time in each step of a trial. The slope of the step's length over
the delay is 1 where the rank is on the critical path, and 0 where the job waits for something else anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.trials.effect import LOOKS, Effect, slope
from overlaptop.trials.runner import Candidate, Trials, Tried, trial_steps
from overlaptop.wire.commands import HOW_TO_ALLOW, make_delay
from overlaptop.wire.messages import AGENT_DISABLED

SHARE = 0.02
"""Of the step: the delay where none is given."""
NARROW = 0.2
"""A slope is known once its interval reaches no farther to each side. Not once it leaves something out:
intervals of what stops so are too far off."""
HALF = 0.5
"""Between slack and critical."""
CRITICAL, SLACK, PARTLY, NOT_KNOWN = "critical", "slack", "partly critical", "not known"
REFUSED = "refused"


def refusal(snapshot: Snapshot) -> str:
    """Why no rank of the job can be delayed, in one line; empty: they can."""
    for view in snapshot.ranks:
        if view.info is not None and view.info.agent_disabled:
            return f"rank {view.rank}: {AGENT_DISABLED}"
        if view.info is not None and not view.info.control_allowed:
            return f"{HOW_TO_ALLOW} trials"
    return ""


def delay_ranks(
    session: Session,
    ranks: Sequence[int],
    delay_ns: int,
    place: int,
    *,
    budget_steps: int | None = None,
    seed: int = 0,
) -> Trials:
    """Trials that delay each of these ranks in turn. ``place``: commands.HOST or GPU.

    Raises ValueError with one line where the delay is not allowed.
    """
    candidates = [
        Candidate(rank, f"rank {rank}", partial(make_delay, rank, delay_ns, place)) for rank in ranks
    ]
    for candidate in candidates:
        candidate.make(1)
    return Trials(
        session,
        candidates,
        slope,
        is_narrow,
        budget_steps=budget_steps,
        seed=seed,
    )


def is_narrow(effect: Effect) -> bool:
    """Whether a slope is known well enough."""
    return effect.pairs in LOOKS and effect.high - effect.low <= 2 * NARROW


def least_cost_ns(ranks: int, delay_ns: int, step_ns: float) -> int:
    """By how much the job is later at most, once each rank was delayed in the fewest trials."""
    return ranks * LOOKS[0] * trial_steps(step_ns) * delay_ns


def verdict(tried: Tried) -> str:
    """What the trials say of a rank, in a word or two."""
    effect = tried.effect
    if tried.refused:
        return REFUSED
    if effect is None or not effect.bounded:
        return NOT_KNOWN
    if effect.low > HALF:
        return CRITICAL
    if effect.high < HALF:
        return SLACK
    return PARTLY if tried.known else NOT_KNOWN


def slope_words(effect: Effect | None) -> str:
    """``0.93 (0.84 to 1.02)``."""
    if effect is None:
        return ""
    if not effect.bounded:
        return f"{effect.centre:.2f}"
    return f"{effect.centre:.2f} ({effect.low:.2f} to {effect.high:.2f})"
