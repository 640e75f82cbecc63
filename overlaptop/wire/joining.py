"""Messages between a dashboard and a hub: joining it, here, through a relay, or through the root.

**--gather.** The hub of the first node (the root) carries readers to the other nodes' hubs. A reader and
the root add two frames to a batch for another node: an empty one, and the node's id. Between two hubs,
the first frame of each batch names the reader (READER_MAY_COMMAND or READER_MAY_NOT, then its id at the
root). A batch of one empty frame after it tells the node to forget this reader. Without a reader (an
empty first frame) a hub sends its own HubHello, which the root answers with a Pong, and in the end an
empty frame.

A batch to a reader over the root is one frame with all messages, each as `codec.frame` makes it: ZeroMQ
and CURVE take as long for a frame of 80 bytes as for one of kilobytes.

**Relay.** The standard input and output of ``overlaptop relay --stdio`` connect this machine to another
host. The relay writes MAGIC, then frames (codec.frame) with messages. RelayBytes carry the bytes of a
connection to a hub's socket, as ZeroMQ sends them. Neither end interprets them.
"""

from typing import Annotated

from msgspec import Meta

from overlaptop.wire.bounds import MAX_RANKS, Count, Int64, Rank, Ranks, Text, UnixNs
from overlaptop.wire.protocol import JOB_KEY
from overlaptop.wire.schema import Message, Part

MAX_HUBS = 1024
MAX_NODE_ID_BYTES = 32
READER_MAY_COMMAND, READER_MAY_NOT = b"\x00", b"\x01"

MAGIC = b"\n\x00OVERLAPTOP RELAY 2\n"
"""First output of the relay. Everything that a login shell prints before it is skipped."""

MAX_JOBS = 16  # This many jobs, with the pids of all their ranks, fit into one frame
MAX_CHUNK_BYTES = 1 << 16

JobKey = Annotated[str, Meta(pattern=JOB_KEY)]
JobKeyOrNone = Annotated[str, Meta(pattern=rf"{JOB_KEY}|\A\Z")]


class Join(Message, frozen=True, tag=7):
    """Dashboard -> hub, once a second and as bytes arrive: the ranks whose timelines this dashboard shows,
    and how many more bytes the hub may send.

    The hub forgets a dashboard that has been silent for READER_TIMEOUT_S.
    """

    protocol: Count
    detail_ranks: Ranks
    bursts: Count = 0  # Bursts that this dashboard has requested from those ranks so far
    received_bytes: Count = 0  # Bytes of frames since the last Welcome, including it
    window_bytes: Count = 0  # Bytes that may be in flight beyond them. The last frame may exceed this.


class Watch(Message, frozen=True, tag=6):
    """Hub -> rank: the detail requested. Sent on connecting and on each change."""

    detail: bool  # Somebody looks at this rank's timeline, so StepDetail is needed
    bursts: Count = 0  # Bursts requested by dashboards so far. Measure one whenever it grows.


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


class Gather(Message, frozen=True, tag=52):
    """Rank -> its hub: bind a TCP socket for the other nodes' hubs, or connect to that of the root."""

    rank: Rank
    is_root: bool  # Bind, because the job's first rank is here
    host: Text  # Host name or address to bind, or of the root
    port: Annotated[int, Meta(ge=0, le=65535)]  # 0: any free port


class Gathered(Message, frozen=True, tag=53):
    """Hub -> its ranks: the answer to Gather, with the numeric address of the root's socket."""

    host: Text
    port: Annotated[int, Meta(ge=0, le=65535)]  # 0: refused
    refusal: Text = ""


class HubClock(Part, frozen=True):
    """A hub's clock against the root's."""

    offset_ns: Int64  # The hub's Unix time minus the root's
    residual_ns: Count  # Possible error of `offset_ns`, either way


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


class RemoteJob(Part, frozen=True):
    """The part of a JobRecord that matters on other hosts."""

    protocol: Count
    job: JobKey
    script: Text
    cwd: Text
    host: Text
    world_size: Rank
    starter_pid: Count
    starter_start_ticks: Count | None
    """Start time of the rank that started the hub. None if it ended before the hub could check."""
    hub_pid: Count
    hub_start_ticks: Count
    started_ns: UnixNs  # Unix time when a hub first saw this job
    dashboard_socket: Text
    rank_pids: Annotated[tuple[Int64, ...], Meta(max_length=MAX_RANKS)]  # Of the connected ranks, by rank
    ended: bool = False  # Ranks were connected, and none is connected any more
    is_root: bool = False  # Other nodes' hubs can be reached through this one (``--gather``)


class RelayJobs(Message, frozen=True, tag=48):
    """Relay -> client, first of all, on change and every two seconds: the relay's identity and its jobs."""

    protocol: Count
    version: Text
    host: Text
    readonly: bool  # Hubs accept no commands through this relay
    jobs: Annotated[tuple[RemoteJob, ...], Meta(max_length=MAX_JOBS)]  # This user's, newest first
    note: Text  # Why the list may be wrong, as text for the screen. Empty if it is right.


class RelayOpen(Message, frozen=True, tag=49):
    """Client -> relay, once a second and on change: the only connection that should be open."""

    connection: Count
    job: JobKeyOrNone  # Job whose hub to connect to. Empty to close the connection.


class RelayBytes(Message, frozen=True, tag=50):
    """Either way: the next bytes of this connection."""

    connection: Count
    data: Annotated[bytes, Meta(max_length=MAX_CHUNK_BYTES)]


class RelayClosed(Message, frozen=True, tag=51):
    """Relay -> client: the hub has closed this connection, or there is no hub to connect to."""

    connection: Count
    alive: bool  # The hub's process runs
    gone: bool  # No process of the job is left that could start a new hub
