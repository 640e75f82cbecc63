"""The state of a search as screens and commands show it, frozen; and the words of its last line. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from overlaptop.report.knobs import code_line, value_words
from overlaptop.tuning.search import CONFIDENCE, BestValue, MeasuredValue, ValueSearch
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
class Result:
    """What a search found, and how it is said."""

    found: BestValue
    before_text: str
    """The value before, as a person reads it."""
    line: str
    """All that in one line."""
    code: str
    """The line that makes it permanent; empty: not known, no better than before, or the script has it."""


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
    points: tuple[MeasuredValue, ...]
    """By rising value."""
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


def measured_points(search: ValueSearch, windows: Sequence[MeasuredWindow]) -> tuple[MeasuredValue, ...]:
    """What was measured of each value, exposed included, by rising value."""

    def exposed_ns(value: int) -> int | None:
        known = [each.exposed_ns for each in windows if each.value == value and each.exposed_ns is not None]
        return round(median(known)) if known else None

    return tuple(replace(point, exposed_ns=exposed_ns(point.value)) for point in search.points())


def make_result(knob: Knob, found: BestValue) -> Result:
    """What was found, in figures and in words."""
    unwanted = knob.original_text == str(found.value) or not (found.better or found.value == found.before)
    return Result(
        found,
        # Where the job has no whole number, the one that was measured in its place.
        before_text=knob.value_text if knob.value is not None else str(found.before),
        line=_result_line(knob, found),
        code="" if unwanted else code_line(knob, found.value),
    )


def caveat(knob: Knob, found: BestValue | None) -> str:
    """What is to be held against the value that leads; empty: nothing."""
    if found is None or found.value == found.before:
        return ""
    if found.once:
        return "measured once"
    return "" if found.better else f"within noise of {value_words(knob, found.before)}"


def _result_line(knob: Knob, found: BestValue) -> str:
    """The last line: the best setting, what it saves, how sure."""
    best = f"{knob.name} {value_words(knob, found.value)}"
    if found.value == found.before:
        best += ", as it was" if knob.value is not None else f", measured in place of {knob.value_text}"
    if found.once:
        best += f", a first guess ({'each value' if found.all_once else 'it'} was measured once only)"
    elif not found.known:
        best += ", the best so far"
    facts = []
    if found.value != found.before:
        facts.append(_saves_words(found, value_words(knob, found.before)))
    if found.rivals_gain is None:
        facts.append("whether another value is shorter is not known")
    elif found.known:
        facts.append(f"no other measured value is shorter by more than {_percent(found.rivals_gain)} %")
    else:
        facts.append(f"another measured value may still be up to {_percent(found.rivals_gain)} % shorter")
    line = f"{best}: {'; '.join(facts)}"
    if found.rivals_gain is not None:
        line += f", with {100 * CONFIDENCE:g} % confidence"
    if found.known:
        return line
    how = "had spent its steps" if found.spent else "ended"
    return f"{line}. The search {how} before the best was known"


def _saves_words(found: BestValue, before: str) -> str:
    """What the best value saves. The interval is not known with very few windows or steps."""
    if not math.isfinite(found.saves_low):
        return f"whether a step is shorter than with {before} is not known"
    interval = f"({_percent(found.saves_low)} to {_percent(found.saves_high)} %)"
    if found.better:
        return f"a step {_percent(found.saves)} % shorter than with {before} {interval}"
    return f"not shorter than with {before} beyond noise {interval}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f}"
