"""The offset of another process's clock from this one's, estimated as in NTP. Pure."""

from collections import deque
from typing import NamedTuple

from overlaptop.wire.bounds import MAX_UNIX_NS
from overlaptop.wire.joining import HubClock, Pong

KEPT = 64  # Round trips kept. There is one a second.
DRIFT = 100e-6
"""Maximum drift between two clocks, in ns per ns: two crystals with an error of 50 ppm each. NTP assumes
15 ppm for a clock."""
_BETTER = 4  # The held offset is replaced once its possible error could be this many times smaller


class _RoundTrip(NamedTuple):
    offset_ns: int
    half_ns: int  # Half of the travel time, and so the possible error of the offset, either way
    back_ns: int  # Unix time here when the answer arrived


class ClockOffset:
    """The offset between two Unix clocks, from round trips between them.

    Each trip bounds the offset from below and from above: fast trips closer than delayed ones, and new ones
    closer than old ones, since clocks drift. The best bound on either side counts. An offset is held until
    the bounds exclude it, or are much closer to each other than to it: otherwise shifted times would move a
    little each second.
    """

    def __init__(self) -> None:
        self._trips: deque[_RoundTrip] = deque(maxlen=KEPT)
        self.offset_ns: int | None = None
        """The other clock minus this one. None before the first round trip."""
        self.residual_ns: int | None = None
        """Possible error of `offset_ns`, either way, if clocks drift no faster than DRIFT."""

    def add(self, pong: Pong, back_ns: int) -> None:
        """Add a round trip that was back at this Unix time here.

        An impossible trip (a clock was set meanwhile) is skipped. If a trip contradicts earlier ones, a
        clock was set since, so those are dropped.
        """
        there_ns, all_ns = pong.answered_ns - pong.received_ns, back_ns - pong.sent_ns
        if there_ns < 0 or all_ns < there_ns:
            return
        offset_ns = (pong.received_ns - pong.sent_ns + pong.answered_ns - back_ns) // 2
        trip = _RoundTrip(offset_ns, (all_ns - there_ns + 1) // 2, back_ns)
        if self._trips and back_ns < self._trips[-1].back_ns:
            self._trips.clear()
        self._trips.append(trip)
        low_ns, high_ns = self._bounds_ns(back_ns)
        if low_ns > high_ns + 1:  # one more ns, because each offset was rounded
            self._trips = deque([trip], KEPT)
            low_ns, high_ns = self._bounds_ns(back_ns)
        middle_ns, held_ns = (low_ns + high_ns) // 2, self.offset_ns
        if (
            held_ns is None
            or not low_ns <= held_ns <= high_ns
            or (high_ns - middle_ns) * _BETTER < max(held_ns - low_ns, high_ns - held_ns)
        ):
            held_ns = middle_ns
        self.offset_ns = held_ns
        self.residual_ns = max(held_ns - low_ns, high_ns - held_ns)

    def add_up(self, near: "ClockOffset", far: HubClock) -> None:
        """Take the offset of a third clock: ours to a root's, and the root's to a node's on its network."""
        if near.offset_ns is not None and near.residual_ns is not None:
            self.offset_ns = near.offset_ns + far.offset_ns
            self.residual_ns = near.residual_ns + far.residual_ns

    def to_local_ns(self, remote_ns: int) -> int:
        """Convert a Unix time of the other clock, within bounds. Unchanged before the first trip."""
        return min(max(remote_ns - (self.offset_ns or 0), 0), MAX_UNIX_NS)

    def _bounds_ns(self, now_ns: int) -> tuple[int, int]:
        """Return the least and the greatest possible offset now."""
        errors_ns = [trip.half_ns + int(DRIFT * (now_ns - trip.back_ns)) for trip in self._trips]
        pairs = list(zip(self._trips, errors_ns, strict=True))
        low_ns = max(trip.offset_ns - error_ns for trip, error_ns in pairs)
        return low_ns, min(trip.offset_ns + error_ns for trip, error_ns in pairs)
