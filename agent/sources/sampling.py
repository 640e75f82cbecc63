"""Which steps are measured in detail: as many as a budget of the step's time allows."""

from __future__ import annotations

import math

BUDGET = 0.01
"""Share of a step that measuring may cost on the training threads, averaged over steps."""
MAX_EVERY = 100
SETTLE_STEPS = 3
"""Steps before the first detailed one: their times are those of warm-up."""


class Sampler:
    """Chooses every n-th step, n from what the last detailed step cost on the training threads.

    The cost is CPU time in the agent's hooks, more than what the job loses wherever its CPU runs ahead of
    the device; so the budget is a bound, not an estimate.
    """

    def __init__(self, every: int | None) -> None:
        """``every`` fixes n; None lets the budget choose."""
        self._fixed = every
        self.every = every or MAX_EVERY
        """n as it stands."""
        self._since_detailed = 0
        self._seen = 0
        self._warmed = False

    def next_is_detailed(self) -> bool:
        """Decide for the step that begins now."""
        self._seen += 1
        self._since_detailed += 1
        if self._seen <= SETTLE_STEPS and self._fixed is None:
            return False
        # The first detailed step tells the cost, so it need not wait its turn.
        if self._since_detailed >= self.every or not self._warmed:
            self._since_detailed = 0
            return True
        return False

    def learn(self, cost_ns: int, step_ns: int) -> None:
        """Take in what a detailed step cost and how long it took."""
        first, self._warmed = not self._warmed, True
        if self._fixed is not None or step_ns <= 0:
            return
        wanted = min(MAX_EVERY, max(1, math.ceil(cost_ns / (BUDGET * step_ns))))
        # One slow step must not blind the user for a hundred: move half the way, except at the start.
        self.every = wanted if first else math.ceil((self.every + wanted) / 2)
