"""Quantities as text. Only this module formats nanoseconds; None is always a dash."""

import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

UNKNOWN = "–"
MOST_RUNS = 6  # Most runs of ranks that are named; more are counted
AT_MOST, AT_LEAST, ABOUT = "≤", "≥", "≈"
_TIME_UNITS = ((1, "ns"), (1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s"))
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def printable(text: str) -> str:
    """Return ``text`` with a ``?`` for each character that could move a terminal's cursor, change its state
    or hide text. Names and notices of other machines pass through here before any terminal.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def shortened(text: str, most: int) -> str:
    """Return ``text`` in at most ``most`` characters, the rest as ``…``."""
    return text if len(text) <= most else text[: max(0, most - 1)].rstrip() + "…"


def did_you_mean(option: str, known: Iterable[str]) -> str:
    """Return ``; did you mean --every?`` for ``--evry``; empty: no known option is near."""
    from difflib import get_close_matches

    near = get_close_matches(option.partition("=")[0], list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def reason(fault: OSError) -> str:
    return fault.strerror.lower() if fault.strerror else str(fault)


def duration(ns: float | None) -> str:
    """Three significant digits and a unit: ``47.6 ms``, ``3.20 s``, ``1 m 05 s``, ``2 h 03 m``."""
    if ns is None:
        return UNKNOWN
    if ns == 0:
        return "0"
    if ns < 0:
        return "-" + duration(-ns)
    if round(ns / 1e9) >= 60:
        minutes, seconds = divmod(round(ns / 1e9), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes:02} m" if hours else f"{minutes} m {seconds:02} s"
    size_ns, unit = _time_unit(ns)
    return f"{_three_digits(ns / size_ns)} {unit}"


def part_of(ns: float, whole_ns: float) -> str:
    """Return the bare figure of a part, with the unit and digits of the whole's `duration`."""
    size_ns, _ = _time_unit(whole_ns)
    return f"{ns / size_ns:.{_decimals(_significant(whole_ns / size_ns))}f}"


def byte_count(count: int | None) -> str:
    """Three significant digits and a binary unit: ``25.0 MiB``; ``512 B``."""
    if count is None:
        return UNKNOWN
    value, at = float(count), 0
    while _significant(value) >= 1000 and at < len(_BYTE_UNITS) - 1:
        value, at = value / 1024, at + 1
    return f"{count} B" if at == 0 else f"{_three_digits(value)} {_BYTE_UNITS[at]}"


def gigabytes_per_s(bytes_per_s: float | None) -> str:
    """A link's rate as the bare figure in GB/s, decimal as links are sold: ``281``, ``1.20``, ``<0.01``."""
    if bytes_per_s is None:
        return UNKNOWN
    if 0 < bytes_per_s < 5_000_000:
        return "<0.01"
    return _three_digits(bytes_per_s / 1e9) if bytes_per_s else "0"


def rate(bytes_per_s: float | None) -> str:
    """``281 GB/s``: one unit for all links, so that readers can compare them."""
    return UNKNOWN if bytes_per_s is None else f"{gigabytes_per_s(bytes_per_s)} GB/s"


def whole_percent(fraction: float | None) -> str:
    """``59 %``; ``<1 %`` for a small positive share."""
    if fraction is None:
        return UNKNOWN
    return "<1 %" if 0 < fraction < 0.005 else f"{fraction * 100:.0f} %"


def percent(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else f"{fraction * 100:.1f} %"


def bounded(figure: str, sign: str, *, exact: bool) -> str:
    """Return ``≤94.1 %``: a bound, if some rank's source does not see the gaps between kernels.

    Overlap is then AT_MOST the figure, exposed AT_LEAST. With AT_LEAST, ``<0.1`` becomes ``≥0.0``.
    """
    if exact or figure == UNKNOWN:
        return figure
    if figure.startswith("<"):
        return figure if sign == AT_MOST else sign + re.sub("[0-9]", "0", figure[1:])
    return sign + figure


def ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}×"


def count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def plural(number: int, noun: str) -> str:
    """``1 thread``, ``2,000 threads``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def with_unit(figure: str, unit: str) -> str:
    """``25 MiB``, ``1 batch``; words such as ``own lists`` as they are; ``unknown`` for nothing."""
    if not figure:
        return "unknown"
    if not unit or not figure.lstrip("-")[:1].isdigit():
        return figure
    if figure == "1" and len(unit) > len("MiB") and unit.endswith("s"):
        unit = unit.removesuffix("es") if unit.endswith(("ches", "shes")) else unit.removesuffix("s")
    return f"{figure} {unit}"


def watts(milliwatts: int | None) -> str:
    return UNKNOWN if milliwatts is None else f"{milliwatts / 1000:.0f} W"


def age(seconds: float | None) -> str:
    """Whole seconds, then minutes and hours: ``4 s``, ``2 m 10 s``."""
    if seconds is None:
        return UNKNOWN
    return f"{int(seconds)} s" if seconds < 60 else duration(int(seconds) * 1e9)


def clock(unix_ns: int) -> str:
    """Local time of day: ``14:03:10``."""
    return time.strftime("%H:%M:%S", time.localtime(unix_ns / 1e9))


def runs(numbers: Iterable[int]) -> list[str]:
    """``["0-3", "8"]``: neighbours together; ``numbers`` ascend."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ["-".join(map(str, run)) for run in found]


def runs_of(numbers: Iterable[int]) -> str:
    return ", ".join(runs(numbers))


def named_ranks(ranks: Collection[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``; ``ranks 0, 8, 16, 24, 32, 40 and 122 more``."""
    found = runs(ranks)
    shown = found[:MOST_RUNS] if len(found) > MOST_RUNS + 1 else found
    named = sum(int(run.split("-")[-1]) - int(run.split("-")[0]) + 1 for run in shown)
    more = f" and {len(ranks) - named:,} more" if named < len(ranks) else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(shown)}{more}"


def ordinal(n: int) -> str:
    suffix = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit and precision for a whole column or axis, so that readers can compare its figures."""

    name: str
    size_ns: int
    decimals: int

    @classmethod
    def for_scale(cls, longest_ns: int) -> "Unit":
        """Return the unit that writes times up to ``longest_ns`` in six characters or fewer."""
        name, size_ns = "s", 1_000_000_000
        if longest_ns < 10_000_000_000:
            name, size_ns = ("ms", 1_000_000) if longest_ns >= 1_000_000 else ("µs", 1_000)
        return cls(
            name, size_ns, 3 if longest_ns < 10 * size_ns else 2 if longest_ns < 100 * size_ns else 1
        )

    def text(self, ns: float | None) -> str:
        """Return the bare figure in this unit; ``<0.1`` for a small positive time."""
        if ns is None:
            return UNKNOWN
        least = 10**-self.decimals
        if 0 < ns / self.size_ns < least / 2:
            return f"<{least:.{self.decimals}f}"
        return f"{ns / self.size_ns:.{self.decimals}f}"

    def brief(self, ns: float) -> str:
        """Return the bare figure without trailing zeros, for axes."""
        figure = f"{ns / self.size_ns:.{self.decimals}f}"
        return figure.rstrip("0").rstrip(".") if "." in figure else figure


def nice_step(span: float, parts: int) -> float:
    """Return the smallest of 1, 2, 5 × 10^k that divides ``span`` into at most ``parts``."""
    if span <= 0 or parts < 1:
        return 1.0
    rough = span / parts
    power = 10.0 ** int(f"{rough:e}".partition("e")[2])
    return next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))


def _decimals(value: float) -> int:
    return 2 if value < 10 else 1 if value < 100 else 0


def _three_digits(value: float) -> str:
    value = _significant(value)
    return f"{value:.{_decimals(value)}f}"


def _significant(value: float) -> float:
    return float(f"{value:.3g}")


def _time_unit(ns: float) -> tuple[int, str]:
    """Return the unit's length in ns and its name, for less than 1,000 units; the last has no limit."""
    fitting = (each for each in _TIME_UNITS if _significant(ns / each[0]) < 1000)
    return next(fitting, _TIME_UNITS[-1])
