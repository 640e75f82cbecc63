"""Trials of a knob's values against the present one, and their verdicts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from overlaptop.fleet.knobs import JobKnob
from overlaptop.fleet.session import Session
from overlaptop.report.knobs import code_line, present_words, value_words
from overlaptop.trials.effect import SAME, Effect, is_known, relative
from overlaptop.trials.runner import Candidate, Trials, TrialsState, Tried
from overlaptop.wire.commands import make_trial
from overlaptop.wire.knobs import Knob

SHORTER, LONGER, NO_DIFFERENCE, NOT_KNOWN = "shorter", "longer", "no difference", "not known"
REFUSED = "refused"


def try_values(
    session: Session,
    held: JobKnob,
    values: Sequence[int],
    *,
    budget_steps: int | None = None,
) -> Trials:
    """Return trials of these values of a knob, each against the present one, which may be among them.

    Raises ValueError with one line if the knob, or one of the values, cannot be tried.
    """
    knob = held.knob
    if held.refusal:
        raise ValueError(f"{knob.name} cannot be changed: {held.refusal}")
    if held.differs:
        raise ValueError(f"ranks have different values of {knob.name}: set it first")
    if knob.changes_work:
        raise ValueError(
            f"a step does another amount of work with another {knob.name}: the shortest is not the best"
        )
    others = [value for value in dict.fromkeys(values) if value != knob.value]
    if not others:
        raise ValueError(f"{knob.name} is {present_words(knob)} already: name others to try against it")
    for value in others:
        if why := knob.fault(value):
            raise ValueError(why)
    candidates = [
        Candidate(value, value_words(knob, value), partial(make_trial, knob, value)) for value in others
    ]
    return Trials(session, candidates, relative, is_known, budget_steps=budget_steps)


def verdict(tried: Tried) -> str:
    """Return the trials' verdict on a value, in one or two words."""
    effect = tried.effect
    if tried.refused:
        return REFUSED
    if effect is None or not effect.bounded:
        return NOT_KNOWN
    if effect.lies_within(SAME):
        return NO_DIFFERENCE
    if effect.differs:
        return SHORTER if effect.high < 0 else LONGER
    return NOT_KNOWN


def difference_words(effect: Effect | None) -> str:
    """``-3.1 % (-3.8 to -2.4)``. Without an interval, only the difference."""
    if effect is None:
        return ""
    centre, low, high = (100 * each for each in (effect.centre, effect.low, effect.high))
    return f"{centre:+.1f} % ({low:+.1f} to {high:+.1f})" if effect.bounded else f"{centre:+.1f} %"


@dataclass(frozen=True, slots=True)
class Best:
    """The value with the shortest step."""

    value: int | None
    """None for the present value, if no other is shorter."""
    effect: Effect | None
    """Effect of that value. None for the present one."""
    rivals: tuple[int, ...]
    """Values that may be as short or shorter."""
    line: str
    """Summary in one line."""
    code: str
    """Python line that makes it permanent. Empty if not known, or if nothing should change."""


def best_of(knob: Knob, state: TrialsState) -> Best | None:
    """Return the result of the trials. None before anything is known."""
    measured = [each for each in state.tried if each.effect is not None and each.effect.bounded]
    if not measured:
        return None
    shorter = [each for each in measured if verdict(each) == SHORTER]
    best = min(shorter, key=_centre, default=None)
    limit = best.effect.high if best is not None and best.effect is not None else 0.0
    rivals = tuple(
        each.candidate.key
        for each in state.tried
        if each is not best and not each.refused and not _is_longer(each, limit, best is not None)
    )
    present = present_words(knob)
    also = ", ".join(value_words(knob, value) for value in rivals)
    if best is None or best.effect is None:
        line = f"{knob.name} {present}: no value tried is shorter"
        return Best(None, None, rivals, line + (f"; not known of {also}" if also else ""), "")
    low, high = -100 * best.effect.high, -100 * best.effect.low
    line = (
        f"{knob.name} {best.candidate.name}: a step {-100 * best.effect.centre:.1f} % shorter than with "
        f"{present} ({low:.1f} to {high:.1f} %)" + (f"; {also} may be as short" if also else "")
    )
    value = best.candidate.key
    code = "" if knob.original_text == str(value) else code_line(knob, value)
    return Best(value, best.effect, rivals, line, code)


def _centre(tried: Tried) -> float:
    return tried.effect.centre if tried.effect is not None else 0.0


def _is_longer(tried: Tried, limit: float, of_best: bool) -> bool:
    """Whether a value is no rival: longer than the best.
    If the present value is best, not shorter suffices.
    """
    effect = tried.effect
    if effect is None or not effect.bounded:
        return False
    return effect.low > limit if of_best else effect.low >= -SAME
