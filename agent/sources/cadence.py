"""Which steps are measured in detail: as many as a budget of the job's time pays for.

Steps are chosen by their number, in cycles each of which begins with measured steps and ends with a pause.
A longer cycle is twice as long: ranks that differ in what they may spend still measure the same steps, as
far as each measures, and pause together, as far as each pauses. And it is no whole number of steps: what
the script does in each tenth step comes to measured steps and to pauses nearly alike.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import thread_time_ns

from overlaptop.agent.median import median
from overlaptop.agent.sources.own_cost import CostMeter, Estimate, Treatment

WATCHED_BUDGET, IDLE_BUDGET = 0.0045, 0.0009
"""How much longer steps may become on average where somebody watches this rank, and where nobody does: a
tenth less than 0.5 % and 0.1 %, since the cost is an estimate."""
FIRST_SHARE, RELEARN_SHARE, FIRST_LOSS = 0.5, 0.25, 0.005
"""While the cost is not known, so many steps are measured, the second where the job has turned to something
else, but no more than lose so much by what is usual, or, where it has turned, than the budget has."""
TURNED_TIMES, RECENT_STEPS = 2.0, 9
"""A job whose recent steps, most of them, are so many times longer or shorter than those of the plan has
turned to something else."""
RELEARN_PERIOD_S = 120.0
"""What is known of the cost is given up no more often, where a job turns to and fro."""
LEAST_SHARE = 1 / 1024
KEEP_SHARES = 0.9, 1.1
"""A share is kept as long as the budget pays for between so many times as much, and not for all steps."""
WATCHED_SIGMAS, IDLE_SIGMAS = 0.5, 1.0
"""The cost is taken to be so many standard errors higher than it is estimated."""
SURE_SIGMAS, UNSURE_SHARE = 1.5, 0.6
"""So many before more steps than this share are measured. Of several ranks the one that is most wrong
decides, and it misleads the others, whose pauses contain what it does."""
GAP_S, GAP_STEPS = 1.0, 4
"""From one measured step to the next it is no longer than so, or so many steps where these are longer, if
the share allows it."""
LONG_CYCLE_S = 5.0
"""Where all but a few steps are measured, a cycle takes so long at least."""
PAUSE_S = 0.25
"""A pause is of as many steps as take so long,"""
PAUSE_STEPS = 3
"""or of so many, where a whole cycle is not."""
LONG_CYCLE_PAUSES = 13
"""Where all but a few steps are measured, one in so many is not."""
READ_S = 0.2
"""Where some steps are measured, a pause begins so much later at least: the source reads them before it."""
RECENT_WINDOWS = 5
"""What reading takes is the mean over so many."""
SETTLE_STEPS = 4
"""The first steps are of warm-up."""
CYCLES_STEPS = tuple(3.488 * 2**doublings for doublings in range(12))
"""Lengths of cycles: such as fall evenly on each n-th step for the n that scripts use, products of 2, 3
and 5. Each 7th, 14th, 21st, 28th and 42nd step they nearly meet."""


@dataclass(slots=True)
class Plan:
    """One cycle: measured steps, steps as usual, in the first of which the source reads them, the pause,
    and steps in which the source works already. A cycle begins at the first whole step.
    """

    cycle_steps: float
    measured_steps: int
    pause_steps: int
    lead_steps: int
    _cycle: tuple[int, int] = field(default=(0, 0), init=False, repr=False, compare=False)
    """Where the cycle that was asked for last begins and ends: each step asks several times."""

    def measures(self, step: int) -> bool:
        """Whether `step` is measured."""
        begin, _ = self._cycle_of(step)
        return step - begin < self.measured_steps

    def pauses(self, step: int) -> bool:
        """Whether `step` lies in the pause."""
        _, end = self._cycle_of(step)
        return self.lead_steps < end - step <= self.lead_steps + self.pause_steps

    def turns_at(self, step: int) -> bool:
        """Whether `step` is treated otherwise than the one before it."""
        begin, end = self._cycle_of(step)
        if step == begin:
            return not self.measures(step - 1)
        pause_end = end - self.lead_steps
        return step in (begin + self.measured_steps, pause_end - self.pause_steps, pause_end)

    def _cycle_of(self, step: int) -> tuple[int, int]:
        cycle = self._cycle
        if not cycle[0] <= step < cycle[1]:
            number = step // self.cycle_steps
            begin, end = number * self.cycle_steps, (number + 1) * self.cycle_steps
            self._cycle = cycle = math.ceil(begin), math.ceil(end)
        return cycle


class Cadence:
    """Chooses the steps to measure by what measuring has cost this job so far.

    `measures` and `pauses` may be asked on any thread.
    """

    def __init__(self, every: int | None, prior: Estimate, lead_steps: int = 0) -> None:
        """Begin with half of the steps, until their cost is known.

        Args:
            every: measure each n-th step, whatever it costs, and never pause; None: by the budget.
            prior: what tracing steps costs as far as it is known of any job.
            lead_steps: steps before a measured one in which the source works already.
        """
        self.watched = False
        self.cost = CostMeter()
        self._fixed = Plan(every, 1, 0, 0) if every is not None else None
        self.prior = prior
        """What tracing steps costs as far as it is known of jobs like this. Set on the agent's thread."""
        self._reading_ns = 0
        """CPU time of the agent's thread for measured steps, not noted yet."""
        self._reading_shares: deque[float] = deque(maxlen=RECENT_WINDOWS)
        self._lead_steps = lead_steps
        self._share = FIRST_SHARE
        self._known = False
        self._plan: Plan | None = self._fixed
        self._planned_for: object = None
        """What the plan was made for: `watched`, and what is usual as long as nothing else is known."""
        self._settling = SETTLE_STEPS
        self._recent_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        self._planned_step_ns = 0.0
        """The step for which the plan was made."""
        self._since_relearned_s = math.inf

    @property
    def every(self) -> int:
        """One step in so many is measured."""
        plan = self._plan
        return max(1, round(plan.cycle_steps / plan.measured_steps)) if plan else 1

    def measures(self, step: int) -> bool:
        """Whether `step` is to be measured. At first all are, where that takes no preparation."""
        plan = self._plan
        return plan.measures(step) if plan is not None else not self._lead_steps

    def pauses(self, step: int) -> bool:
        """Whether the agent is to do nothing in `step`, so that its cost can be told."""
        plan = self._plan
        return plan is not None and plan.pauses(step)

    def turns_at(self, step: int) -> bool:
        """Whether `step` is treated otherwise than the one before it."""
        plan = self._plan
        return plan is not None and plan.turns_at(step)

    def note(self, step: int, step_ns: int, *, measured: bool, untouched: bool) -> None:
        """Take in a finished step, in order. On the agent's thread.

        Args:
            step: its number.
            step_ns: how long it took.
            measured: it was measured in detail.
            untouched: the source did nothing in it.
        """
        if self._settling:
            self._settling -= 1
            return
        if self._fixed is not None:
            return
        self._recent_ns.append(step_ns)
        self._since_relearned_s += step_ns / 1e9
        if measured:
            treatment = Treatment.MEASURED
        else:
            treatment = Treatment.PAUSED if untouched and self.pauses(step) else Treatment.USUAL
        turns = self.cost.turns
        self.cost.note(step_ns, treatment)
        if self._has_turned():
            self.cost.restart()
            if self._since_relearned_s >= RELEARN_PERIOD_S:
                self._share, self._since_relearned_s = self._share_to_relearn(), 0.0
            self._choose()
        elif self._plan is None or self.cost.turns != turns or self._planned_for != self._wanted_for():
            self._choose()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What the agent's thread does here it does for measured steps, at the cost of its CPU time."""
        began_ns = thread_time_ns()
        try:
            yield
        finally:
            self._reading_ns += thread_time_ns() - began_ns

    def note_reading(self, traced_ns: int, *, hidden: bool) -> None:
        """What was read since the last call is of so long a trace. ``hidden``: no step waits for it."""
        self._reading_shares.append(0.0 if hidden else self._reading_ns / max(traced_ns, 1))
        self._reading_ns = 0

    def discard_reading(self) -> None:
        """What was read since the last call says nothing: it is of no trace that was read whole."""
        self._reading_ns = 0

    @property
    def reading_share(self) -> float:
        """What reading adds to the cost of a measured step, after it, as a share of the step."""
        shares = self._reading_shares
        return sum(shares) / len(shares) if shares else 0.0

    def _has_turned(self) -> bool:
        """Whether a plan of so many steps now takes a time of another order."""
        if self._plan is None or len(self._recent_ns) < RECENT_STEPS:
            return False
        times = median(self._recent_ns) / max(self._planned_step_ns, 1.0)
        return not 1 / TURNED_TIMES <= times <= TURNED_TIMES

    def _choose(self) -> None:
        self._planned_for = self._wanted_for()
        estimate = self.cost.of_measured_steps()
        if estimate is not None:
            self._known = True
            share = self._affordable(estimate)
            keeps = KEEP_SHARES[0] * self._share <= share < KEEP_SHARES[1] * self._share
            if not keeps or share >= 1.0:
                self._share = share
        elif self._known:  # the job has turned to something else
            self._share = min(self._share, self._share_to_relearn())
        else:
            self._share = min(FIRST_SHARE, FIRST_LOSS / self._usual_cost)
        self._planned_step_ns = self.cost.step_ns or median(self._recent_ns)
        self._plan = plan(self._planned_step_ns, self._share, self._lead_steps)
        self.cost.follow(watched=self.watched, known=self._known)

    def _wanted_for(self) -> object:
        return self.watched, self._known or (self.prior, self.reading_share)

    @property
    def _budget(self) -> float:
        return WATCHED_BUDGET if self.watched else IDLE_BUDGET

    @property
    def _usual_cost(self) -> float:
        return self.prior.share + self.reading_share

    def _share_to_relearn(self) -> float:
        return min(RELEARN_SHARE, self._budget / self._usual_cost)

    def _affordable(self, estimate: Estimate) -> float:
        """The share of steps that the budget pays for, by what they may well cost.

        Where the job's noise hides that, by what measuring usually costs: the mean of the estimate and the
        prior, each weighted by the inverse of its variance.
        """
        budget, sigmas = self._budget, WATCHED_SIGMAS if self.watched else IDLE_SIGMAS
        weights = [(2 / max(each.error, 1e-6)) ** 2 for each in (estimate, self.prior)]
        mean = (weights[0] * estimate.share + weights[1] * self.prior.share) / sum(weights)
        cost, error = mean + self.reading_share, 1 / math.sqrt(sum(weights))
        share = budget / max(cost + sigmas * error, budget)
        if self._share <= UNSURE_SHARE < share:
            share = max(UNSURE_SHARE, budget / max(cost + SURE_SIGMAS * error, budget))
        return max(LEAST_SHARE, share)


def plan(step_ns: float, share: float, lead_steps: int = 0) -> Plan:
    """The cycle for steps of about `step_ns` in which the source works in a `share` of them: in those that
    are measured, and in so many before them.
    """
    step_s = max(step_ns, 1.0) / 1e9
    return _nearly_all(step_s, share, lead_steps) or _some(step_s, share, lead_steps)


def _nearly_all(step_s: float, share: float, lead_steps: int) -> Plan | None:
    """A long cycle of measured steps with one pause at its end; None where the share is too small."""
    pause_steps = max(math.ceil(PAUSE_S / step_s), PAUSE_STEPS - 1)
    off_steps = (1 if lead_steps else 0) + pause_steps + lead_steps
    least = max(LONG_CYCLE_PAUSES * off_steps, LONG_CYCLE_S / step_s)
    cycle = next((cycle for cycle in CYCLES_STEPS if cycle >= least), CYCLES_STEPS[-1])
    measured = math.floor(cycle) - off_steps
    if share * cycle < measured + lead_steps:
        return None
    return Plan(cycle, measured, pause_steps, lead_steps)


def _some(step_s: float, share: float, lead_steps: int) -> Plan:
    """The cycle that measures most, of those in which the next measured step comes in time."""
    drain_steps = math.ceil(READ_S / step_s) if lead_steps else 0
    longest_gap_steps = max(GAP_S / step_s, GAP_STEPS)
    best_cycle, best = CYCLES_STEPS[-1], 0
    for cycle in CYCLES_STEPS:
        measured = min(math.floor(share * cycle), math.floor(cycle) - drain_steps - 1) - lead_steps
        if measured >= 1:
            if best and cycle - measured + 1 > longest_gap_steps:
                break
            if measured * best_cycle >= best * cycle:
                best_cycle, best = cycle, measured
    measured = max(1, best)
    pause_steps = max(math.ceil(PAUSE_S / step_s), PAUSE_STEPS)
    room_steps = math.floor(best_cycle) - measured - drain_steps - lead_steps
    return Plan(best_cycle, measured, min(pause_steps, room_steps), lead_steps)
