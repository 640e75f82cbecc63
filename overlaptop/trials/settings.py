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
    session: Session, held: JobKnob, values: Sequence[int], *, budget_steps: int | None = None
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

    value: int | None  # None for the present value, if no other is shorter
    effect: Effect | None  # Effect of that value. None for the present one.
    rivals: tuple[int, ...]  # Values that may be as short or shorter
    line: str  # Summary in one line
    code: str  # Python line that makes it permanent. Empty if not known, or if nothing should change.


def best_of(knob: Knob, state: TrialsState) -> Best | None:
    """Return the result of the trials. None before anything is known."""
    tried = {each.candidate.key: each for each in state.tried if not each.refused}
    known = {key: effect for key, each in tried.items() if (effect := each.effect) and effect.bounded}
    if not any(each.effect is not None and each.effect.bounded for each in state.tried):
        return None
    shorter = [key for key in known if verdict(tried[key]) == SHORTER]
    value = min(shorter, key=lambda key: known[key].centre, default=None)
    # Against the present value, a rival only has to be as short.
    least = known[value].high if value is not None else -SAME
    longer = {key for key, each in known.items() if each.low > least}
    rivals = tuple(key for key in tried if key != value and key not in longer)
    present = present_words(knob)
    also = ", ".join(value_words(knob, rival) for rival in rivals)
    if value is None:
        line = f"{knob.name} {present}: no value tried is shorter"
        return Best(None, None, rivals, line + (f"; not known of {also}" if also else ""), "")
    effect = known[value]
    line = (
        f"{knob.name} {tried[value].candidate.name}: a step {-100 * effect.centre:.1f} % shorter than with "
        f"{present} ({-100 * effect.high:.1f} to {-100 * effect.low:.1f} %)"
        + (f"; {also} may be as short" if also else "")
    )
    code = "" if knob.original_text == str(value) else code_line(knob, value)
    return Best(value, effect, rivals, line, code)
