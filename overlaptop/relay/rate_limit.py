"""How much a relay may send: what the user allows, and what the connection carries."""

from __future__ import annotations

from collections.abc import Callable

DEFAULT_BYTES_PER_S = 512 << 10
_FIRST_GUESS_BYTES_PER_S = 64 << 10
"""Of a connection of which nothing is known."""
_BURST_S = 0.25
_MIN_BURST_BYTES = 4 << 10
_IN_FLIGHT_S = 1.5
"""So much of what the connection carries may be in flight, in seconds, and a little more:"""
_IN_FLIGHT_BYTES = 8 << 10
_BEHIND_S = 1.0
"""A connection that has so much in flight, twice in a row, carries no more than has just arrived."""
_MIN_SAMPLE_S = 0.2


class RateLimit:
    """Counts what is sent and what has arrived.

    A pipe that takes data says little of the connection behind it: ssh and TCP hold some megabytes, by
    which a narrow one would lag for minutes. So the client acknowledges what has arrived, and no more is
    kept in flight than the connection carries in about a second and a half.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._limit_bytes_per_s = DEFAULT_BYTES_PER_S
        self._found_bytes_per_s: float = _FIRST_GUESS_BYTES_PER_S
        self._tokens_bytes = self._burst_bytes
        self._filled_s = monotonic_s()
        self._sent_bytes = 0
        self._acknowledged_bytes = 0
        self._was_behind = False
        self._acknowledged_s: float | None = None
        """When that came; None: it has not yet."""

    def limit(self, bytes_per_s: int) -> None:
        """What the user allows; 0: what is allowed by default."""
        self._limit_bytes_per_s = bytes_per_s or DEFAULT_BYTES_PER_S
        self._tokens_bytes = min(self._tokens_bytes, self._burst_bytes)

    @property
    def bytes_per_s(self) -> float:
        """What can be sent in the long run, as far as it is known."""
        if self._acknowledged_s is None:
            return self._limit_bytes_per_s
        return min(self._limit_bytes_per_s, self._found_bytes_per_s)

    def room_bytes(self) -> int:
        """How much may be sent now; 0 or less: nothing."""
        now_s = self._monotonic_s()
        grown = self._tokens_bytes + (now_s - self._filled_s) * self._limit_bytes_per_s
        self._tokens_bytes, self._filled_s = min(grown, self._burst_bytes), now_s
        in_flight_bytes = self._sent_bytes - self._acknowledged_bytes
        return int(min(self._tokens_bytes, self._max_in_flight_bytes - in_flight_bytes))

    def sent(self, size_bytes: int) -> None:
        """So much was sent. More than there was room for is made up for later."""
        self._tokens_bytes -= size_bytes
        self._sent_bytes += size_bytes

    def acknowledge(self, all_bytes: int) -> None:
        """So much has arrived since the connection began."""
        if not self._acknowledged_bytes < all_bytes <= self._sent_bytes:
            return
        now_s = self._monotonic_s()
        if self._acknowledged_s is not None and now_s - self._acknowledged_s < _MIN_SAMPLE_S:
            return
        if self._acknowledged_s is not None:
            found = (all_bytes - self._acknowledged_bytes) / (now_s - self._acknowledged_s)
            # A connection that was not filled has not shown what it can carry.
            in_flight_bytes = self._sent_bytes - all_bytes
            behind = in_flight_bytes > _IN_FLIGHT_BYTES + found * _BEHIND_S
            filled = in_flight_bytes > self._max_in_flight_bytes / 2 or (behind and self._was_behind)
            self._found_bytes_per_s = found if filled else max(found, self._found_bytes_per_s)
            self._was_behind = behind
        self._acknowledged_bytes, self._acknowledged_s = all_bytes, now_s

    @property
    def _burst_bytes(self) -> float:
        return max(self._limit_bytes_per_s * _BURST_S, _MIN_BURST_BYTES)

    @property
    def _max_in_flight_bytes(self) -> float:
        return _IN_FLIGHT_BYTES + _IN_FLIGHT_S * self._found_bytes_per_s
