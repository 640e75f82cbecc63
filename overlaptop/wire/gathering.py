"""Messages of ``--gather``: the hub of the first node (the root) carries readers to the other nodes' hubs.

A reader and the root add two frames to a batch for another node: an empty one, and the node's id. Between
two hubs, the first frame of each batch names the reader (READER_MAY_COMMAND or READER_MAY_NOT, then its id
at the root). A batch of one empty frame after it tells the node to forget this reader. Without a reader
(an empty first frame) a hub sends its own HubHello, which the root answers with a Pong, and in the end an
empty frame.

A batch to a reader over the root is one frame with all messages, each as `codec.frame` makes it: ZeroMQ and
CURVE take as long for a frame of 80 bytes as for one of kilobytes.
"""

from typing import Annotated

from msgspec import Meta

from overlaptop.wire.bounds import Count, Int64, Rank, Text, UnixNs
from overlaptop.wire.schema import Message, Part

MAX_HUBS = 1024
MAX_NODE_ID_BYTES = 32
READER_MAY_COMMAND, READER_MAY_NOT = b"\x00", b"\x01"


class Gather(Message, frozen=True, tag=52):
    """Rank -> its hub: bind a TCP socket for the other nodes' hubs, or connect to that of the root."""

    rank: Rank
    is_root: bool
    """Bind, because the job's first rank is here."""
    host: Text
    """Host name or address to bind, or of the root."""
    port: Annotated[int, Meta(ge=0, le=65535)]
    """0: any free port."""


class Gathered(Message, frozen=True, tag=53):
    """Hub -> its ranks: the answer to Gather, with the numeric address of the root's socket."""

    host: Text
    port: Annotated[int, Meta(ge=0, le=65535)]
    """0: refused."""
    refusal: Text = ""


class HubClock(Part, frozen=True):
    """A hub's clock against the root's."""

    offset_ns: Int64
    """The hub's Unix time minus the root's."""
    residual_ns: Count
    """Possible error of `offset_ns`, either way."""


class HubHello(Message, frozen=True, tag=54):
    """Hub -> root, every two seconds. It is also a Ping: hubs measure their clocks on the network between
    them, which is faster than a reader's connection.
    """

    host: Text
    sent_ns: UnixNs
    clock: HubClock | None = None
    """None before the first Pongs. The root lists the hub to readers later: they shift its history by this.
    """


class GatheredHub(Part, frozen=True):
    """A hub that is connected to the root."""

    node: Annotated[bytes, Meta(max_length=MAX_NODE_ID_BYTES)]
    """The same for each hub of this job on this node."""
    host: Text
    clock: HubClock


class GatheredHubs(Message, frozen=True, tag=55):
    """Root -> reader, first of all and on each change: the hubs that can be reached through the root."""

    hubs: Annotated[tuple[GatheredHub, ...], Meta(max_length=MAX_HUBS)]
