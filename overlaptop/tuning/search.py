"""Which value of a knob to measure next, until the best is known. Pure: it measures nothing itself.

Windows of steps are measured in rounds: each value that may still be the best gets one window a round.
Rounds go forwards and backwards in turn, so that a drift of the machine counts for none of them, and the
last value of a round begins the next one without a switch. After each round the values are compared, by
differences within rounds (rounds.Rounds): what is longer than the best beyond doubt is hopeless, and what
cannot be shorter by more than the indifference is settled. Neither is measured again, unless later rounds
raise the doubt anew, and the search is over when no rival is left.

One window alone settles nothing, for the machine may have changed beside it: a value that was measured once
is hopeless only where it is far longer, by more than the machine may plausibly have drifted. The second
round measures the first round's last value again beside its best and the value before, so that a drift
within the first round shows as noise, and raises that margin. And where few windows are left of the budget,
fewer values are begun, and the best ones are measured again.

The first round looks at a ladder of values in even factors. A model, where there is one, leaves out what it
predicts to be far off, for as long as it predicts well what was measured. Between the best and its
neighbours more values are tried, in the middle and where a parabola through the three, or the model,
promises something shorter; and so around others that are shorter than their neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from overlaptop.tuning.candidates import LADDER, Candidates, Curve, Prior
from overlaptop.tuning.rounds import Rounds, Window
from overlaptop.tuning.space import Space

CUT_STEPS = 6
"""The least steps of a window that is cut short."""
CUT_ABOVE = 0.15
"""A window is cut short when all its steps but one are longer than the best value's step by this share."""
ONCE, ONCE_NOISES = 0.05, 3.0
"""A value that was measured once is called hopeless only where it is longer beyond doubt by this share, and
by so many times the noise of a window: the machine may have drifted since the others were measured."""
AGAIN = 3
"""Windows of the budget that the first round leaves: its best value, its last one, the one before."""
SWITCH_STEPS = 4
"""Steps between two windows, until some have been seen."""
GRID_VALUES, GRID_ROUNDS = 9, 6
"""Where no budget is given: a third of the steps that an exhaustive grid of so many values takes, each in
at least so many rounds, and in as many as it takes until the standard error of each is small against the
indifference."""
GRID_SURE = 1.5
"""By this factor."""
MOST_STEPS = 2_000
"""Of a budget that was not given, where more rounds than GRID_ROUNDS would take more."""
FROZEN_ROUND = 2
"""From this round on, counted from 0, a budget that was not given stays as it is."""
LONGER = 4
"""Windows grow to so many times Plan.window_steps, at most, after the first round where noise asks for
more steps: so there are fewer switches for as many of them."""


class State(Enum):
    """What has become of a value."""

    RACING = "racing"
    """It may be the best."""
    SETTLED = "settled"
    """Not shorter than the best by more than the indifference; perhaps as good."""
    HOPELESS = "hopeless"
    """Longer than the best."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How sure to be, and at what price."""

    indifference: float = 0.01
    """A share of the step: who is shorter by less is not worth the search."""
    confidence: float = 0.95
    """That all that is called hopeless or settled is."""
    window_steps: int = 12
    """Steps of a value in one round; LONGER times as many where noise asks for it."""
    budget_steps: int | None = None
    """After so many the best so far is told; None: by what a grid would take, see GRID_VALUES."""


@dataclass(frozen=True, slots=True)
class Point:
    """A value that was measured."""

    value: int
    state: State
    windows: int
    steps: int
    step_ns: float
    """The difference between rounds taken off."""
    low_ns: float
    high_ns: float
    """Where it lies with 95 % confidence."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The best value as far as is known. Shares are of the step with the value before."""

    value: int
    before: int
    known: bool
    """Every other is hopeless or settled, and none was still to be tried."""
    spent: bool
    """It is not known, because the budget was spent first."""
    saves: float
    saves_low: float
    saves_high: float
    """With Plan.confidence. 0 all three where the best is the value before; the bounds are infinite where
    too few steps tell, or one of the two was measured once only.
    """
    rivals_gain: float | None
    """By what share of the step the best of the other measured values may still be shorter, at most; None:
    no other was measured, or too few steps tell.
    """
    once: bool = False
    """The best was measured once only, of several."""
    all_once: bool = False
    """So was every value."""


class Search:
    """``next`` and ``following`` say what to measure, ``add`` takes what came of it, until ``over``."""

    def __init__(
        self, space: Space, before: int, plan: Plan | None = None, prior: Prior = lambda _value: None
    ) -> None:
        """``before``: the value that the job has now; it is measured first."""
        self.space, self.before = space, before
        self.plan = plan or Plan()
        self.over = False
        self.spent_steps = 0
        """All that have passed since the search began: windows, and what lies between them."""
        self.round = 0
        self.window_steps = self.plan.window_steps
        """Steps that the window under way should have."""
        self._windows: list[Window] = []
        self._order: list[int] = []
        """What was measured in this round."""
        self._states: dict[int, State] = {}
        """As of the last round, by rising value."""
        self._known = self._untried = False
        """The best is known; there was no room for a value that was worth a try."""
        self._own_budget: int | None = None
        """Where none was given, once it is known."""
        self._rounds_of: tuple[int, Rounds] | None = None
        """After so many windows."""
        self._told: tuple[tuple[int, bool], tuple[Point, ...]] = ((0, False), ())
        """Points, and after how many windows they were taken."""
        self._candidates = Candidates(
            space, before, prior, self.plan.indifference, min(LADDER, self._first_values())
        )
        self._queue = self._first_queue()
        """What is left of this round."""

    @property
    def next(self) -> int | None:
        """The value that is to be measured now; None: the search is over."""
        return self._queue[0] if self._queue else None

    @property
    def following(self) -> int | None:
        """The value after that; None: that depends on what comes of the present one."""
        return self._queue[1] if len(self._queue) > 1 else None

    @property
    def racing(self) -> int:
        """Values that may still be the best, as of the last round; in the first, all of it."""
        if self.round == 0 and not self.over:
            return len(self._queue) + len(self._order)
        return sum(state is State.RACING for state in self._states.values())

    def enough(self, steps_ns: Sequence[float]) -> bool:
        """Whether the window under way may end with these steps."""
        if len(steps_ns) >= self.window_steps:
            return True
        lately = [window for window in self._windows if window.round >= self.round - 1]
        if len(steps_ns) < CUT_STEPS or not lately:
            return False
        best_ns = min(median(window.values) for window in lately)
        return sorted(steps_ns)[1] > best_ns * (1 + CUT_ABOVE)

    def spend(self, steps: int) -> None:
        """So many steps have passed."""
        self.spent_steps += steps

    def add(self, steps_ns: Sequence[float]) -> None:
        """The window of ``next`` is in."""
        value = self._queue.pop(0)
        self._windows.append(Window(value, self.round, tuple(steps_ns)))
        self._order.append(value)
        if self.round == 0 and len(self._queue) > 1:
            # What follows may have been asked for already.
            rest = self._candidates.promising(self._queue[1:], self._medians())
            self._queue[1:] = rest[: max(0, self._first_values() - len(self._order) - 1)]
        if not self._queue:
            self._end_round()
        if self._queue:
            switch = self._switch_steps() if self._queue[0] != value else 0.0
            if self.spent_steps + switch + self.window_steps > self.budget_steps:
                self._end()

    @property
    def budget_steps(self) -> int:
        """At most so many steps are spent; an estimate until ``steps_to_go`` is known."""
        if self.plan.budget_steps is not None:
            return self.plan.budget_steps
        if self._own_budget is not None:
            return self._own_budget
        a_window, rounds = self._window_cost(self.plan.window_steps), GRID_ROUNDS
        if self.round:
            needed = math.ceil((GRID_SURE * (self._rounds().noise or 0.0) / self.plan.indifference) ** 2)
            rounds = max(rounds, min(needed, int(3 * MOST_STEPS / GRID_VALUES / a_window)))
        return math.ceil(GRID_VALUES * rounds * a_window / 3)

    @property
    def steps_to_go(self) -> int | None:
        """At most; it never grows. None: not known before the noise is."""
        if self.plan.budget_steps is None and self._own_budget is None:
            return None
        return max(0, self.budget_steps - self.spent_steps)

    @property
    def best(self) -> int:
        """The value with the shortest step of ``points``; the value before where nothing is known yet."""
        points = self.points()
        return min(points, key=lambda point: point.step_ns).value if points else self.before

    def points(self) -> tuple[Point, ...]:
        """What was measured, by rising value; what is under way in the first round too."""
        if not self._windows:
            return ()
        now = (len(self._windows), self.over)
        if self._told[0] != now:
            self._told = now, self._points()
        return self._told[1]

    def _points(self) -> tuple[Point, ...]:
        rounds = self._rounds()
        found = []
        for value in rounds.settings:
            each = rounds.estimate(value)
            state = self._states.get(value, State.RACING)
            found.append(Point(value, state, each.windows, each.steps, each.centre, each.low, each.high))
        return tuple(found)

    def verdict(self) -> Verdict | None:
        """What is known of the best, the round under way included; None before the first window."""
        if not self._windows:
            return None
        rounds, best = self._rounds(), self.best
        windows = {point.value: point.windows for point in self.points()}
        confidence = self._confidence(len(windows) - 1)
        saves = low = high = 0.0
        if best != self.before and self.before in windows:
            change = rounds.difference(self.before, best, self.plan.confidence)
            saves, low, high = (-each / change.base for each in (change.change, change.high, change.low))
            if min(windows[best], windows[self.before]) < 2:
                low, high = -math.inf, math.inf
        rivals = [rounds.difference(best, other, confidence) for other in windows if other != best]
        gain = None
        if rivals and all(math.isfinite(rival.high) for rival in rivals):
            gain = max(0.0, *(-rival.low / rival.base for rival in rivals))
        return Verdict(
            best,
            self.before,
            self._known,
            self.over and not self._known,
            saves,
            low,
            high,
            gain,
            once=windows[best] == 1 < len(windows),
            all_once=max(windows.values()) == 1 < len(windows),
        )

    def _end(self) -> None:
        queue, self._queue = self._queue, []
        self.over = True
        if self._windows:
            rivals = self._judge()
            untried = self._untried or any(value not in self._states for value in queue)
            self._known = not (rivals or untried or self._owed())

    def _end_round(self) -> None:
        rivals = self._judge()
        owed = self._owed()
        if self._own_budget is None and self.round + 1 >= FROZEN_ROUND:
            self._own_budget = self.budget_steps
        curve = Curve({value: self._longer(value) for value in self._states}, frozenset(rivals), self.best)
        champion = self._champion()
        # What looks better than it may owe that to its only window.
        first = [
            *owed,
            self.best,
            champion,
            *(v for v in rivals if self._longer(v) < self._longer(champion)),
        ]
        stay = list(dict.fromkeys([*first, *sorted(rivals, key=self._longer)]))
        self.window_steps = self._next_window_steps(len(stay))
        left = self._windows_left(self.window_steps)
        wanted = self._candidates.more(curve, self._medians())
        if not rivals and not wanted and (not owed or len(self._states) == 1):
            self._known = self.over = True
            return
        # Each that is begun is to be measured twice, beside the best.
        newcomers = wanted[: max(0, left - len(set(first))) // 2]
        self._untried = len(newcomers) < len(wanted)
        stay = stay[: max(0, left - len(newcomers))]
        if len(stay) + len(newcomers) < 2:  # one window alone in its round is compared with nothing
            self._end()
            return
        again = [value for value in reversed(self._order) if value in stay]
        back = [value for value in stay if value not in again]
        # New ones early: should the budget end in this round, those that were never tried matter most.
        self._queue = [*again[:1], *newcomers, *again[1:], *back]
        self._order = []
        self.round += 1

    def _owed(self) -> list[int]:
        """What has to be measured once more, whatever came of it: nothing is said of the best, nor of what
        it saves, after one window. And after the first round its last value, for the next round begins
        with it: that shows how the machine has drifted meanwhile.
        """
        windows = {point.value: point.windows for point in self.points()}
        owed = [value for value in (self.best, self.before) if windows.get(value, 2) == 1]
        return list(dict.fromkeys([*owed, *(self._order[-1:] if self.round == 0 else [])]))

    def _judge(self) -> list[int]:
        """Find out the state of each value; returns the rivals of the best that may yet be better."""
        rounds, champion = self._rounds(), self._champion()
        windows = {point.value: point.windows for point in self.points()}
        self._states = dict.fromkeys(rounds.settings, State.RACING)
        confidence = self._confidence(len(windows) - 1)
        margin = max(ONCE, ONCE_NOISES * (rounds.noise or 0.0))
        rivals = []
        for value in windows:
            if value == champion:
                continue
            longer = rounds.difference(champion, value, confidence)
            longer_at_least = longer.low / longer.base
            once = min(windows[value], windows[champion]) == 1
            if longer_at_least > (margin if once else 0.0):
                self._states[value] = State.HOPELESS
            elif longer_at_least > -self.plan.indifference and not once:
                self._states[value] = State.SETTLED
            else:
                rivals.append(value)
        if not rivals and windows[champion] > 1:
            self._states[champion] = State.SETTLED
        self._told = (0, False), ()
        return rivals

    def _champion(self) -> int:
        """The best of what was measured more than once, where anything was: what was measured once may look
        better than it is, and the others are not judged by it.
        """
        points = self.points()
        sure = [point for point in points if point.windows > 1] or points
        return min(sure, key=lambda point: point.step_ns).value

    def _confidence(self, rivals: int) -> float:
        """Of each of so many comparisons, of which one side matters, for all of them to hold."""
        return 1 - 2 * (1 - self.plan.confidence) / max(2, rivals)

    def _longer(self, value: int) -> float:
        """Of a value's step, by what share it is longer than with the value that was measured first."""
        longer = self._rounds().difference(self._windows[0].setting, value)
        return longer.change / longer.base

    def _rounds(self) -> Rounds:
        """All windows that are in, compared."""
        if self._rounds_of is None or self._rounds_of[0] != len(self._windows):
            self._rounds_of = len(self._windows), Rounds(self._windows, jumps=True)
        return self._rounds_of[1]

    def _first_queue(self) -> list[int]:
        return self._candidates.first()

    def _first_values(self) -> int:
        """How many values the first round may have, for some to be measured again."""
        return max(2, int(self.budget_steps / self._window_cost(self.plan.window_steps)) - AGAIN)

    def _window_cost(self, window_steps: int) -> float:
        """Steps that a window takes which should have so many, with the switch before it."""
        if not self._windows:
            return window_steps + SWITCH_STEPS
        return (
            max(window_steps, median(len(window.values) for window in self._windows)) + self._switch_steps()
        )

    def _switch_steps(self) -> float:
        """Before a window there are so many, on average; the first one needed no switch."""
        measured = sum(len(window.values) for window in self._windows)
        return max(0, self.spent_steps - measured) / max(1, len(self._windows) - 1)

    def _windows_left(self, window_steps: int) -> int:
        """So many more windows of this length belong to the budget."""
        return max(0, int((self.budget_steps - self.spent_steps) / self._window_cost(window_steps)))

    def _next_window_steps(self, values: int) -> int:
        """Of the next round: more where noise asks for it, if so many values fit into the budget."""
        noises = ((self._rounds().noise or 0.0) / self.plan.indifference) ** 2
        longer = max(1, min(math.ceil(noises), 1 << self.round, LONGER))
        while longer > 1 and self._windows_left(self.plan.window_steps * longer) < values:
            longer //= 2
        return self.plan.window_steps * longer

    def _medians(self) -> dict[int, float]:
        """Of each measured value, a step as usual, ns."""
        windows: dict[int, list[float]] = {}
        for window in self._windows:
            windows.setdefault(window.setting, []).append(median(window.values))
        return {value: median(each) for value, each in windows.items()}
