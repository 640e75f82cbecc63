"""What the agent costs this very job: steps with it against steps without it.

Time runs in turns: a stretch of steps as usual, some of them measured in detail, then a pause of a few in
which the agent does nothing but count. Each stretch is compared with the mean of the pauses before and
after it, so that a drift of the job cancels, and a pause is as often the slower one as noise has it: the
estimate is as likely below the true cost as above, and below zero where there is none.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from overlaptop.agent.median import median

MIN_TURNS, MAX_TURNS = 4, 64
"""An interval needs so many turns; the estimate forgets those before so many."""
RECENT_TURNS = 3
"""So many in a row that are outliers are the rule from now on: what was before is forgotten."""
OUTLIER_SIGMAS = 5.0
"""What is farther from the median than so many standard deviations counts as that far: a checkpoint, or a
collection of garbage, says nothing of the agent."""
LEAST_SLACK = 0.1
"""Of a step; what is nearer to the median than so is none. Steps that are timed together have no scatter,
and what tracing costs stands far above that of the pauses."""
MAD_TO_SIGMA = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""
CHANGED = 0.25
"""A job whose pauses have become longer or shorter by so much has turned to something else."""


class Treatment(Enum):
    """What the agent did in a step."""

    MEASURED = auto()
    USUAL = auto()
    """The hooks and the agent's thread, at most a part of it in detail."""
    PAUSED = auto()
    """Nothing but count it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share of the step time, 0.01 for 1 %."""

    share: float
    error: float
    """Half of its 95 % interval, if there were no outliers."""
    moved: float = 0.0
    """How far outliers may have moved it. They come to the short pauses more rarely than to the steps
    between, so that those that the job has anyhow may look like the agent's.
    """

    @property
    def told_error(self) -> float:
        """In 95 % of simulated jobs the true share lies within so much of it; in 88 % of those in which one
        step in 200 is half longer by itself.
        """
        return self.error + self.moved


@dataclass(frozen=True, slots=True)
class _Turn:
    usual_ns: float
    """Mean step of the stretch."""
    usual_steps: int
    measured_ns: float
    measured_steps: int
    pauses_ns: float
    """Mean of the mean steps of both pauses."""
    certain_as: float
    """As many steps in one pause would give as certain a mean."""
    paused_steps: int
    """In the second of the two."""
    budget: tuple[bool, bool]
    """By which steps were chosen."""


@dataclass(slots=True)
class _Steps:
    others_ns: list[int] = field(default_factory=list)
    measured_ns: list[int] = field(default_factory=list)
    paused_ns: list[int] = field(default_factory=list)


class CostMeter:
    """The cost of measured steps, and of all steps, against steps in which the agent pauses."""

    def __init__(self) -> None:
        self.turns = 0
        """Stretches between two pauses so far."""
        self._turns: deque[_Turn] = deque(maxlen=MAX_TURNS)
        self._steps = _Steps()
        self._last_pause: list[int] = []
        self._budget = False, False

    @property
    def step_ns(self) -> float:
        """The usual length of a step without the agent; 0 as long as it is not known."""
        return median([turn.pauses_ns for turn in self._turns]) if self._turns else 0.0

    def note(self, step_ns: int, treatment: Treatment) -> None:
        """Take in the next step, which took so long."""
        steps = self._steps
        if treatment is Treatment.PAUSED:
            steps.paused_ns.append(step_ns)
            return
        if steps.paused_ns:
            self._end_turn()
            steps = self._steps
        (steps.measured_ns if treatment is Treatment.MEASURED else steps.others_ns).append(step_ns)

    def skip(self) -> None:
        """What comes next does not follow on what was noted before."""
        self._steps, self._last_pause = _Steps(), []

    def restart(self) -> None:
        """What comes next is another job: forget what was noted before."""
        self._turns.clear()
        self.skip()

    def of_measured_steps(self) -> Estimate | None:
        """How much longer measured steps are; None as long as that is not known."""
        turns = [turn for turn in self._turns if turn.measured_steps]
        return self._estimate([(turn, turn.measured_ns, turn.measured_steps) for turn in turns])

    def of_all_steps(self) -> Estimate | None:
        """How much longer steps are on average, pauses included, all that the agent does taken together.

        By the present budget; None as long as that is not known.
        """
        turns = [turn for turn in self._turns if turn.budget == self._budget]
        estimate = self._estimate([(turn, turn.usual_ns, turn.usual_steps) for turn in turns])
        if estimate is None:
            return None
        usual_steps = sum(turn.usual_steps for turn in turns)
        part = usual_steps / (usual_steps + sum(turn.paused_steps for turn in turns))
        return Estimate(estimate.share * part, estimate.error * part, estimate.moved * part)

    @property
    def watched(self) -> bool:
        """Whether the present budget is that of a rank that somebody watches."""
        return self._budget[0]

    def follow(self, *, watched: bool, known: bool) -> None:
        """What is noted from now on was chosen by this budget, and with the cost known or not."""
        if (watched, known) != self._budget:
            self._budget, self._steps = (watched, known), _Steps()

    def _end_turn(self) -> None:
        steps, self._steps = self._steps, _Steps()
        before, self._last_pause = self._last_pause, steps.paused_ns
        if not before or not (steps.measured_ns or steps.others_ns):
            return
        slack_ns = max(_slack(before + steps.paused_ns), LEAST_SLACK * median(steps.paused_ns))

        def total(lengths_ns: list[int]) -> float:
            longest_ns = median(lengths_ns) + slack_ns if lengths_ns else 0.0
            return sum(min(each, longest_ns) for each in lengths_ns)

        # Each treatment by itself: else steps that cost more would be taken for outliers among the others.
        measured, others = total(steps.measured_ns), total(steps.others_ns)
        usual_steps = len(steps.measured_ns) + len(steps.others_ns)
        pauses_ns = (total(before) / len(before) + total(steps.paused_ns) / len(steps.paused_ns)) / 2
        self.turns += 1
        self._turns.append(
            _Turn(
                usual_ns=(measured + others) / usual_steps,
                usual_steps=usual_steps,
                measured_ns=measured / max(len(steps.measured_ns), 1),
                measured_steps=len(steps.measured_ns),
                pauses_ns=pauses_ns,
                certain_as=4 / (1 / len(before) + 1 / len(steps.paused_ns)),
                paused_steps=len(steps.paused_ns),
                budget=self._budget,
            )
        )
        if self._is_another_job() or self._costs_otherwise():
            # Not the first of them, in which the job may have turned.
            self._turns = deque([*self._turns][1 - RECENT_TURNS :], MAX_TURNS)

    def _is_another_job(self) -> bool:
        """Whether steps of the last turns take another time than before: each is far from the usual."""
        lengths_ns = [turn.pauses_ns for turn in self._turns]
        before_ns, recent_ns = lengths_ns[:-RECENT_TURNS], lengths_ns[-RECENT_TURNS:]
        if len(before_ns) < MIN_TURNS:
            return False
        known_ns = median(before_ns)
        return all(abs(each - known_ns) > CHANGED * known_ns for each in recent_ns)

    def _costs_otherwise(self) -> bool:
        """Whether measured steps of the last turns cost more, or less, than before: each is an outlier."""
        turns = [turn for turn in self._turns if turn.measured_steps]
        costs = [(turn.measured_ns - turn.pauses_ns) / turn.pauses_ns for turn in turns]
        before, recent = costs[:-RECENT_TURNS], costs[-RECENT_TURNS:]
        if len(before) < 2 * MIN_TURNS:  # by fewer, hardly anything is an outlier or nearly all is
            return False
        middle, slack = median(before), _slack(before)
        return min(recent) > middle + slack or max(recent) < middle - slack

    def _estimate(self, stretches: list[tuple[_Turn, float, int]]) -> Estimate | None:
        """From each turn, the mean step of some of its steps, and how many these are."""
        if len(stretches) < MIN_TURNS:
            return None
        step_ns = self.step_ns
        differences = [(length_ns - turn.pauses_ns) / step_ns for turn, length_ns, _ in stretches]
        middle, slack = median(differences), _slack(differences)
        clipped = [min(max(each, middle - slack), middle + slack) for each in differences]
        weights = [1 / (1 / steps + 1 / turn.certain_as) for turn, _, steps in stretches]
        found, whole = weighted_mean(clipped, weights), weighted_mean(differences, weights)
        moved = max(abs(whole.share - found.share), abs(middle - found.share))
        return Estimate(found.share, found.error, moved)


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> Estimate:
    """The mean of values whose variances are as the inverse of their weights, with its 95 % interval.

    Neighbours may have something in common, as two turns have the pause between them: the variance is Newey
    and West's (Econometrica 55, 1987) with the first lag in full, where that is the larger one. Student's
    quantile is taken as 1.96 + 3.2 / (n - 1), within 5 % from three degrees on.
    """
    total = sum(weights)
    mean = sum(weight * value for weight, value in zip(weights, values, strict=True)) / total
    off = [weight * (value - mean) for weight, value in zip(weights, values, strict=True)]
    scatter = sum(each * each for each in off) + 2 * max(0.0, sum(map(operator.mul, off, off[1:])))
    degrees = len(values) - 1
    return Estimate(mean, (1.96 + 3.2 / degrees) * math.sqrt(scatter * len(values) / degrees) / total)


def _slack(values: Sequence[float]) -> float:
    """How far from the median a value may lie."""
    middle = median(values)
    return OUTLIER_SIGMAS * MAD_TO_SIGMA * median([abs(each - middle) for each in values])
