"""Keep: how much of a recording stays on the disk. Imported by the agent: imports no mcap."""

import re
from dataclasses import dataclass

DEFAULT_KEEP = "2GB"
_AMOUNT = re.compile(r"([0-9]{1,6})(s|m|h|MB|GB)")
_NS = {"s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_BYTES = {"MB": 1_000_000, "GB": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class Keep:
    """The kept part of a recording, in two files: all of the time, or half the bytes, in each."""

    ns: int | None = None
    bytes: int | None = None

    @classmethod
    def parse(cls, words: str) -> "Keep":
        """Read ``2h`` (s, m, h) or ``1GB`` (MB, GB). Raises ValueError with one line."""
        found = _AMOUNT.fullmatch(words)
        if found is None or int(found[1]) == 0:
            raise ValueError(f"keep must be a length (30m, 2h) or a size (500MB, 1GB), not {words!r}")
        number, unit = int(found[1]), found[2]
        return cls(ns=number * _NS[unit]) if unit in _NS else cls(bytes=number * _BYTES[unit])

    def is_full(self, lasted_ns: int, size_bytes: int) -> bool:
        too_long = self.ns is not None and lasted_ns >= self.ns
        return too_long or (self.bytes is not None and 2 * size_bytes >= self.bytes)
