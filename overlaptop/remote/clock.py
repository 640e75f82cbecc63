"""The offset of another host's clock from this one's, estimated as in NTP. Pure."""

from collections import deque
from typing import NamedTuple

from overlaptop.wire.bounds import MAX_UNIX_NS
from overlaptop.wire.joining import Pong

KEPT = 64
"""Round trips kept. There is one a second."""
DRIFT = 250e-6
"""Maximum drift between two clocks, in ns per ns:
two crystals with an error of 100 ppm each, plus a margin."""
_BETTER = 4
"""How many times smaller another trip's error must be to replace the held one."""


class _RoundTrip(NamedTuple):
    offset_ns: int
    half_ns: int
    """Half of the travel time, and so the possible error of the offset, either way."""
    back_ns: int
    """Unix time here when the answer arrived."""


class ClockOffset:
    """The offset between two Unix clocks, from round trips between them.

    A delayed trip is less exact than a fast one, and an old trip less than a new one, since clocks drift.
    An offset is held until a trip contradicts it, or a much better one arrives: otherwise shifted times
    would move a little each second. All trips contribute to its possible error, which includes drift.
    """

    def __init__(self) -> None:
        self._trips: deque[_RoundTrip] = deque(maxlen=KEPT)
        self._held: _RoundTrip | None = None
        self._now_ns = 0

    @property
    def offset_ns(self) -> int | None:
        """The other clock minus this one. None before the first round trip."""
        return None if self._held is None else self._held.offset_ns

    @property
    def residual_ns(self) -> int | None:
        """Possible error of `offset_ns`, either way, if clocks drift no faster than DRIFT. None before the
        first round trip.
        """
        return None if self._held is None else self._error_ns(self._held.offset_ns)

    def add(self, pong: Pong, back_ns: int) -> None:
        """Add a round trip that was back at this Unix time here.

        An impossible trip (a clock was set meanwhile) is skipped. A trip that contradicts the held offset
        means that a clock was set since, so all earlier trips are dropped.
        """
        there_ns, all_ns = pong.answered_ns - pong.received_ns, back_ns - pong.sent_ns
        if there_ns < 0 or all_ns < there_ns:
            return
        offset_ns = (pong.received_ns - pong.sent_ns + pong.answered_ns - back_ns) // 2
        trip = _RoundTrip(offset_ns, (all_ns - there_ns + 1) // 2, back_ns)
        held = self._held
        self._now_ns = back_ns
        # One more ns, because each offset was rounded.
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
        """Convert a Unix time of the other clock to this one, within bounds.
        Unchanged before the first trip.
        """
        return min(max(remote_ns - (self.offset_ns or 0), 0), MAX_UNIX_NS)

    def _error_ns(self, offset_ns: int) -> int:
        return min(abs(offset_ns - trip.offset_ns) + self._own_error_ns(trip) for trip in self._trips)

    def _own_error_ns(self, trip: _RoundTrip) -> int:
        """Return the possible error of a trip's own offset now."""
        return trip.half_ns + int(DRIFT * (self._now_ns - trip.back_ns))
