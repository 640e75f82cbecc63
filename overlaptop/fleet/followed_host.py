"""One host of several: how it is reached, and the session that follows the job there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.fleet.merging import NodeSnapshot
from overlaptop.fleet.snapshot import LinkState, NodeView
from overlaptop.wire.endpoints import EndpointError, JobRecord

if TYPE_CHECKING:
    from overlaptop.wire.hub_connection import HubConnection


class Host(Protocol):
    """A host as it is reached from here. Nothing in it blocks; only what is named here is raised."""

    @property
    def name(self) -> str:
        """As the user has named it; no two are called the same."""

    @property
    def up(self) -> bool:
        """It is connected, and the relay has answered."""

    @property
    def connecting(self) -> bool:
        """It has not been up yet, and is being tried."""

    @property
    def known(self) -> bool:
        """It has sent its list of jobs."""

    @property
    def readonly(self) -> bool:
        """Its relay lets nothing be changed there."""

    @property
    def since_s(self) -> float:
        """By the monotonic clock: since when the connection is in this state."""

    @property
    def note(self) -> str:
        """Why it is not connected, or why the list of its jobs may be wrong, in one line; mostly empty."""

    @property
    def detail(self) -> str:
        """The output of the command that makes the connection; may be several lines."""

    @property
    def offset_ns(self) -> int | None:
        """The host's clock less ours, by which times have been shifted; None: not known."""

    @property
    def residual_ns(self) -> int | None:
        """What that may be wrong by."""

    @property
    def bytes_per_s(self) -> float | None:
        """What came lately; None: not known."""

    def poll(self) -> None:
        """Read what has arrived, and reconnect. Called at each tick."""

    def list_jobs(self) -> Sequence[JobRecord]:
        """As the host sent them last, newest first. Raises EndpointError where it cannot list them."""

    def open_link(self, record: JobRecord) -> HubConnection:
        """To this job's hub there; outlives the connection. Raises EndpointError, OSError."""

    def is_gone(self, record: JobRecord) -> bool:
        """Whether the host reports that none of this job's processes is left."""

    def close(self) -> None:
        """Close the connection."""


class FollowedHost:
    """One host, and the session that follows the job there."""

    def __init__(
        self,
        host: Host,
        matches: Callable[[JobRecord], bool],
        *,
        readonly: bool,
        clock_ns: Callable[[], int],
        monotonic_s: Callable[[], float],
    ) -> None:
        self.host = host
        self.session = JobSession(
            JobSelector(matches=matches),
            readonly=readonly,
            list_jobs=host.list_jobs,
            open_link=host.open_link,
            is_gone=host.is_gone,
            clock_ns=clock_ns,
            monotonic_s=monotonic_s,
            node=host.name,
        )
        self.records: tuple[JobRecord, ...] = ()
        """The jobs there, as of the last look."""
        self.view = NodeView(host.name, LinkState.WAITING, clock_ns(), "")
        """As of the last tick."""
        self._monotonic_s = monotonic_s
        self._watched: frozenset[int] = frozenset()

    def look(self) -> None:
        """Ask again which jobs there are."""
        try:
            self.records = tuple(self.host.list_jobs())
        except (EndpointError, OSError):
            self.records = ()  # the session's own look keeps the reason

    def has(self, key: str | None) -> bool:
        """Whether the host lists this job."""
        return any(record.job == key for record in self.records)

    def tick(self, key: str | None) -> NodeSnapshot:
        """What is known here of the job with this key."""
        snapshot, host = self.session.tick(), self.host
        link, since_ns, note = snapshot.link, snapshot.link_since_ns, snapshot.link_note
        if not host.up and link is not LinkState.ENDED:
            link = LinkState.WAITING if host.connecting else LinkState.LOST
            since_ns = snapshot.at_ns - round((self._monotonic_s() - host.since_s) * 1e9)
            note = host.note
        elif self.session.job_key is None and host.known:
            note = host.note or ("the job is not there" if key else _jobs_there(len(self.records)))
        node = NodeView(
            host.name, link, since_ns, note,
            offset_ns=host.offset_ns, residual_ns=host.residual_ns,
            bytes_per_s=host.bytes_per_s, detail=host.detail, readonly=host.readonly,
        )  # fmt: skip
        return NodeSnapshot(node, snapshot)

    def watch(self, ranks: frozenset[int]) -> None:
        """Ask for the timelines of these ranks, which are here."""
        if ranks != self._watched:
            self._watched = ranks
            self.session.watch(ranks)


def _jobs_there(count: int) -> str:
    return f"{count or 'no'} job{'s' * (count != 1)} there"
