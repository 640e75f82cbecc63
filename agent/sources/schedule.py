"""Chooses the steps to measure: bursts on request, a trickle otherwise.

A burst alternates blocks of measured and unmeasured steps, so it also shows the cost of measuring. Steps
are chosen by number, so ranks that choose independently measure the same steps. A block begins at a
multiple of its length. The trickle measures one step of a cycle on average, spread evenly; a longer cycle
measures some of the steps that a shorter one does.
"""

import math
import operator
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from overlaptop.timeline.averages import median, sigma
from overlaptop.wire.joining import Watch

BUDGET = 0.01  # Share of the job's time that measuring may cost while a dashboard watches the rank
IDLE_PART = 0.1  # Part of the budget while no dashboard watches
ALLOWANCE_S, MOST_DEBT_S = 60.0, 70.0
"""The trickle stops while debt exceeds a minute's budget. On a watched rank the debt is limited, so that it
stops for a few seconds at most."""
BURST_PERIOD_S, TRICKLE_PERIOD_S, CHOICE_PERIOD_S = 30.0, 1.0, 1.0
MOST_CREDIT = 2
"""Bursts that may follow directly on one another: a viewer's, and one for a change soon after."""
BLOCK_S, LEAST_BLOCK_STEPS = 0.25, 4  # Shortest block of a burst. Records are read in unmeasured blocks.
MOST_LOST_S, MOST_LOST_STEPS = 0.5, 3  # A burst ends early when it has cost more than both
ALL = 0.9  # Changes are detected by untouched steps, unless more than this share is touched
WARM_UP_STEPS, SETTLE_STEPS = 4, 20
"""Steps before the first burst, and before the cost is estimated: the first steps take longer anyway."""
CYCLES_STEPS = tuple(2**doublings for doublings in range(15))
GOLDEN, MODULUS = 0x9E3779B97F4A7C15, 1 << 64
"""Fractional parts of multiples of the golden ratio spread more evenly than those of any other number."""
WANTED_S = 10.0  # Time a requested burst stays due: after that the trickle has shown the same
CHANGED_SHARE, CHANGED_SIGMAS, CHANGED_STEPS = 0.15, 2.5, 5
"""The job has changed when this many steps in a row differ from the median by more than both."""
REFERENCE_STEPS, REFERENCE_PERIOD_STEPS = 64, 8  # Steps of that median, and steps between two updates of it

MIN_COMPARISONS, MAX_COMPARISONS = 4, 64
MAX_NEIGHBOURS = 32  # unmeasured steps on each side
OUTLIER_SIGMAS, LEAST_SLACK = 5.0, 0.1  # Values farther from the median than both limits are clipped


def spread(step: int) -> int:
    """Return a number below MODULUS, by which steps are chosen or ranked. It favours no n-th step, as a
    script may do special work there.
    """
    return step * GOLDEN % MODULUS


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share of the step time, 0.01 for 1 %, and half of its 95 % interval."""

    share: float
    error: float


class Schedule:
    """Chooses the steps to measure within a budget of the job's time.

    `measures` and `ask` may be called on any thread, everything else on the agent's. Time is the sum of the
    job's steps.
    """

    def __init__(
        self, every: int | None, prior: Estimate, lead_steps: int = 0, budget: float | None = None
    ) -> None:
        """``every``: measure each n-th step. ``prior``: cost of a measured step until this job's is known.
        ``lead_steps``: preparation steps before a measured one. ``budget``: share of the job's time to
        spend while watched; None: BUDGET, and at most a step a second.
        """
        self.cost = CostMeter()
        self.prior = prior
        self.touched_share = 0.0  # Share of the last minute's steps that the source worked in
        self._followed = Watch(detail=False)
        self._every, self._lead_steps = every, lead_steps
        self._budget, self._is_paced = budget or BUDGET, budget is None
        self._burst, self._block_steps = range(0), 1
        self._cycle: int | None = None  # Steps of which the trickle measures one; None: still warming up
        self._asked, self._wanted_s = False, -math.inf
        """Whether a burst was requested since the last step, and when one was wanted last."""
        self._credit = float(MOST_CREDIT)  # Bursts that may begin; it grows by one every BURST_PERIOD_S
        self._stretch_steps, self._sample_steps = 0, float(1 + lead_steps)
        """Steps in a row that the source works in: now, and on average for one measured step."""
        self._noted_steps = self._decided = 0  # Steps noted, and the newest step passed to `measures`
        self._now_s = self._debt_s = self._lost_s = 0.0
        self._chosen_s, self._cost_share = 0.0, prior.share
        self._is_stopped = False
        self._recent_ns: deque[int] = deque(maxlen=9)
        self._changes = ChangeWatch()

    @property
    def every(self) -> int:
        """Steps for one measured step, outside bursts."""
        return self._every or self._cycle or 1

    @property
    def watched(self) -> bool:
        return self._followed.detail

    def follow(self, wanted: Watch) -> None:
        """Follow the dashboards: measure more steps while one watches, and a burst when it begins or asks,
        unless one is running.
        """
        if wanted.detail and wanted != self._followed and not (self.watched and self._burst):
            self.ask()
        self._followed = wanted

    def ask(self) -> None:
        """Request a burst: a dashboard wants fresh figures, or a setting has changed. On any thread."""
        self._asked = True

    def measures(self, step: int) -> bool:
        """Whether to measure `step`. While warming up all are, if the source needs no preparation."""
        if self._every is not None:
            return step % self._every == 0
        self._decided = max(self._decided, step)
        if step in self._burst:
            return step // self._block_steps % 2 == 0
        cycle = self._cycle
        if cycle is None:
            return not self._lead_steps
        return not self._is_stopped and spread(step) < MODULUS // cycle

    def note(self, step: int, step_ns: int, *, touched: bool) -> None:
        """Add the next finished step. ``touched``: the source worked in it."""
        if self._every is not None:
            return
        step_s = step_ns / 1e9
        self._now_s += step_s
        self._credit = min(MOST_CREDIT, self._credit + step_s / BURST_PERIOD_S)
        self._noted_steps += 1
        self._recent_ns.append(step_ns)
        if self._noted_steps <= WARM_UP_STEPS:
            if self._noted_steps == WARM_UP_STEPS:
                self._begin_burst(step)
                self._choose_cycle()
            return
        if self._noted_steps > SETTLE_STEPS:
            self.cost.note(step_ns, touched=touched)
        self._account(step_s, touched=touched)
        if self._burst:
            self._end_burst_if_over(step, step_s)
        else:
            if (not touched or self.touched_share > ALL) and self._changes.note(step_ns):
                self.cost.skip()
                if not self.watched:  # a watching dashboard sees the change and asks all ranks at once
                    self._wanted_s = self._now_s
            if self._is_burst_due():
                self._credit -= 1
                self._begin_burst(step)
        if self._now_s - self._chosen_s >= CHOICE_PERIOD_S:
            self._choose_cycle()

    @property
    def _present_budget(self) -> float:
        return self._budget * (1.0 if self.watched else IDLE_PART)

    @property
    def _is_in_debt(self) -> bool:
        return self._debt_s > ALLOWANCE_S * self._present_budget

    def _likely_cost(self) -> float:
        """Return the cost of a touched step as a share of it, half a standard error above the estimate.

        The estimate combines this job's cost and the prior, weighted by 1/variance.
        """
        known = [each for each in (self.cost.estimate(), self.prior) if each is not None]
        weights = [(2 / max(each.error, 1e-4)) ** 2 for each in known]
        mean = sum(weight * each.share for weight, each in zip(weights, known, strict=True)) / sum(weights)
        return max(0.0, mean + 0.5 / math.sqrt(sum(weights)))

    def _account(self, step_s: float, *, touched: bool) -> None:
        """Charge the step, except in a watched burst, and earn the budget's share of it."""
        lost_s = step_s * self._cost_share if touched else 0.0
        self._lost_s += lost_s
        if self.watched:
            self._debt_s = min(self._debt_s, MOST_DEBT_S * self._present_budget)
            lost_s = 0.0 if self._burst else lost_s
        self._debt_s = max(0.0, self._debt_s - self._present_budget * step_s) + lost_s
        if touched:
            self._stretch_steps += 1
        elif self._stretch_steps:
            if not self._burst:
                self._sample_steps += 0.2 * (self._stretch_steps - self._sample_steps)
            self._stretch_steps = 0
        weight = min(1.0, max(step_s / 60, 1 / self._noted_steps))
        self.touched_share += (touched - self.touched_share) * weight

    def _is_burst_due(self) -> bool:
        if self._asked:
            self._asked, self._wanted_s = False, self._now_s
        is_wanted = self._now_s - self._wanted_s < WANTED_S
        return is_wanted and self._credit >= 1 and (self.watched or not self._is_in_debt)

    def _begin_burst(self, step: int) -> None:
        self._asked, self._wanted_s = False, -math.inf
        step_s = max(1, median(self._recent_ns)) / 1e9
        self._block_steps = block = max(LEAST_BLOCK_STEPS, 2 ** math.ceil(math.log2(BLOCK_S / step_s)))
        # The job is ahead of the noted steps, by a second if the GPU's clock gives their length.
        begin = max(step, self._decided) + 2
        # Two whole measured blocks: ranks do not begin at exactly the same step, and only steps that all
        # of them measured show who waits for whom.
        self._burst = range(begin, (math.ceil(begin / block / 2) * 2 + 3) * block)
        self._lost_s = 0.0

    def _end_burst_if_over(self, step: int, step_s: float) -> None:
        if step + 1 >= self._burst.stop or self._lost_s > max(MOST_LOST_S, MOST_LOST_STEPS * step_s):
            self._burst = range(0)
            self._choose_cycle()

    def _choose_cycle(self) -> None:
        """Measure one step a second, or fewer if the budget demands it."""
        self._chosen_s, self._cost_share = self._now_s, self._likely_cost()
        self._is_stopped = self._is_in_debt
        step_s = max(1, median(self._recent_ns)) / 1e9
        paced = max(1.0, TRICKLE_PERIOD_S / step_s) if self._is_paced else 1.0
        affordable = self._cost_share / self._present_budget
        if affordable > 1:
            affordable *= self._sample_steps
        if self.cost.estimate() is None:  # leave some steps to compare with
            affordable = max(affordable, self._sample_steps + 2)
        by_pace = max(each for each in CYCLES_STEPS if each <= paced)
        by_budget = min((each for each in CYCLES_STEPS if each >= affordable), default=CYCLES_STEPS[-1])
        self._cycle = max(by_pace, by_budget)


class ChangeWatch:
    """Detects a lasting change of the step length."""

    def __init__(self) -> None:
        self._reference_ns: deque[int] = deque(maxlen=REFERENCE_STEPS)
        self._bounds_ns = 0.0, math.inf
        self._noted = self._beyond = 0
        """Steps noted, and steps in a row above the bounds or (negative) below them."""

    def note(self, step_ns: int) -> bool:
        """Add the next step; returns whether the job has changed."""
        low_ns, high_ns = self._bounds_ns
        side = (step_ns > high_ns) - (step_ns < low_ns)
        self._beyond = self._beyond + side if side * self._beyond > 0 else side
        self._noted += 1
        self._reference_ns.append(step_ns)
        if abs(self._beyond) == CHANGED_STEPS:
            self._reference_ns = deque([*self._reference_ns][-CHANGED_STEPS:], REFERENCE_STEPS)
            self._noted, self._beyond, self._bounds_ns = 0, 0, (0.0, math.inf)
            return True
        if not self._beyond and self._noted % REFERENCE_PERIOD_STEPS == 0:
            self._set_bounds()
        return False

    def _set_bounds(self) -> None:
        middle_ns = median(self._reference_ns)
        slack_ns = max(CHANGED_SHARE * middle_ns, CHANGED_SIGMAS * sigma(self._reference_ns))
        self._bounds_ns = middle_ns - slack_ns, middle_ns + slack_ns


class CostMeter:
    """Measures this job's cost of measuring: stretches of steps that the source works in against the steps
    before and after.

    Drift of the job cancels. Noise makes the estimate too low as often as too high, and sometimes negative.
    """

    def __init__(self) -> None:
        self.comparisons = 0
        self._costs: deque[tuple[float, float]] = deque(maxlen=MAX_COMPARISONS)  # share of the step, weight
        self.skip()

    def note(self, step_ns: int, *, touched: bool) -> None:
        """Add the next step. ``touched``: the source worked in it."""
        if not touched:
            (self._after_ns if self._touched_ns else self._before_ns).append(step_ns)
            if len(self._after_ns) == MAX_NEIGHBOURS:
                self._compare()
            return
        if self._after_ns:
            self._compare()
        self._touched_ns.append(step_ns)

    def skip(self) -> None:
        """Start over: the next step does not follow the last one, or the job has changed."""
        self._before_ns: deque[int] = deque(maxlen=MAX_NEIGHBOURS)
        self._touched_ns: deque[int] = deque(maxlen=MAX_NEIGHBOURS)
        self._after_ns: deque[int] = deque(maxlen=MAX_NEIGHBOURS)

    def estimate(self) -> Estimate | None:
        """Return the relative slowdown of steps that the source works in; None until known."""
        if len(self._costs) < MIN_COMPARISONS:
            return None
        shares = _clipped([share for share, _ in self._costs], least_slack=0.0)
        return weighted_mean(shares, [weight for _, weight in self._costs])

    def _compare(self) -> None:
        before_ns, touched_ns, after_ns = self._before_ns, self._touched_ns, self._after_ns
        self.skip()
        self._before_ns.extend(after_ns)
        if not before_ns:
            return
        means = [sum(_clipped(each)) / len(each) for each in (before_ns, touched_ns, after_ns)]
        usual_ns = (means[0] + means[2]) / 2
        weight = 1 / (1 / len(touched_ns) + (1 / len(before_ns) + 1 / len(after_ns)) / 4)
        self._costs.append((means[1] / usual_ns - 1, weight))
        self.comparisons += 1


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> Estimate:
    """Return the mean of values with variances proportional to 1/weight, and its 95 % interval.

    Neighbours share unmeasured steps: the variance is Newey and West's (Econometrica 55, 1987) with the
    first lag in full, if that is larger. Student's quantile is 1.96 + 3.2 / (n - 1), within 5 %.
    """
    total = sum(weights)
    mean = sum(weight * value for weight, value in zip(weights, values, strict=True)) / total
    off = [weight * (value - mean) for weight, value in zip(weights, values, strict=True)]
    scatter = sum(each * each for each in off) + 2 * max(0.0, sum(map(operator.mul, off, off[1:])))
    degrees = len(values) - 1
    return Estimate(mean, (1.96 + 3.2 / degrees) * math.sqrt(scatter * len(values) / degrees) / total)


def _clipped(values: Sequence[float], least_slack: float = LEAST_SLACK) -> list[float]:
    """Clip outliers: a checkpoint or a garbage collection is no cost of measuring."""
    middle = median(values)
    slack = max(OUTLIER_SIGMAS * sigma(values), least_slack * abs(middle))
    return [min(max(each, middle - slack), middle + slack) for each in values]
