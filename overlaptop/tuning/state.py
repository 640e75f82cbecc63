"""The state of a search as screens and commands show it, frozen; and the words of its last line. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from overlaptop.tuning.forecast import CurveSample, Forecast
from overlaptop.tuning.search import BestValue, MeasuredValue, ValueSearch
from overlaptop.wire.knobs import Knob


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """Consecutive steps with one value."""

    value: int
    round: int
    first_step: int
    """As the ranks count them."""
    steps_ns: tuple[int, ...]
    """The median over the ranks, step by step; disturbed steps left out."""
    exposed_ns: int | None
    """The median of the steps in which it was measured; None: of none."""


@dataclass(frozen=True, slots=True)
class CurvePoint(MeasuredValue):
    """A value that was measured, beside what the model predicts. Times of one step."""

    exposed_ns: int | None
    predicted_ns: float | None
    """The prediction now, the model having seen all that was measured; None: there is no model."""
    foretold_ns: float | None
    """The prediction before the value was measured; None: there was no model yet."""

    @property
    def model_error(self) -> float | None:
        """By what share of the step the model is off now."""
        return None if self.predicted_ns is None else self.predicted_ns / self.step_ns - 1

    @property
    def foretold_error(self) -> float | None:
        """By what share of the step it was off before it had seen the value."""
        return None if self.foretold_ns is None else self.foretold_ns / self.step_ns - 1


@dataclass(frozen=True, slots=True)
class Result:
    """What a search found. Shares are of the step with the value before."""

    value: int
    before_text: str
    """The value before, as a person reads it."""
    saves: float
    saves_low: float
    saves_high: float
    """Infinite where too few steps were measured, or one of the two values only once."""
    confidence: float
    known: bool
    """Else it ended before the best was known."""
    spent: bool
    """That was because its steps were spent."""
    rivals_gain: float | None
    """By what share of the step the best of the other measured values may still be shorter, at most; None:
    not known.
    """
    line: str
    """All that in one line."""
    code: str
    """The line that makes it permanent; empty: not known, or the script has it already."""
    first_guess: bool = False
    """It was measured once only."""


@dataclass(frozen=True, slots=True)
class SearchState:
    """A search at one moment."""

    knob: Knob
    """As it was when the search began."""
    least: int
    most: int
    doing: str
    """One line."""
    over: bool
    why: str
    """Once it is over, or about to be: why it ended, in words."""
    failed: bool
    """It ended before its time, and not because somebody wished so."""
    now: int | None
    """The value that is being measured; None: none."""
    best: int | None
    """The one of ``points`` with the shortest step; None before there is one."""
    candidates: int
    """Values that may still be the best."""
    points: tuple[CurvePoint, ...]
    predicted: tuple[CurveSample, ...]
    """The model's curve over the whole range, by rising value; empty: there is none."""
    model_reason: str
    """Why there is no model."""
    windows: tuple[MeasuredWindow, ...]
    """In the order in which they were measured."""
    round: int
    """From 1 on."""
    steps_spent: int
    steps_to_go: int | None
    """At most: the budget's rest, which never grows. None: not known yet, or nothing is measured any
    more.
    """
    seconds_to_go: float | None
    """Likewise, at the pace so far."""
    result: Result | None
    """Once something is known and nothing more is measured."""
    caveat: str = ""
    """What is to be held against ``best`` while it leads, in short; empty: nothing."""
    left: str = ""
    """Once it is over: which value the job has now, as a sentence without a full stop; empty: that is not
    known, or there is no job any more.
    """
    alike_from: int | None = None
    """From this value on, up to ``most``, the job does the same; None: it does not, or not known yet."""


def curve_points(
    search: ValueSearch, forecast: Forecast, windows: Sequence[MeasuredWindow]
) -> tuple[CurvePoint, ...]:
    """What was measured of each value, by rising value, beside what the model predicts."""
    exposed: dict[int, list[int]] = {}
    for window in windows:
        if window.exposed_ns is not None:
            exposed.setdefault(window.value, []).append(window.exposed_ns)
    return tuple(
        CurvePoint(
            value=point.value,
            state=point.state,
            windows=point.windows,
            steps=point.steps,
            step_ns=point.step_ns,
            low_ns=point.low_ns,
            high_ns=point.high_ns,
            exposed_ns=round(median(exposed[point.value])) if point.value in exposed else None,
            predicted_ns=forecast.step_ns(point.value),
            foretold_ns=forecast.foretold_ns(point.value),
        )
        for point in search.points()
    )


def make_result(knob: Knob, found: BestValue, confidence: float) -> Result:
    """What was found, in figures and in words."""
    has_it = knob.original_text == str(found.value)
    return Result(
        value=found.value,
        # Where the job has no whole number, the one that was measured in its place.
        before_text=knob.value_text if knob.value is not None else str(found.before),
        saves=found.saves,
        saves_low=found.saves_low,
        saves_high=found.saves_high,
        confidence=confidence,
        known=found.known,
        spent=found.spent,
        rivals_gain=found.rivals_gain,
        line=result_line(knob, found, confidence),
        code="" if has_it else knob.code.replace("{value}", str(found.value)),
        first_guess=found.once,
    )


def value_text(knob: Knob, value: int) -> str:
    """``25 MiB``, ``4``."""
    return f"{value} {knob.unit}".rstrip()


def caveat(knob: Knob, found: BestValue | None) -> str:
    """What is to be held against the value that leads; empty: nothing."""
    if found is None or found.value == found.before:
        return ""
    if found.once:
        return "measured once"
    return "" if found.saves_low > 0 else f"within noise of {value_text(knob, found.before)}"


def result_line(knob: Knob, found: BestValue, confidence: float) -> str:
    """The last line: the best setting, what it saves, how sure."""
    best = f"{knob.name} {value_text(knob, found.value)}"
    if found.value == found.before:
        best += ", as it was" if knob.value is not None else f", measured in place of {knob.value_text}"
    if found.once:
        best += f", a first guess ({'each value' if found.all_once else 'it'} was measured once only)"
    elif not found.known:
        best += ", the best so far"
    facts = []
    if found.value != found.before:
        facts.append(_saves_words(found, value_text(knob, found.before)))
    if found.rivals_gain is None:
        facts.append("whether another value is shorter is not known")
    elif found.known:
        facts.append(f"no other measured value is shorter by more than {_percent(found.rivals_gain)} %")
    else:
        facts.append(f"another measured value may still be up to {_percent(found.rivals_gain)} % shorter")
    line = f"{best}: {'; '.join(facts)}"
    if found.rivals_gain is not None:
        line += f", with {100 * confidence:g} % confidence"
    if found.known:
        return line
    how = "had spent its steps" if found.spent else "ended"
    return f"{line}. The search {how} before the best was known"


def _saves_words(found: BestValue, before: str) -> str:
    """What the best value saves. The interval is not known with very few windows or steps."""
    if not math.isfinite(found.saves_low):
        return f"whether a step is shorter than with {before} is not known"
    interval = f"({_percent(found.saves_low)} to {_percent(found.saves_high)} %)"
    if found.saves_low > 0:
        return f"a step {_percent(found.saves)} % shorter than with {before} {interval}"
    return f"not shorter than with {before} beyond noise {interval}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f}"
