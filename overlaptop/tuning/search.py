"""Which value of a knob to measure next, until the best is known. Pure: it measures nothing itself.

A ladder of values in even factors, and successive halving. In the first round each value of the ladder
gets one window of steps. Each later round measures half as many, down to two: the shortest, and the rivals
that may still be shorter and look best. Values in the middle between the shortest and its neighbours join.
So it ends with two values that are measured in turn, until one is longer beyond doubt or they are
equivalent; then the next rival has its turn. The search is over when none is left.

Rounds go forwards and backwards in turn, so that a drift of the machine counts for none of the values, and
all windows are compared with the drift taken off (`InterleavedWindows`).

One window alone decides little, for the machine may have changed beside it: a value that was measured once
is eliminated only where it is longer by `ONCE` beyond doubt. The second round measures again the first
one's last value and the one that the job had before, so that a drift meanwhile shows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from statistics import median

from overlaptop.stats.interleaved import InterleavedWindows, SettingWindow
from overlaptop.tuning.space import Space

LADDER = 9
"""Values of the first round, the one before included. With 7 the simulated machines of
benchmarks/search_simulated.py have the search miss six times as often, with 10 more than twice."""
LATER_WINDOWS = 3
"""Windows of the budget that are left for the rounds after the first; else the ladder is shorter."""
REFINED_ROUNDS = 2
"""After each of so many rounds values beside the shortest may join."""
REFINED_RATIO = 2.0
"""Where they are farther apart than this factor."""
ONCE = 0.05
"""A value that was measured once is eliminated only where it is longer by so much beyond doubt, and by
ONCE_NOISES times the noise of a window: the machine may have drifted meanwhile."""
ONCE_NOISES = 3.0
CUT_STEPS, CUT_ABOVE = 6, 0.15
"""A window ends early, with so many steps, when all but one are longer than the shortest value's by this
share."""
SWITCH_STEPS = 4
"""Steps between two windows, until some have been seen."""
FEWEST_WINDOWS, MOST_STEPS = 22, 2_000
"""Where no budget is given, so many windows, or as many more as it takes to tell two values apart that
differ by the indifference: up to MOST_STEPS."""
FROZEN_ROUND = 2
"""From this round on, counted from 0, a budget that was not given stays as it is."""
INDIFFERENCE = 0.01
"""A share of the step: what is shorter by less is not worth the search."""
CONFIDENCE = 0.95
"""That all that is called eliminated or equivalent is."""


class State(Enum):
    """What has become of a value."""

    CANDIDATE = "candidate"
    """It may be the best."""
    EQUIVALENT = "equivalent"
    """Not shorter than the best by more than the indifference; perhaps as good."""
    ELIMINATED = "eliminated"
    """Longer than the best."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What a search may cost."""

    window_steps: int = 12
    """Steps of a value in one round."""
    budget_steps: int | None = None
    """After so many no window begins, and the best so far is reported; None: as FEWEST_WINDOWS says."""


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """What was measured of a value."""

    value: int
    state: State
    windows: int
    steps: int
    step_ns: float
    """The drift of the machine taken off."""
    low_ns: float
    high_ns: float
    """Where it lies with 95 % confidence; 0 and infinite where there are too few steps."""
    exposed_ns: int | None = None
    """The median of its windows; None: of none, or not asked for."""


@dataclass(frozen=True, slots=True)
class BestValue:
    """The best value as far as is known. Shares are of the step with the value before."""

    value: int
    before: int
    known: bool
    """No other may still be the best, and none was still to be tried."""
    spent: bool
    """It is not known, because the budget was spent first."""
    saves: float
    saves_low: float
    saves_high: float
    """With CONFIDENCE. 0 all three where the best is the value before; the bounds are
    infinite where there are too few steps, or one of the two was measured once only.
    """
    rivals_gain: float | None
    """By what share of the step the best of the other measured values may still be shorter, at most; None:
    no other was measured, or there are too few steps.
    """
    once: bool = False
    """The best was measured once only, of several."""
    all_once: bool = False
    """So was every value."""

    @property
    def better(self) -> bool:
        """A step is shorter than with the value before, beyond noise."""
        return self.saves_low > 0


class ValueSearch:
    """``next`` and ``following`` say what to measure, ``add`` takes what came of it, until ``over``."""

    def __init__(self, space: Space, before: int, options: SearchOptions | None = None) -> None:
        """``before``: the value that the job has now; it is measured first."""
        self.space, self.before = space, before
        self.options = options or SearchOptions()
        self.over = False
        self.spent_steps = 0
        """All that have passed since the search began: windows, and what lies between them."""
        self.round = 0
        self._windows: list[SettingWindow] = []
        self._measured: list[int] = []
        """In this round, in order."""
        self._known = self._untried = False
        """The best is known; there was no room for a value that was worth a try."""
        self._frozen_budget: int | None = None
        """Where none was given, once it is known."""
        self._comparison: _Comparison | None = None
        self._queue = self._first_round()
        """What is left of this round."""
        self._size = len(self._queue)
        """How many values a round may have, less those that join."""

    def _first_round(self) -> list[int]:
        """The value before, then the ladder, such that neighbours are far apart: a drift does not look like
        a slope.
        """
        ladder = self.space.ladder(max(2, min(LADDER, self._windows_left - LATER_WINDOWS)), self.before)
        rest = [value for value in ladder if value != self.before]
        half = (len(rest) + 1) // 2
        low, high = rest[:half], rest[half:]
        pairs = [value for pair in zip(high, low, strict=False) for value in pair]
        return [self.before, *pairs, *low[len(high) :]]

    @property
    def next(self) -> int | None:
        """The value that is to be measured now; None: the search is over."""
        return self._queue[0] if self._queue else None

    @property
    def following(self) -> int | None:
        """The value after that; None: that depends on what comes of the present one."""
        return self._queue[1] if len(self._queue) > 1 else None

    @property
    def window_steps(self) -> int:
        """Steps that the window under way should have."""
        return self.options.window_steps

    def enough(self, steps_ns: Sequence[float]) -> bool:
        """Whether the window under way may end with these steps."""
        if len(steps_ns) >= self.window_steps:
            return True
        # Of this round and about the one before: the machine may have been another one earlier.
        lately = self._windows[-(self._size + len(self._measured)) :]
        if len(steps_ns) < CUT_STEPS or not lately:
            return False
        shortest_ns = min(median(window.values) for window in lately)
        return sorted(steps_ns)[1] > shortest_ns * (1 + CUT_ABOVE)

    def spend(self, steps: int) -> None:
        """So many steps have passed."""
        self.spent_steps += steps

    def add(self, steps_ns: Sequence[float]) -> None:
        """The window of ``next`` is in."""
        value = self._queue.pop(0)
        self._windows.append(SettingWindow(value, tuple(steps_ns)))
        self._measured.append(value)
        self._comparison = None
        if not self._queue:
            self._next_round()
        switch_steps = self._switch_steps if self._queue[:1] != [value] else 0.0
        if self._queue and self.spent_steps + switch_steps + self.window_steps > self.budget_steps:
            self._queue, self.over = [], True

    def _next_round(self) -> None:
        seen = self._compared
        rivals = sorted(seen.rivals, key=seen.step_ns.__getitem__)
        if self.round + 1 >= FROZEN_ROUND and self._frozen_budget is None:
            self._frozen_budget = self.budget_steps
        beside = self._beside_shortest() if self.round < REFINED_ROUNDS else []
        unsure = [value for value in (seen.shortest, self.before) if seen.windows.get(value) == 1]
        if not rivals and not beside and (not unsure or len(seen.windows) == 1):
            self.over, self._known = True, not self._untried
            return
        self._size = max(2, math.ceil(self._size / 2))
        last = self._measured[-1:] if self.round == 0 else []
        stay = list(
            dict.fromkeys([seen.shortest, seen.incumbent, *unsure, *last, *rivals[: self._size - 1]])
        )
        # Each that joins is to be measured twice, beside two others.
        room = max(0, self._windows_left - len(stay) - 2) // 2
        self._untried = len(beside) > room
        beside = beside[:room]
        again = [value for value in reversed(self._measured) if value in stay]
        others = [value for value in stay if value not in again]
        # New ones early: should the budget end in this round, those that were never tried matter most.
        self._queue = [*again[:1], *beside, *again[1:], *others]
        self._measured = []
        self.round += 1

    def _beside_shortest(self) -> list[int]:
        """Values in the middle between the shortest and its neighbours, where these are far apart."""
        seen = self._compared
        values = sorted(seen.windows)
        at = values.index(seen.shortest)
        here = self.space.position(seen.shortest)
        middles = [
            self.space.near((here + there) / 2)
            for there in map(self.space.position, (*values[max(0, at - 1) : at], *values[at + 1 : at + 2]))
            if abs(here - there) > math.log(REFINED_RATIO)
        ]
        return [value for value in middles if not any(self.space.same(value, other) for other in values)]

    # The budget

    @property
    def budget_steps(self) -> int:
        """After so many steps no window begins; an estimate until ``steps_to_go`` is known."""
        given = self.options.budget_steps
        if given is not None or self._frozen_budget is not None:
            return given if given is not None else self._frozen_budget or 0
        windows = FEWEST_WINDOWS
        if self.round:
            noise = self._compared.noise / INDIFFERENCE
            windows = max(
                windows, min(math.ceil(3 * (1.5 * noise) ** 2), int(MOST_STEPS / self._window_cost))
            )
        return math.ceil(windows * self._window_cost)

    @property
    def steps_to_go(self) -> int | None:
        """At most; it never grows. None: not known before the noise is."""
        if self.options.budget_steps is None and self._frozen_budget is None:
            return None
        return max(0, self.budget_steps - self.spent_steps)

    @property
    def _windows_left(self) -> int:
        return max(0, int((self.budget_steps - self.spent_steps) / self._window_cost))

    @property
    def _window_cost(self) -> float:
        """Steps that a window takes, with the switch before it."""
        lengths = [len(window.values) for window in self._windows] or [0]
        return max(self.window_steps, median(lengths)) + self._switch_steps

    @property
    def _switch_steps(self) -> float:
        if len(self._windows) < 2:
            return SWITCH_STEPS
        between = self.spent_steps - sum(len(window.values) for window in self._windows)
        return max(0, between) / (len(self._windows) - 1)

    # What is known

    @property
    def best(self) -> int:
        """The value with the shortest step; the value before where nothing is known yet."""
        return self._compared.shortest if self._windows else self.before

    @property
    def candidates(self) -> int:
        """Values that may still be the best; in the first round, all of it."""
        if self.round == 0 and not self.over:
            return len(self._queue) + len(self._measured)
        return sum(point.state is State.CANDIDATE for point in self.points())

    def points(self) -> tuple[MeasuredValue, ...]:
        """What was measured, by rising value; what is under way too."""
        return self._compared.points if self._windows else ()

    def best_value(self) -> BestValue | None:
        """What is known of the best, the round under way included; None before the first window."""
        if not self._windows:
            return None
        seen, best, before = self._compared, self.best, self.before
        saves = low = high = 0.0
        if best != before and before in seen.windows:
            change = seen.fit.difference(before, best, CONFIDENCE)
            saves, low, high = (-each / change.base for each in (change.change, change.high, change.low))
            if min(seen.windows[best], seen.windows[before]) < 2:
                low, high = -math.inf, math.inf
        rivals = [
            seen.fit.difference(best, other, seen.confidence) for other in seen.windows if other != best
        ]
        gain = None
        if rivals and all(math.isfinite(rival.high) for rival in rivals):
            gain = max(0.0, *(-rival.low / rival.base for rival in rivals))
        return BestValue(
            best,
            before,
            self._known,
            self.over and not self._known,
            saves,
            low,
            high,
            gain,
            once=seen.windows[best] == 1 < len(seen.windows),
            all_once=max(seen.windows.values()) == 1 < len(seen.windows),
        )

    @property
    def _compared(self) -> _Comparison:
        if self._comparison is None:
            self._comparison = _Comparison(self._windows)
        return self._comparison


class _Comparison:
    """All values that were measured, beside the shortest one."""

    def __init__(self, windows: Sequence[SettingWindow]) -> None:
        self.fit = InterleavedWindows(windows)
        self.noise = self.fit.noise or 0.0
        self.windows = Counter(window.setting for window in windows)
        """By value."""
        # Of each of so many comparisons, of which one side matters, for all of them to hold.
        self.confidence = 1 - 2 * (1 - CONFIDENCE) / max(2, len(self.windows) - 1)
        self.step_ns = {value: self.fit.estimate(value).centre for value in self.windows}
        self.shortest = min(self.windows, key=self.step_ns.__getitem__)
        again = [value for value, count in self.windows.items() if count > 1]
        self.incumbent = min(again or self.windows, key=self.step_ns.__getitem__)
        """The shortest of those measured more than once, if any: a single window may look better than it
        is, and the others are not judged by it."""

    @cached_property
    def states(self) -> dict[int, State]:
        """By value."""
        found = {value: self._state(value) for value in self.windows if value != self.incumbent}
        decided = State.CANDIDATE not in found.values() and self.windows[self.incumbent] > 1
        return {**found, self.incumbent: State.EQUIVALENT if decided else State.CANDIDATE}

    def _state(self, value: int) -> State:
        longer = self.fit.difference(self.incumbent, value, self.confidence)
        at_least = longer.low / longer.base
        if min(self.windows[value], self.windows[self.incumbent]) == 1:
            far = at_least > max(ONCE, ONCE_NOISES * self.noise)
            return State.ELIMINATED if far else State.CANDIDATE
        if at_least > 0:
            return State.ELIMINATED
        return State.EQUIVALENT if at_least > -INDIFFERENCE else State.CANDIDATE

    @property
    def rivals(self) -> list[int]:
        """Values that may be shorter than the incumbent."""
        return [
            value
            for value, state in self.states.items()
            if value != self.incumbent and state is State.CANDIDATE
        ]

    @cached_property
    def points(self) -> tuple[MeasuredValue, ...]:
        """By rising value."""
        estimates = map(self.fit.estimate, sorted(self.windows))
        return tuple(
            MeasuredValue(
                each.setting,
                self.states[each.setting],
                each.windows,
                each.steps,
                each.centre,
                each.low,
                each.high,
            )
            for each in estimates
        )
