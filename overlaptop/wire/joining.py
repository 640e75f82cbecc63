"""Messages with which a dashboard joins a hub, and the hub's to its ranks about that."""

from overlaptop.wire.bounds import Count, Ranks, Text, UnixNs
from overlaptop.wire.schema import Message


class Join(Message, frozen=True, tag=7):
    """Dashboard -> hub, once a second and as bytes arrive: the ranks whose timelines this dashboard shows,
    and how many more bytes the hub may send.

    The hub forgets a dashboard that has been silent for READER_TIMEOUT_S.
    """

    protocol: Count
    detail_ranks: Ranks
    bursts: Count = 0
    """Bursts that this dashboard has requested from those ranks so far."""
    received_bytes: Count = 0
    """Bytes of frames since the last Welcome, including it."""
    window_bytes: Count = 0
    """Bytes that may be in flight beyond them. The last frame may exceed this."""


class Watch(Message, frozen=True, tag=6):
    """Hub -> rank: the detail requested. Sent on connecting and on each change."""

    detail: bool
    """Somebody looks at this rank's timeline, so StepDetail is needed."""
    bursts: Count = 0
    """Bursts requested by dashboards so far. Measure one whenever it grows."""


class TurnedAway(Message, frozen=True, tag=19):
    """Hub -> dashboard, in answer to each Join, or to a rank: the hub refuses it."""

    reason: Text


class Ping(Message, frozen=True, tag=45):
    """Dashboard -> hub, before the first Join and once a second. Not to hubs behind a root (HubHello)."""

    sent_ns: UnixNs


class Pong(Message, frozen=True, tag=46):
    """Hub -> dashboard, at once: the Ping's time, and two Unix times on the hub's clock. The same from the
    root to another hub.
    """

    sent_ns: UnixNs
    received_ns: UnixNs
    answered_ns: UnixNs
