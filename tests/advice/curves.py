"""Steps of a job whose curve is known: what a search is judged by."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from overlaptop.advice.candidates import Prior
from overlaptop.advice.search import Plan, Search
from overlaptop.advice.space import Space

GRID = (1, 2, 5, 10, 25, 50, 100, 200, 400)
BEFORE = 25
SWITCH_STEPS = 5
"""Between asking for a value and its first undisturbed step."""
log = math.log


def u_shaped(centre: float, rise: float) -> Callable[[int], float]:
    return lambda value: 100 * (1 + rise * ((log(value) - log(centre)) / 2) ** 2)


def valley(value: float, at: float, depth: float) -> float:
    return depth * math.exp(-(((log(value) - log(at)) / 0.7) ** 2))


CURVES: dict[str, Callable[[int], float]] = {
    "flat": lambda value: 100.0,
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
    """In 500 steps."""
    spikes: float = 0.0
    """So many of all steps take two to six times as long."""


class Machine:
    """Where the job runs."""

    def __init__(self, curve: Callable[[int], float], noise: Noise, seed: int) -> None:
        self._curve, self._noise = curve, noise
        self._chance = np.random.default_rng(seed)
        self._wave = 0.0
        self._steps = 0

    def step_ns(self, value: int) -> float:
        noise = self._noise
        fresh = math.sqrt(1 - noise.correlation**2) * noise.deviation * self._chance.normal()
        self._wave = noise.correlation * self._wave + fresh
        self._steps += 1
        spike = self._chance.uniform(2, 6) if self._chance.random() < noise.spikes else 1.0
        drift = 1 + noise.drift * self._steps / 500
        return self._curve(value) * math.exp(self._wave) * drift * spike * 1e6


def searched(
    machine: Machine,
    plan: Plan | None = None,
    space: Space | None = None,
    prior: Prior = lambda value: None,
) -> Search:
    """A whole search, its switches paid for."""
    search = Search(space or Space(range(1, 401)), BEFORE, plan or Plan(), prior)
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
    return search


def regret(search: Search, curve: Callable[[int], float]) -> float:
    """By what share its choice is longer than the best of the grid."""
    return curve(search.best) / min(map(curve, GRID)) - 1
