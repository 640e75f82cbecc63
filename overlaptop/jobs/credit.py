"""Computes how many bytes of a hub may be in flight to a reader: those carried in under a second.

A pipe accepts data long before the connection behind it delivers them: ssh and TCP buffer several
megabytes, which would make a slow connection lag for minutes. Pure.
"""

from collections.abc import Callable
from typing import NamedTuple

LOCAL_WINDOW_BYTES = 4 << 20
DEFAULT_BYTES_PER_S = 512 << 10  # Limit of a connection to another host, unless the user sets another
_MIN_WINDOW_BYTES = 8 << 10
_FIRST_WINDOW_BYTES = 16 << 10  # For a connection whose speed is not known yet
_WINDOW_S = 0.75
_SAMPLE_S = 0.5
_GRANTS_OF_WINDOW = 4
"""A grant is sent for each quarter of a window that has arrived. Each Join carries one."""


class Grant(NamedTuple):
    """As in Join."""

    received_bytes: int
    window_bytes: int


class Credit:
    """Counts received bytes and computes grants."""

    def __init__(self, monotonic_s: Callable[[], float], limit_bytes_per_s: int | None = None) -> None:
        """``limit_bytes_per_s``: None on this machine, where nothing is measured."""
        self._monotonic_s = monotonic_s
        self._limit_bytes_per_s = limit_bytes_per_s
        self._now_s = self._sampled_s = monotonic_s()
        self._sample_bytes = 0
        self._rates_bytes_per_s = (0.0, 0.0)
        self._received_bytes = 0
        self._paced_bytes = 0.0  # Those bytes, paced at the limit
        self._granted_bytes = -1
        self._window_bytes = LOCAL_WINDOW_BYTES if limit_bytes_per_s is None else _FIRST_WINDOW_BYTES

    def restart(self) -> None:
        self._received_bytes = 0
        self._paced_bytes = 0.0
        self._granted_bytes = -1

    def receive(self, size_bytes: int) -> None:
        self._received_bytes += size_bytes
        self._sample_bytes += size_bytes
        if self._limit_bytes_per_s is not None:
            self._measure(self._limit_bytes_per_s)

    def due(self) -> Grant | None:
        """Return the grant to send before the next Join. None if there is no need."""
        now_s = self._monotonic_s()
        passed_s, self._now_s = now_s - self._now_s, now_s
        self._paced_bytes = (
            self._received_bytes
            if self._limit_bytes_per_s is None
            else min(self._received_bytes, self._paced_bytes + passed_s * self._limit_bytes_per_s)
        )
        new_bytes = int(self._paced_bytes) - self._granted_bytes
        return self.grant() if new_bytes * _GRANTS_OF_WINDOW >= self._window_bytes else None

    def grant(self) -> Grant:
        """Return the current grant, whether or not the hub has it."""
        return Grant(int(self._paced_bytes), self._window_bytes)

    def sent(self, grant: Grant) -> None:
        self._granted_bytes = grant.received_bytes

    def _measure(self, limit_bytes_per_s: int) -> None:
        now_s = self._monotonic_s()
        if now_s - self._sampled_s < _SAMPLE_S:
            return
        rate = self._sample_bytes / (now_s - self._sampled_s)
        self._sampled_s, self._sample_bytes = now_s, 0
        self._rates_bytes_per_s = (self._rates_bytes_per_s[1], rate)
        # The mean of two samples: after a pause, delayed data arrives in a burst.
        carried = min(sum(self._rates_bytes_per_s) / 2, limit_bytes_per_s)
        self._window_bytes = _MIN_WINDOW_BYTES + int(_WINDOW_S * carried)
