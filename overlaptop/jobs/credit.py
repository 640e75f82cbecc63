"""How many bytes a reader lets its hub have on the way: what its connection carries in under a second.

A pipe that takes data says little of the connection behind it: ssh and TCP hold some megabytes, by which a
slow one would lag for minutes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from overlaptop.wire.messages import Grant

LOCAL_WINDOW_BYTES = 4 << 20
"""On one machine nothing has to be found out."""
DEFAULT_BYTES_PER_S = 512 << 10
"""What a connection to another host may carry, unless its user says otherwise."""
_MIN_WINDOW_BYTES = 8 << 10
_FIRST_WINDOW_BYTES = 16 << 10
"""Of a connection of which nothing is known."""
_WINDOW_S = 0.75
_SAMPLE_S = 0.5
_GRANTS_OF_WINDOW = 4
"""A grant follows each fourth of a window that has arrived, and"""
_GRANT_S = 0.25
"""what has arrived in so long."""


class Credit:
    """Counts what arrives; tells what to grant."""

    def __init__(self, monotonic_s: Callable[[], float], limit_bytes_per_s: int | None = None) -> None:
        """``limit_bytes_per_s``: what the connection may carry; None: it is on this machine."""
        self._monotonic_s = monotonic_s
        self._limit_bytes_per_s = limit_bytes_per_s
        self._now_s = self._sampled_s = monotonic_s()
        self._sample_bytes = 0
        self._rates_bytes_per_s = (0.0, 0.0)
        """In the two samples before."""
        self._received_bytes = 0
        self._paced_bytes = 0.0
        """As much of that as would have come at the limit."""
        self._granted_bytes = -1
        self._granted_s = self._now_s
        self._window_bytes = LOCAL_WINDOW_BYTES if limit_bytes_per_s is None else _FIRST_WINDOW_BYTES

    def restart(self) -> None:
        """The hub counts from here on."""
        self._received_bytes = 0
        self._paced_bytes = 0.0
        self._granted_bytes = -1

    def receive(self, size_bytes: int) -> None:
        """So much has arrived."""
        self._received_bytes += size_bytes
        self._sample_bytes += size_bytes
        if self._limit_bytes_per_s is not None:
            self._measure(self._limit_bytes_per_s)

    def due(self) -> Grant | None:
        """What the hub should know now; None: nothing new."""
        now_s = self._monotonic_s()
        passed_s, self._now_s = now_s - self._now_s, now_s
        self._paced_bytes = (
            self._received_bytes
            if self._limit_bytes_per_s is None
            else min(self._received_bytes, self._paced_bytes + passed_s * self._limit_bytes_per_s)
        )
        new_bytes = int(self._paced_bytes) - self._granted_bytes
        late = now_s - self._granted_s >= _GRANT_S
        if new_bytes <= 0 or not (late or new_bytes * _GRANTS_OF_WINDOW >= self._window_bytes):
            return None
        return self.grant()

    def grant(self) -> Grant:
        """What the hub is granted now, whether or not it knows."""
        self._granted_bytes, self._granted_s = int(self._paced_bytes), self._now_s
        return Grant(self._granted_bytes, self._window_bytes)

    def _measure(self, limit_bytes_per_s: int) -> None:
        now_s = self._monotonic_s()
        if now_s - self._sampled_s < _SAMPLE_S:
            return
        rate = self._sample_bytes / (now_s - self._sampled_s)
        self._sampled_s, self._sample_bytes = now_s, 0
        self._rates_bytes_per_s = (self._rates_bytes_per_s[1], rate)
        # The mean of two samples: after a pause, what was held up arrives in a burst.
        carried = min(sum(self._rates_bytes_per_s) / 2, limit_bytes_per_s)
        self._window_bytes = _MIN_WINDOW_BYTES + int(_WINDOW_S * carried)
