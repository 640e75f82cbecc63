"""The search for a best value on simulated jobs whose curve is known: what it misses, and what it spends.

    python benchmarks/search_simulated.py [--seeds 8] [--grid 9x6 | --free]

Each line of the table is one kind of noise, on ten curves with so many seeds each. A run has missed where
the choice is longer than the best of an exhaustive grid's values by more than 3 %, without noise. The
budget is a third of the steps that the grid would take, switches paid for on both sides; with ``--free``
the search finds its own. The same seeds give the same table on any machine.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
from tables import print_head, print_row

from overlaptop.tuning.search import SearchOptions, ValueSearch
from overlaptop.tuning.space import Space

GRID = (1, 2, 5, 10, 25, 50, 100, 200, 400)
BEFORE = 25
SWITCH_STEPS = 5
"""Between asking for a value and its first undisturbed step."""
TOO_LONG = 0.03
"""A choice that is longer by more has missed."""
USUAL_STEPS = 500
log = math.log

Curve = Callable[[int], float]
"""The step with a value, ms."""


def u_shaped(centre: float, rise: float) -> Curve:
    """Best at its centre, and longer by that share one factor of e squared away."""
    return lambda value: 100 * (1 + rise * ((log(value) - log(centre)) / 2) ** 2)


def valley(value: float, at: float, depth: float) -> float:
    """By what share a step is shorter near some value."""
    return depth * math.exp(-(((log(value) - log(at)) / 0.7) ** 2))


CURVES: dict[str, Curve] = {
    "flat": lambda _value: 100.0,
    "u at 8": u_shaped(8, 0.15),
    "u at 40": u_shaped(40, 0.2),
    "u at 150": u_shaped(150, 0.2),
    "v at 30": lambda value: 100 * (1 + 0.3 * min(1, abs(log(value) - log(30)) / 1.5)),
    "falling": lambda value: 100 * (1.4 - 0.4 * log(value) / log(400)),
    "rising": lambda value: 100 * (1 + 0.4 * log(value) / log(400)),
    "two valleys, small best": lambda value: (
        100 * (1.15 - valley(value, 5, 0.15) - valley(value, 120, 0.12))
    ),
    "two valleys, large best": lambda value: (
        100 * (1.15 - valley(value, 3, 0.1) - valley(value, 200, 0.15))
    ),
    "saw": lambda value: 80 + max(20, 20 + 0.15 * value) + 25 / value**0.7 + 3 * (7 * value % 13) / 13,
}


@dataclass(frozen=True)
class Noise:
    """Of one step: a share of it."""

    deviation: float
    correlation: float = 0.5
    """From one step to the next."""
    drift: float = 0.0
    """Over the machine's usual steps."""
    spikes: float = 0.0
    """So many of all steps take two to six times as long."""
    jump: float = 0.0
    """From a moment on every step takes so much longer."""
    jump_at: float = 0.5
    """When, as a share of the machine's usual steps."""


class Machine:
    """Where the job runs."""

    def __init__(self, curve: Curve, noise: Noise, seed: int, usual_steps: int = USUAL_STEPS) -> None:
        """``usual_steps``: what the noise's drift and jump count by."""
        self._curve, self._noise, self._usual_steps = curve, noise, usual_steps
        self._chance = np.random.default_rng(seed)
        self._wave = 0.0
        self._steps = 0

    def step_ns(self, value: int) -> float:
        """Do one step."""
        noise = self._noise
        fresh = math.sqrt(1 - noise.correlation**2) * noise.deviation * self._chance.normal()
        self._wave = noise.correlation * self._wave + fresh
        self._steps += 1
        spike = self._chance.uniform(2, 6) if self._chance.random() < noise.spikes else 1.0
        passed = self._steps / self._usual_steps
        slower = 1 + noise.drift * passed + noise.jump * (passed > noise.jump_at)
        return self._curve(value) * math.exp(self._wave) * slower * spike * 1e6


def searched(
    machine: Machine,
    options: SearchOptions | None = None,
    space: Space | None = None,
    look: Callable[[ValueSearch], object] = lambda _search: None,
) -> ValueSearch:
    """A whole search, its switches paid for. ``look`` sees it after each window."""
    search = ValueSearch(space or Space(range(1, 401)), BEFORE, options)
    present = BEFORE
    while (value := search.next) is not None:
        if value != present:
            for _ in range(SWITCH_STEPS):
                machine.step_ns(present)
            search.spend(SWITCH_STEPS)
            present = value
        window: list[float] = []
        while not search.enough(window):
            window.append(machine.step_ns(value))
        search.spend(len(window))
        search.add(window)
        look(search)
    return search


def regret(search: ValueSearch, curve: Curve) -> float:
    """By what share its choice is longer than the best of the grid."""
    return curve(search.best) / min(map(curve, GRID)) - 1


KINDS: dict[str, Noise] = {
    **{f"{percent} %, each step by itself": Noise(percent / 100, 0.0) for percent in (1, 2, 3, 5, 10)},
    "5 %, a step like the one before (0.8)": Noise(0.05, 0.8),
    "2 %, and 2 % of the steps take 2 to 6 times as long": Noise(0.02, 0.0, spikes=0.02),
    "1 %, and 10 % slower over the search": Noise(0.01, 0.0, drift=0.1),
    "1 %, and 15 % slower from its middle on": Noise(0.01, 0.0, jump=0.15),
    "1 %, and 15 % slower within its first round": Noise(0.01, 0.0, jump=0.15, jump_at=0.15),
    "1 %, and 15 % faster from its middle on": Noise(0.01, 0.0, jump=-0.15),
}


def print_table(seeds: int, budget_steps: int, *, free: bool) -> None:
    """A row for each kind of noise."""
    print_head("noise of a step", "missed", "runs", "regret, worst", "steps, median", "most", "seen once")
    options = SearchOptions(budget_steps=None if free else budget_steps)
    for name, noise in KINDS.items():
        regrets, spent, once = [], [], []
        for curve in CURVES.values():
            for seed in range(seeds):
                search = searched(Machine(curve, noise, seed, budget_steps), options)
                regrets.append(regret(search, curve))
                spent.append(search.spent_steps)
                once.append(sum(point.windows == 1 for point in search.points()))
        missed = sum(each > TOO_LONG for each in regrets)
        print_row(
            name, str(missed), str(len(regrets)), f"{100 * max(regrets):.1f} %", f"{median(spent):.0f}",
            str(max(spent)), f"{median(once):.0f}",
        )  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=8, help="of each curve (default: %(default)s)")
    parser.add_argument("--grid", default="9x6", help="values x rounds, for the budget (default: 9x6)")
    parser.add_argument("--free", action="store_true", help="give no budget")
    options = parser.parse_args()
    values, _, rounds = options.grid.partition("x")
    if not (values.isdecimal() and rounds.isdecimal() and int(values) * int(rounds) and options.seeds > 0):
        parser.error("--grid must be like 9x6, and --seeds above 0")
    budget_steps = int(values) * int(rounds) * (SearchOptions().window_steps + SWITCH_STEPS) // 3
    budget = f"{budget_steps} steps, a third of {values} values in {rounds} rounds"
    print(f"budget: {'as it finds' if options.free else budget}")
    print_table(options.seeds, budget_steps, free=options.free)


if __name__ == "__main__":
    main()
