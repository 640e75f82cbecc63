"""How much the far end may write: what the user allows, and what the line carries without a long queue."""

from __future__ import annotations

from collections.abc import Callable

DEFAULT_BYTES_PER_S = 512 << 10
_FIRST_GUESS_BYTES_PER_S = 64 << 10
"""Of a line of which nothing is known."""
_BURST_S = 0.25
_MIN_BURST_BYTES = 4 << 10
_UNDER_WAY_S = 1.5
"""So much of what the line carries may be between the two ends, in seconds, and a little more:"""
_UNDER_WAY_BYTES = 8 << 10
_BEHIND_S = 1.0
"""A line that has so much under way, twice in a row, carries no more than has just arrived."""
_MIN_SAMPLE_S = 0.2


class Pace:
    """Counts what is written and what has arrived.

    A pipe that takes data says little of the line behind it: ssh and TCP hold some megabytes, by which a
    narrow line would lag for minutes. So the near end says how much has arrived, and no more is kept under
    way than the line carries in about a second and a half.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._limit_bytes_per_s = DEFAULT_BYTES_PER_S
        self._line_bytes_per_s: float = _FIRST_GUESS_BYTES_PER_S
        self._tokens_bytes = self._burst_bytes
        self._filled_s = monotonic_s()
        self._written_bytes = 0
        self._arrived_bytes = 0
        self._was_behind = False
        self._arrived_s: float | None = None
        """When that was heard; None: it has not been yet."""

    def limit(self, bytes_per_s: int) -> None:
        """What the user allows; 0: what is allowed by default."""
        self._limit_bytes_per_s = bytes_per_s or DEFAULT_BYTES_PER_S
        self._tokens_bytes = min(self._tokens_bytes, self._burst_bytes)

    @property
    def bytes_per_s(self) -> float:
        """What can be sent in the long run, as far as it is known."""
        if self._arrived_s is None:
            return self._limit_bytes_per_s
        return min(self._limit_bytes_per_s, self._line_bytes_per_s)

    def room_bytes(self) -> int:
        """How much may be written now; 0 or less: nothing."""
        now_s = self._monotonic_s()
        grown = self._tokens_bytes + (now_s - self._filled_s) * self._limit_bytes_per_s
        self._tokens_bytes, self._filled_s = min(grown, self._burst_bytes), now_s
        return int(min(self._tokens_bytes, self._may_be_under_way_bytes - self._under_way_bytes))

    def wrote(self, size_bytes: int) -> None:
        """So much was written. More than there was room for is made up for later."""
        self._tokens_bytes -= size_bytes
        self._written_bytes += size_bytes

    def arrived(self, all_bytes: int) -> None:
        """The near end says that this much has arrived since the line began."""
        if not self._arrived_bytes < all_bytes <= self._written_bytes:
            return
        now_s = self._monotonic_s()
        if self._arrived_s is not None and now_s - self._arrived_s < _MIN_SAMPLE_S:
            return
        if self._arrived_s is not None:
            found = (all_bytes - self._arrived_bytes) / (now_s - self._arrived_s)
            # A line that was not filled has not shown what it can carry.
            under_way_bytes = self._written_bytes - all_bytes
            behind = under_way_bytes > _UNDER_WAY_BYTES + found * _BEHIND_S
            filled = under_way_bytes > self._may_be_under_way_bytes / 2 or (behind and self._was_behind)
            self._line_bytes_per_s = found if filled else max(found, self._line_bytes_per_s)
            self._was_behind = behind
        self._arrived_bytes, self._arrived_s = all_bytes, now_s

    @property
    def _burst_bytes(self) -> float:
        return max(self._limit_bytes_per_s * _BURST_S, _MIN_BURST_BYTES)

    @property
    def _under_way_bytes(self) -> int:
        return self._written_bytes - self._arrived_bytes

    @property
    def _may_be_under_way_bytes(self) -> float:
        return _UNDER_WAY_BYTES + _UNDER_WAY_S * self._line_bytes_per_s
