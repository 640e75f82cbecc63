"""Sizes, times and bandwidths as people write them: ``1.6GB``, ``20us``, ``400Gbit/s``. For argparse:
invalid text raises ArgumentTypeError.

``k M G T P`` are decimal, ``Ki Mi Gi Ti Pi`` binary. ``B`` is bytes, ``b`` and ``bit`` are bits.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

_NUMBER = r"(?P<number>[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,2})?|\.[0-9]+)"
_AMOUNT = re.compile(
    _NUMBER + r"\s*(?P<prefix>[kKMGTP]?)(?P<binary>i?)(?P<unit>B|bit|b)(?P<rate>/s|ps)?", re.ASCII
)
_TIME = re.compile(_NUMBER + r"\s*(?P<unit>ns|us|µs|μs|ms|s|)", re.ASCII)  # Unicode has two letters mu
_UNIT_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_POWERS = "_KMGTP"
_LARGEST = 2**53
"""104 days in ns, 8 PiB in bytes: the models' largest sums."""


def size_bytes(text: str) -> int:
    """Parse whole bytes, from 1 to 8 PiB: ``1.6GB``, ``25MiB``."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or found["unit"] != "B" or found["rate"]:
        raise ArgumentTypeError(f"must be a size with its unit, such as 1.6GB or 25MiB, not {text!r}")
    return round(_bytes(found))


def bytes_per_s(text: str) -> float:
    """Parse bytes per second, from 1 to 8 PiB: ``200GB/s``, ``400Gbit/s``, ``100Mbps``."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or not found["rate"]:
        form = "a bandwidth with its unit, such as 200GB/s or 400Gbit/s"
        raise ArgumentTypeError(f"must be {form}, not {text!r}")
    return _bytes(found)


def duration_ns(text: str) -> int:
    """Parse a time with a unit into whole ns, below 104 days: ``20us``, ``1.5ms``."""
    return _whole_ns(text, unit="", form="with its unit, such as 20us or 0.02ms")


def milliseconds_ns(text: str) -> int:
    """Parse a time in ms, or with its own unit, into whole ns, below 104 days: ``40``, ``0.04s``."""
    return _whole_ns(text, unit="ms", form="in ms, such as 40 or 1.5")


def _bytes(found: re.Match[str]) -> float:
    power = _POWERS.index(found["prefix"].upper() or "_")
    if found["binary"] and not power:
        raise ArgumentTypeError(f"{found[0]!r} has no unit that is known")
    base = 1024.0 if found["binary"] else 1000.0
    count = float(found["number"]) * base**power / (1 if found["unit"] == "B" else 8)
    if not 1 <= count < _LARGEST:
        raise ArgumentTypeError(f"must be from 1 B to 8 PiB, not {found[0]!r}")
    return count


def _whole_ns(text: str, unit: str, form: str) -> int:
    """``unit``: the default unit; empty: the text must have one."""
    found = _TIME.fullmatch(text.strip())
    if found is None or not (found["unit"] or unit):
        raise ArgumentTypeError(f"must be a time {form}, not {text!r}")
    time_ns = float(found["number"]) * _UNIT_NS[found["unit"] or unit]
    if not time_ns < _LARGEST:
        raise ArgumentTypeError(f"must be less than 104 days, not {text!r}")
    return round(time_ns)
