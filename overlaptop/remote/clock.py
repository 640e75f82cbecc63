"""How far another host's clock is from this one's, estimated as NTP does. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from overlaptop.wire.bounds import MAX_INT64

KEPT = 64
"""Round trips that are remembered; there is one a second."""
DRIFT = 250e-6
"""By how much two clocks may drift apart, ns a ns: two crystals that are off by 100 in a million each, and
some more."""
_BETTER = 4
"""How many times smaller its error must be for another trip to take the place of the one that is held."""


class _RoundTrip(NamedTuple):
    offset_ns: int
    half_ns: int
    """Half of the time on the way: the offset may be wrong by so much, either way."""
    back_ns: int
    """Unix time here at which the answer was here."""


class ClockOffset:
    """The offset between two Unix clocks, from round trips between them.

    A trip that waited somewhere tells less than one that did not, and an older one less than a new one,
    since clocks drift. An offset is held until a trip contradicts it, or one is known that is better by
    far: what was shifted by it would otherwise move a little each second. By how much it may be wrong, all
    trips tell, also where it has drifted since.
    """

    def __init__(self) -> None:
        self._trips: deque[_RoundTrip] = deque(maxlen=KEPT)
        self._held: _RoundTrip | None = None
        self._now_ns = 0
        """Unix time here, of the newest trip."""

    @property
    def offset_ns(self) -> int | None:
        """The other clock less this one; None before the first round trip."""
        return None if self._held is None else self._held.offset_ns

    @property
    def residual_ns(self) -> int | None:
        """By how much `offset_ns` may be wrong, either way, if clocks drift no faster than DRIFT; None as
        there.
        """
        return None if self._held is None else self._error_ns(self._held.offset_ns)

    def add(self, sent_ns: int, received_ns: int, answered_ns: int, back_ns: int) -> None:
        """One round trip: sent here, received and answered there, back here. Unix ns of each one's clock.

        A trip that cannot have been so (a clock was set meanwhile) is passed over. One that contradicts
        what is held means that a clock was set since: what was known before is forgotten.
        """
        there_ns, all_ns = answered_ns - received_ns, back_ns - sent_ns
        if there_ns < 0 or all_ns < there_ns:
            return
        offset_ns = (received_ns - sent_ns + answered_ns - back_ns) // 2
        trip = _RoundTrip(offset_ns, (all_ns - there_ns + 1) // 2, back_ns)
        held = self._held
        self._now_ns = back_ns
        # One more ns: each offset was rounded.
        if held is not None and (
            back_ns < held.back_ns
            or abs(offset_ns - held.offset_ns) > self._own_error_ns(trip) + self._own_error_ns(held) + 1
        ):
            self._trips.clear()
            held = None
        self._trips.append(trip)
        best = min(self._trips, key=self._own_error_ns)
        if held is None or self._own_error_ns(best) * _BETTER < self._error_ns(held.offset_ns):
            held = best
        self._held = held

    def to_local_ns(self, remote_ns: int) -> int:
        """A Unix time of the other clock, in this one's, within bounds; as it is where nothing is known."""
        return min(max(remote_ns - (self.offset_ns or 0), 0), MAX_INT64)

    def _error_ns(self, offset_ns: int) -> int:
        """By how much this may be wrong now, as any of the trips tells."""
        return min(abs(offset_ns - trip.offset_ns) + self._own_error_ns(trip) for trip in self._trips)

    def _own_error_ns(self, trip: _RoundTrip) -> int:
        """By how much a trip's own offset may be wrong now."""
        return trip.half_ns + int(DRIFT * (self._now_ns - trip.back_ns))
