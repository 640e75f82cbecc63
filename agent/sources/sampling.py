"""Which steps are measured in detail: as many as a budget of the step's time allows."""

from __future__ import annotations

import math

MAX_EVERY = 128


class Sampler:
    """Chooses every n-th step, n from what the last detailed step cost.

    Steps are chosen by their number, and n is a power of two: ranks whose costs differ, and so their n,
    still measure the same steps, and can be compared.

    The cost is what a source says it is: time in the agent's own code, on whichever threads count there.
    A job whose CPU runs ahead of its device loses less than that.
    """

    def __init__(self, every: int | None, budget: float, settle_steps: int) -> None:
        """Start with every step until the first cost is known.

        Args:
            every: fixes n; None lets the budget choose.
            budget: share of a step's time that measuring may cost, averaged over steps.
            settle_steps: steps before the first detailed one, whose times are those of warm-up; none
                where n is fixed.
        """
        self.every = every or 1
        """The present n."""
        self._wanted = 1
        """n as the budget would have it."""
        self._fixed = every is not None
        self._budget = budget
        self._settling = 0 if self._fixed else settle_steps
        self._step = -1
        self._learned = False

    def next_is_detailed(self) -> bool:
        """Decide for the step that begins now."""
        self._step += 1
        if self._settling > 0:
            self._settling -= 1
            return False
        return not self._learned or self._step % self.every == 0

    def learn(self, cost_ns: int, step_ns: int) -> None:
        """Take in what a detailed step cost and how long it took."""
        first, self._learned = not self._learned, True
        if self._fixed or step_ns <= 0:
            return
        wanted = min(MAX_EVERY, max(1, math.ceil(cost_ns / (self._budget * step_ns))))
        # One slow step must not blind the user for a hundred: move half the way, except at the start.
        self._wanted = wanted if first else math.ceil((self._wanted + wanted) / 2)
        self.every = 1 << (self._wanted - 1).bit_length()
