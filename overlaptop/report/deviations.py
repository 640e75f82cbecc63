"""How far each rank is from the median of all ranks. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.order import MEASURES
from overlaptop.text import duration, percent

LEVELS = 0.03, 0.1
"""Smallest deviations that are shown, and shown as large."""
MOST_WORST = 10
MOST_LISTED = 64
"""Most ranks that get a row each, unless the user sorts or filters them."""
_CLOCK_SAMPLES = 8


def _clock_hz(view: RankView) -> float | None:
    known = [each.sm_clock_hz for each in view.samples[-_CLOCK_SAMPLES:] if each.sm_clock_hz is not None]
    return fmean(known) if known else None


def _compute_ns(view: RankView) -> float | None:
    return view.row.compute_ns if view.row is not None else None


class Quantity(NamedTuple):
    """A figure in which ranks are compared."""

    measure: Callable[[RankView], float | None]
    is_bad_high: bool
    """Whether a rank with more of it than others is suspect."""
    describe: Callable[[float | None], str]


QUANTITIES: dict[str, Quantity] = {
    # Ranks wait for the one that communicates least: its own collectives begin last.
    "exposed": Quantity(MEASURES["exposed"], False, duration),
    "overlap": Quantity(MEASURES["overlap"], False, percent),
    "waiting": Quantity(MEASURES["waiting"], False, duration),
    "compute": Quantity(_compute_ns, True, duration),
    "step": Quantity(MEASURES["step"], True, duration),
    "clock": Quantity(_clock_hz, False, lambda hz: "–" if hz is None else f"{hz / 1e6:.0f} MHz"),
}
"""Quantities by name. Exposed time is known of all ranks, waiting only of those compared."""


@dataclass(frozen=True, slots=True)
class Deviations:
    """Deviations of all ranks with a known value."""

    median: float | None
    shares: Mapping[int, float]
    """By rank, positive if suspect: of an overlap in points, of exposed and waiting time as a share of the
    step, else as a share of the median."""

    def level(self, rank: int) -> int | None:
        """Return -2 to 2: far better than the median, to far worse. None if not known."""
        share = self.shares.get(rank)
        if share is None:
            return None
        level = sum(abs(share) >= each for each in LEVELS)
        return level if share > 0 else -level

    def worst(self) -> list[int]:
        """Return the ranks that deviate most, worst first: suspect ones, then the others, which get half of
        the places if there are as many. Equal percentages are in the order of ranks.
        """
        found = sorted(
            (-round(100 * abs(share)), rank) for rank, share in self.shares.items() if self.level(rank)
        )
        suspect = [rank for _, rank in found if self.shares[rank] > 0]
        others = [rank for _, rank in found if self.shares[rank] < 0]
        suspect = suspect[: max(MOST_WORST // 2, MOST_WORST - len(others))]
        return suspect + others[: MOST_WORST - len(suspect)]


def deviations(ranks: Sequence[RankView], name: str) -> Deviations:
    quantity = QUANTITIES[name]
    known = {view.rank: value for view in ranks if (value := quantity.measure(view)) is not None}
    if not known:
        return Deviations(None, {})
    middle = median(known.values())
    steps_ns = [view.row.step_ns for view in ranks if view.row is not None]
    wholes = {"overlap": 1.0, "exposed": median(steps_ns or [0]), "waiting": median(steps_ns or [0])}
    sign, whole = 1 if quantity.is_bad_high else -1, wholes.get(name, middle) or 1.0
    return Deviations(middle, {rank: sign * (value - middle) / whole for rank, value in known.items()})


def known_quantities(ranks: Sequence[RankView]) -> list[str]:
    """Return the quantities that most ranks have."""
    return [
        name
        for name, each in QUANTITIES.items()
        if 2 * sum(each.measure(view) is not None for view in ranks) > len(ranks)
    ]


def by_place(ranks: Sequence[RankView]) -> list[RankView]:
    """Return the ranks by node, and by local rank within it. Nodes are in the order of their first rank."""
    first: dict[str, int] = {}
    for view in ranks:
        if view.info is not None:
            first[view.info.host] = min(view.rank, first.get(view.info.host, view.rank))

    def place(view: RankView) -> tuple[int, int]:
        return (view.rank, 0) if view.info is None else (first[view.info.host], view.info.local_rank)

    return sorted(ranks, key=place)


def node_size(ranks: Sequence[RankView]) -> int:
    """Return the number of ranks of the largest node, 1 if not known."""
    return max((view.info.local_rank + 1 for view in ranks if view.info is not None), default=1)
