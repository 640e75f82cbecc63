"""How ranks compare: filters and order of the table, and how far each is from the median."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.links import has_nvlink, has_pcie, misplacement, numa_matters, nvlink_rate, pcie_rate
from overlaptop.text import duration, percent

LEVELS = 0.03, 0.1  # Smallest deviations that are shown, and shown as large
MOST_WORST = 10
MOST_LISTED = 64  # Most ranks that get a row each, unless the user sorts or filters them
_CLOCK_SAMPLES = 8

Predicate = Callable[[RankView], bool]

MEASURES: dict[str, Callable[[RankView], float | None]] = {
    "overlap": lambda view: view.row.overlap if view.row else None,
    "exposed": lambda view: view.row.exposed_ns if view.row else None,
    "waiting": lambda view: waiting_ns(view),
    "stall": lambda view: view.row.stall_ns if view.row else None,
    "idle": lambda view: idle_ns(view),
    "step": lambda view: view.row.step_ns if view.row else None,
    "nvlink": lambda view: nvlink_rate(view).bytes_per_s,
    "pcie": lambda view: pcie_rate(view).bytes_per_s,
}
"""Measures for filtering and sorting: fractions, ns, bytes per second; None if not known."""
_ORDERS = {**MEASURES, "numa": misplacement}
SORT_KEYS = ("rank", *_ORDERS)

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq,
}  # fmt: skip
_STATES: dict[str, Predicate] = {
    "misplaced": lambda view: misplacement(view) == 2,
    "unbound": lambda view: misplacement(view) == 1,
    "stale": lambda view: view.stale,
    "lost": lambda view: view.node_lost,
    "ended": lambda view: view.ended,
}
_TIME = "a time: ns, us, ms or s", {"ms": 1e6, "ns": 1, "us": 1e3, "µs": 1e3, "s": 1e9}
_RATE = "a rate: mb/s or gb/s", {"gb/s": 1e9, "mb/s": 1e6}
_UNITS = {"overlap": ("a percentage", {"%": 1.0}), "nvlink": _RATE, "pcie": _RATE}
"""The units of measures in a filter, the usual one first; of others, those of times."""
_UNIT = "%|[nuµm]?s|[mg]b/s"
_COMPARISON = re.compile(rf"([a-z]+)(<=|>=|<|>|=)(\d+(?:\.\d+)?)({_UNIT})?")
_BEFORE_UNIT = re.compile(rf"([<>=][\d.]+)\s+(?=(?:{_UNIT})(?:\s|$))")
_RANKS = re.compile(r"\d*-?\d*(?:,\d*-?\d*)*")
"""Also matches unfinished ranges, but not ``10-0-0-1``, part of a host's name."""


class FilterError(ValueError):
    """An invalid filter; the message is one line."""


@dataclass(frozen=True)
class Filter:
    """Words that must all match a rank: ``3``, ``0-3,6``, ``overlap<80``, ``step>50ms``, part of a host's
    or device's name, ``nvlink>100``, ``unbound``, ``misplaced``, ``stale``, ``lost``, ``ended``.
    """

    words: str = ""
    predicates: tuple[Predicate, ...] = ()

    @classmethod
    def parse(cls, words: str) -> "Filter":
        """Parse a filter. FilterError: an unknown measure, a wrong unit, or a range without an end."""
        found = _BEFORE_UNIT.sub(r"\1", words.lower()).split()
        return cls(words.strip(), tuple(_predicate(word) for word in found))

    def keeps(self, view: RankView) -> bool:
        return all(predicate(view) for predicate in self.predicates)


def sees_gaps(view: RankView) -> bool:
    """Return whether the rank's source sees the gaps between kernels, and so idle time."""
    return view.info is not None and view.info.compute_exact


def stalls_apart(view: RankView) -> bool:
    """Whether stalls are separate from exposed time: by the host's clock they are not."""
    return view.info is not None and view.info.source != "host"


_SAYS = {
    "waiting": lambda view: waiting_ns(view) is not None, "stall": stalls_apart, "idle": sees_gaps,
    "nvlink": has_nvlink, "pcie": has_pcie, "numa": numa_matters,
}  # fmt: skip
"""Keys without data in some jobs."""


def all_see_gaps(ranks: Iterable[RankView]) -> bool:
    return all(view.info.compute_exact for view in ranks if view.info is not None)


def waiting_ns(view: RankView) -> int | None:
    """Return the exposed wait in the rank's row; None without a wait/transfer breakdown."""
    waits = view.row_waits
    return waits.exposed_wait_ns if waits is not None and waits.exposed_known else None


def waiting_at_least(view: RankView, smallest_ns: float = 1) -> bool:
    """Return whether `waiting_ns` is to be marked as a lower bound: a part of the exposed time is not
    attributed, or a source that sees no gaps found less than ``smallest_ns`` of a wait.
    """
    waits = view.row_waits
    if waits is None or not waits.exposed_known:
        return False
    unseen = waits.wait_ns > 0 and waits.exposed_wait_ns < smallest_ns and not sees_gaps(view)
    return unseen or waits.exposed_not_attributed_ns > 0


def idle_ns(view: RankView) -> int | None:
    return view.row.idle_ns if view.row is not None and sees_gaps(view) else None


def ordered(ranks: Iterable[RankView], chosen: Filter, key: str, *, reverse: bool) -> list[RankView]:
    """Return the ranks that pass the filter, sorted; unknown figures last in both directions."""
    kept = [view for view in ranks if chosen.keeps(view)]
    if key == "rank":
        return sorted(kept, key=lambda view: view.rank, reverse=reverse)
    measure = _ORDERS[key]
    known = [(value, view) for view in kept if (value := measure(view)) is not None]
    known.sort(key=lambda pair: pair[0], reverse=reverse)
    unknown = [view for view in kept if measure(view) is None]
    return [view for _, view in known] + unknown


def has_data(key: str, ranks: Iterable[RankView]) -> bool:
    return key not in _SAYS or any(map(_SAYS[key], ranks))


def sort_keys(ranks: Sequence[RankView]) -> tuple[str, ...]:
    return tuple(key for key in SORT_KEYS if has_data(key, ranks))


def _clock_hz(view: RankView) -> float | None:
    known = [each.sm_clock_hz for each in view.samples[-_CLOCK_SAMPLES:] if each.sm_clock_hz is not None]
    return fmean(known) if known else None


class Quantity(NamedTuple):
    """A figure in which ranks are compared."""

    measure: Callable[[RankView], float | None]
    is_bad_high: bool  # Whether a rank with more of it than others is suspect
    describe: Callable[[float | None], str]


QUANTITIES: dict[str, Quantity] = {
    # Ranks wait for the one that communicates least: its own collectives begin last.
    "exposed": Quantity(MEASURES["exposed"], False, duration),
    "overlap": Quantity(MEASURES["overlap"], False, percent),
    "waiting": Quantity(MEASURES["waiting"], False, duration),
    "compute": Quantity(lambda view: view.row.compute_ns if view.row else None, True, duration),
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
    return max((view.info.local_rank + 1 for view in ranks if view.info is not None), default=1)


def _predicate(word: str) -> Predicate:
    if _RANKS.fullmatch(word):
        return _by_rank(word)
    if match := _COMPARISON.fullmatch(word):
        return _by_measure(*match.groups())
    if word in MEASURES or any(sign in word for sign in "<>="):
        raise FilterError(f"{word}: expected e.g. overlap<80 or step>50ms")
    return _STATES.get(word) or (
        lambda view: (
            view.info is not None and word in f"{view.node} {view.info.host} {view.info.device}".lower()
        )
    )


def _by_rank(word: str) -> Predicate:
    bounds = [part.partition("-") for part in word.split(",")]
    try:
        ranges = [range(int(first), int(last if dash else first) + 1) for first, dash, last in bounds]
    except ValueError:
        ranges = [range(0)]
    if not all(ranges):
        raise FilterError(f"{word}: expected e.g. 3 or 0-3,6")
    return lambda view: any(view.rank in wanted for wanted in ranges)


def _by_measure(name: str, sign: str, figure: str, unit: str | None) -> Predicate:
    if name not in MEASURES:
        raise FilterError(f"{name}: not one of {', '.join(MEASURES)}")
    what, units = _UNITS.get(name, _TIME)
    if unit is not None and unit not in units:
        raise FilterError(f"{name} is {what}")
    limit = float(figure) * units[unit or next(iter(units))]
    if "%" in units:
        limit /= 100  # division: 70 % must be the same float as an overlap of 7 in 10
    compare, measure = _OPERATORS[sign], MEASURES[name]

    def holds(view: RankView) -> bool:
        value = measure(view)
        return value is not None and compare(value, limit)

    return holds
