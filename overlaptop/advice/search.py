"""Which value of a knob to measure next, until the best is known. Pure: it measures nothing itself.

Windows of steps are measured in rounds: each value that may still be the best gets one window a round.
Rounds go forwards and backwards in turn, so that a drift of the machine counts for none of them, and the
last value of a round begins the next one without a switch. After each round the values are compared, by
differences within rounds (rounds.Rounds): what is longer than the best beyond doubt is hopeless, and what
cannot be shorter by more than the indifference is settled. Neither is measured again, unless later rounds
raise the doubt anew, and the search is over when no rival is left.

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

from overlaptop.advice.candidates import Candidates, Curve, Prior
from overlaptop.advice.rounds import Rounds, Window
from overlaptop.advice.space import Space

CUT_STEPS = 6
"""The least steps of a window that is cut short."""
CUT_ABOVE = 0.15
"""A window is cut short when all its steps but one are longer than the best value's step by this share."""
ONCE = 0.02
"""A value measured in a single round is called hopeless only where it is longer by this share beyond doubt:
a round takes a while, and the machine may drift meanwhile."""
GRID_VALUES, GRID_ROUNDS = 9, 6
"""Where no budget is given: a third of the steps that an exhaustive grid of so many values takes, each in
at least so many rounds, and in as many as it takes until the standard error of each is small against the
indifference."""
GRID_SURE = 1.5
"""By this factor."""
MOST_STEPS = 2_000
"""Of a budget that was not given, where more rounds than GRID_ROUNDS would take more."""
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
    too few steps tell.
    """
    rivals_gain: float | None
    """By what share of the step the best of the other measured values may still be shorter, at most; None:
    no other was measured, or too few steps tell.
    """


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
        self._first_round_steps = 0
        self._windows: list[Window] = []
        self._order: list[int] = []
        """What was measured in this round."""
        self._states: dict[int, State] = {}
        """As of the last round, by rising value."""
        self._rounds: Rounds | None = None
        """Likewise."""
        self._known = False
        self._told: tuple[tuple[int, bool], tuple[Point, ...]] = ((0, False), ())
        """Points, and after how many windows they were taken."""
        self._candidates = Candidates(space, before, prior, self.plan.indifference)
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
        if self._rounds is None:
            return len(self._queue) + len(self._order)
        return sum(state is State.RACING for state in self._states.values())

    @property
    def window_steps(self) -> int:
        """Steps that the window under way should have."""
        longer = 1
        if self._rounds is not None:
            longer = math.ceil(((self._rounds.noise or 0.0) / self.plan.indifference) ** 2)
        return self.plan.window_steps * max(1, min(longer, 1 << self.round >> 1, LONGER))

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
        if self.round == 0:
            self._first_round_steps = self.spent_steps

    def add(self, steps_ns: Sequence[float]) -> None:
        """The window of ``next`` is in."""
        value = self._queue.pop(0)
        self._windows.append(Window(value, self.round, tuple(steps_ns)))
        self._order.append(value)
        if self.round == 0 and len(self._queue) > 1:
            # What follows may have been asked for already.
            self._queue[1:] = self._candidates.promising(self._queue[1:], self._medians())
        if not self._queue:
            self._end_round()
        if self._queue and self.spent_steps + self.window_steps > self.budget_steps:
            self._end()

    @property
    def budget_steps(self) -> int:
        """At most so many steps are spent; an estimate until a few windows are in."""
        if self.plan.budget_steps is not None:
            return self.plan.budget_steps
        first = [len(window.values) for window in self._windows if window.round == 0]
        a_window = max(self.plan.window_steps, self._first_round_steps / max(1, len(first)))
        rounds = GRID_ROUNDS
        if self._rounds is not None:
            usual = median(len(window.values) for window in self._windows)
            noise = (self._rounds.noise or 0.0) * math.sqrt(usual / median(first))
            needed = math.ceil((GRID_SURE * noise / self.plan.indifference) ** 2)
            rounds = max(rounds, min(needed, int(3 * MOST_STEPS / GRID_VALUES / a_window)))
        return math.ceil(GRID_VALUES * rounds * a_window / 3)

    @property
    def best(self) -> int:
        """The value with the shortest step so far; the value before where nothing is known yet."""
        if self._rounds is None:
            return self.before
        return min(self._states, key=self._longer)

    def points(self) -> tuple[Point, ...]:
        """What was measured, by rising value; what is under way in the first round too."""
        if not self._windows:
            return ()
        now = (len(self._windows), self.over)
        if self._told[0] != now:
            self._told = now, self._points()
        return self._told[1]

    def _points(self) -> tuple[Point, ...]:
        rounds = Rounds(self._windows)
        found = []
        for value in sorted(rounds.settings):
            each = rounds.estimate(value)
            state = self._states.get(value, State.RACING)
            found.append(Point(value, state, each.windows, each.steps, each.centre, each.low, each.high))
        return tuple(found)

    def verdict(self) -> Verdict | None:
        """What is known of the best, the round under way included; None before the first window."""
        if not self._windows:
            return None
        self._rounds = rounds = Rounds(self._windows)
        self._judge()
        best, confidence = self.best, self._confidence(len(self._states) - 1)
        saves = low = high = 0.0
        if best != self.before and self.before in self._states:
            change = rounds.difference(self.before, best, self.plan.confidence)
            saves, low, high = (-each / change.base for each in (change.change, change.high, change.low))
        rivals = [rounds.difference(best, other, confidence) for other in self._states if other != best]
        gain = None
        if rivals and all(math.isfinite(rival.high) for rival in rivals):
            gain = max(0.0, *(-rival.low / rival.base for rival in rivals))
        spent = self.over and not self._known
        return Verdict(best, self.before, self._known, spent, saves, low, high, gain)

    def _end(self) -> None:
        queue, self._queue = self._queue, []
        self.over = True
        if self._windows:
            self._rounds = Rounds(self._windows)
            self._known = not self._judge() and all(value in self._states for value in queue)

    def _end_round(self) -> None:
        self._rounds = Rounds(self._windows)
        rivals = self._judge()
        curve = Curve({value: self._longer(value) for value in self._states}, frozenset(rivals), self.best)
        newcomers = self._candidates.more(curve, self._medians())
        if not rivals and not newcomers:
            self._known = self.over = True
            return
        stay = {*rivals, self.best}
        again = [value for value in reversed(self._order) if value in stay]
        back = [value for value in (*rivals, self.best) if value not in again]
        # New ones early: should the budget end in this round, those that were never tried matter most.
        self._queue = [*again[:1], *newcomers, *again[1:], *dict.fromkeys(back)]
        self._order = []
        self.round += 1

    def _judge(self) -> list[int]:
        """Find out the state of each value; returns the rivals of the best that may yet be better."""
        assert self._rounds is not None
        self._states = dict.fromkeys(sorted(self._rounds.settings), State.RACING)
        best = self.best
        confidence = self._confidence(len(self._states) - 1)
        once = self._rounds.estimate(best).windows == 1
        rivals = []
        for value in self._states:
            if value == best:
                continue
            longer = self._rounds.difference(best, value, confidence)
            longer_at_least = longer.low / longer.base
            unsure = ONCE if once or self._rounds.estimate(value).windows == 1 else 0.0
            if longer_at_least > unsure:
                self._states[value] = State.HOPELESS
            elif longer_at_least - unsure > -self.plan.indifference:
                self._states[value] = State.SETTLED
            else:
                rivals.append(value)
        if not rivals:
            self._states[best] = State.SETTLED
        return rivals

    def _confidence(self, rivals: int) -> float:
        """Of each of so many comparisons, of which one side matters, for all of them to hold."""
        return 1 - 2 * (1 - self.plan.confidence) / max(2, rivals)

    def _longer(self, value: int) -> float:
        """Of a value's step, by what share it is longer than with the value that was measured first."""
        assert self._rounds is not None
        longer = self._rounds.difference(self._windows[0].setting, value)
        return longer.change / longer.base

    def _first_queue(self) -> list[int]:
        return self._candidates.first()

    def _medians(self) -> dict[int, float]:
        """Of each measured value, a step as usual, ns."""
        windows: dict[int, list[float]] = {}
        for window in self._windows:
            windows.setdefault(window.setting, []).append(median(window.values))
        return {value: median(each) for value, each in windows.items()}
