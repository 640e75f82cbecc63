"""ClusterSession: one job on several hosts as one Session. Each host has its own hub and connection.

The connections are independent. If one breaks, its ranks keep their last state and are marked; the others
are not affected. After a reconnect the hub sends its history again, and known messages are skipped.

**Commands.** Each hub sends a command to its own ranks. All ranks of a job agree through the job's own
store: all act or none does. So a command goes to every hub with the same id, and to none if some rank
cannot be reached. If a connection breaks just then, its ranks do not answer and nothing changes. Each hub
publishes the outcome for its own ranks, and hub/executions.py merges them.
"""

import select
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from overlaptop.fleet.job_session import LOOK_EVERY_S, NOT_CONNECTED, READONLY, JobSelector, JobSession, Tap
from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.nodes import out_of_reach
from overlaptop.fleet.snapshot import HubState, NodeView, Snapshot
from overlaptop.jobs.clock import ClockOffset
from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.record import JobRecord
from overlaptop.remote.host import GatheredHost, RemoteHost
from overlaptop.remote.pool import ConnectionPool
from overlaptop.remote.targets import LOCAL, Target
from overlaptop.text import printable
from overlaptop.wire.commands import CHANGES, Command
from overlaptop.wire.joining import MAX_HUBS
from overlaptop.wire.messages import Found

JOBS_S = 5.0  # How long reached hosts have to send their jobs
SETTLE_S = 2.0  # How long connecting hosts have to list their jobs before the only job so far is chosen
_HOSTS_NAMED = 3
HERE = Target(socket.gethostname(), LOCAL)
"""This machine by a relay, which carries the connections to all nodes."""
HERE_BYTES_PER_S = 64 << 20


@dataclass(slots=True)
class FollowedHost:
    """One host, and the session for the job on it."""

    host: RemoteHost | GatheredHost
    session: JobSession
    view: NodeView
    records: tuple[JobRecord, ...] = ()  # Its jobs as of the last look

    def look(self) -> None:
        try:
            self.records = tuple(self.host.list_jobs())
        except (JobFolderError, OSError):
            self.records = ()  # the session's own look keeps the reason

    def has(self, key: str | None) -> bool:
        return any(record.job == key for record in self.records)

    def read(self, key: str | None, at_ns: int, now_s: float, common: ClockOffset | None) -> NodeView:
        """Read new messages. Return the connection. ``key``: the job. ``at_ns``, ``now_s``: Unix and
        monotonic time. ``common``: the clock that all clocks are compared to. None: this machine's.
        """
        self.session.read()
        host, hub = self.host, self.session.hub
        hub_state, since_ns, note = hub.state, hub.since_ns, hub.note
        if not host.ready and hub_state is not HubState.ENDED:
            hub_state = HubState.WAITING if host.connecting else HubState.LOST
            since_ns = at_ns - round((now_s - host.since_s) * 1e9)
            note = host.note
        elif self.session.job_key is None and host.known:
            count = len(self.records)
            listed = f"{count or 'no'} job{'s' * (count != 1)} there"
            note = host.note or ("the job is not there" if key else listed)
        offset_ns, residual_ns = host.clock.offset_ns, host.clock.residual_ns
        if common is not None and offset_ns is not None and residual_ns is not None:
            offset_ns -= common.offset_ns or 0
            residual_ns -= common.residual_ns or 0
        return NodeView(
            host.name, hub_state, since_ns, note,
            offset_ns=offset_ns, residual_ns=residual_ns,
            bytes_per_s=host.bytes_per_s, detail=host.detail, readonly=host.readonly,
        )  # fmt: skip


class ClusterSession:
    """One job on several hosts. No method blocks. Jobs with the same key are one, because their ranks meet
    at the same address. The only job is chosen automatically.
    """

    def __init__(
        self,
        hosts: Sequence[RemoteHost],
        selector: JobSelector | None = None,
        *,
        readonly: bool = False,
        clock_ns: Callable[[], int] = time.time_ns,
        monotonic_s: Callable[[], float] = time.monotonic,
        tap: Tap | None = None,
    ) -> None:
        """``hosts``: at least one. ``readonly``, ``tap``: as in JobSession."""
        selector = selector or JobSelector()
        self._matches = selector.matches
        self._key = selector.key
        self._chosen = selector.key is not None  # The user chose the job. Only its restart may replace it.
        self._readonly = readonly
        self._clock_ns = clock_ns
        self._monotonic_s = monotonic_s
        self._tap = tap
        self._fleet = JobState(clock_ns)
        self._hosts = tuple(hosts)  # Those that the user named
        self._nodes = tuple(self._follow(host) for host in hosts)
        """These, then those that their hubs have gathered."""
        self._last: Snapshot | None = None
        self._earlier: Snapshot | None = None
        """Last Snapshot of the previous job, until the present one is known."""
        self._homes: frozenset[tuple[str, str]] = frozenset()  # Script and directory of the job, by host
        self._beside: set[str] = set()  # Jobs that ran when the job was last seen to run: no restarts of it
        self._watched: frozenset[int] = frozenset()
        self._bursts = 0
        self._look_at_s = 0.0
        self._first_job_s: float | None = None
        self.jobs: tuple[JobRecord, ...] = ()
        """Live jobs of all hosts as of the last look, newest first. A job on several hosts is listed once,
        and its ``host`` names them."""

    @property
    def job_key(self) -> str | None:
        return self._key

    def tick(self) -> Snapshot:
        for node in self._nodes:
            node.host.maintain()
        self._add_gathered()
        now_s = self._monotonic_s()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            self._look(now_s)
        # With one named host, all others were gathered there: their clocks are known on its network, which
        # is closer than this machine.
        is_gathered = len(self._hosts) == 1 < len(self._nodes)
        common = self._hosts[0].clock if is_gathered else None
        at_ns = self._clock_ns()
        views = [node.read(self._key, at_ns, now_s, common) for node in self._nodes]
        merged = self._fleet.snapshot(views, self._waiting_for(views))
        for node, view in zip(self._nodes, merged.nodes, strict=True):
            node.view = view
        self._watch_where_they_are(merged)
        if merged.job is None and self._earlier is not None:
            earlier = self._earlier
            return replace(earlier, at_ns=merged.at_ns, nodes=merged.nodes, fresh=(), fresh_samples=())
        self._earlier = None
        self._last = merged
        return merged

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        self._watched, self._bursts = frozenset(ranks), bursts
        if self._last is not None:
            self._watch_where_they_are(self._last)

    def send(self, message: Command | Found) -> str:
        if self._readonly:
            return READONLY
        if isinstance(message, Command):
            if self._last is None or self._last.job is None:
                return NOT_CONNECTED
            what = "change" if message.name in CHANGES else message.name
            if why := out_of_reach(what, (node.view for node in self._nodes), self._last.ranks):
                return why
        holders = (node for node in self._nodes if node.view.ranks or node.has(self._key))
        sent = [not node.session.send(message) for node in holders]
        # If it reached only some ranks, the others do not answer: nothing changes, and the ranks report
        # that.
        return "" if any(sent) else NOT_CONNECTED

    def select(self, key: str) -> None:
        self._chosen = True
        if key != self._key:
            self._earlier = None
            self._turn_to(key)

    def close(self) -> None:
        for node in self._nodes:
            node.session.close()
            node.host.close()
        self._look_at_s = float("inf")

    def _follow(self, host: RemoteHost | GatheredHost) -> FollowedHost:
        session = JobSession(
            JobSelector(matches=self._is_wanted),
            readonly=self._readonly,
            list_jobs=host.list_jobs,
            open_hub=host.open_hub,
            is_gone=host.is_gone,
            clock_ns=self._clock_ns,
            monotonic_s=self._monotonic_s,
            node=host.name,
            fleet=self._fleet,
            tap=self._tap,
        )
        return FollowedHost(host, session, NodeView(host.name, HubState.WAITING, self._clock_ns(), ""))

    def _add_gathered(self) -> None:
        followed = {node.host.node for node in self._nodes if isinstance(node.host, GatheredHost)}
        for root in self._hosts:
            named = {each.own_name for each in self._hosts if each is not root and root.gathered}
            for hub in root.gathered.values():
                if hub.node in followed or hub.host in named or len(self._nodes) >= MAX_HUBS:
                    continue
                name = printable(hub.host)
                if any(node.host.name == name for node in self._nodes):
                    name = f"{name}-{hub.node.hex()[-4:]}"
                self._nodes = (*self._nodes, self._follow(GatheredHost(root, hub, name)))
                self._look_at_s = 0.0

    def _is_wanted(self, record: JobRecord) -> bool:
        return record.job == self._key and (self._matches is None or self._matches(record))

    def _watch_where_they_are(self, snapshot: Snapshot) -> None:
        for node, view in zip(self._nodes, snapshot.nodes, strict=True):
            node.session.watch(self._watched.intersection(view.ranks), self._bursts)

    def _look(self, now_s: float) -> None:
        for node in self._nodes:
            node.look()
        self.jobs = _together(self._nodes, self._matches)
        if self.jobs and self._first_job_s is None:
            self._first_job_s = now_s
        records = (job for node in self._nodes for job in node.records if job.job == self._key)
        self._homes |= {(job.script, job.cwd) for job in records}
        wanted = self._wanted(now_s)
        if wanted != self._key and wanted is not None:
            if self._last is not None and self._last.job is not None:
                self._earlier = self._last
            self._turn_to(wanted)

    def _wanted(self, now_s: float) -> str | None:
        if self._key is not None:
            if self._goes_on():
                if any(record.job == self._key and not record.ended for record in self.jobs):
                    self._beside = {record.job for record in self.jobs}
                return self._key
            for record in self.jobs:
                again = (record.script, record.cwd) in self._homes and record.job != self._key
                if again and record.job not in self._beside:
                    return record.job
            if self._chosen:
                return self._key
        if len(self.jobs) == 1 and self._all_have_listed(now_s):
            return self.jobs[0].job
        return self._key

    def _goes_on(self) -> bool:
        """Whether the job still runs, or may run on a host that cannot be reached."""
        reached = [node for node in self._nodes if node.host.ready]
        if any(node.has(self._key) for node in reached):
            return True
        if with_ranks := [node for node in reached if node.view.ranks]:
            return any(node.view.hub_state in (HubState.LIVE, HubState.STALE) for node in with_ranks)
        return any(node.view.ranks or node.has(self._key) for node in self._nodes)

    def _all_have_listed(self, now_s: float) -> bool:
        if self._first_job_s is not None and now_s - self._first_job_s >= SETTLE_S:
            return True
        return all(node.host.known or not node.host.connecting for node in self._nodes)

    def _turn_to(self, key: str) -> None:
        self._key = key
        self._homes = frozenset()
        for node in self._nodes[len(self._hosts) :]:
            node.session.close()  # the next job's root gathers its own
        self._nodes = self._nodes[: len(self._hosts)]
        self._fleet = JobState(self._clock_ns)
        for node in self._nodes:
            node.session.select(key, self._fleet)
        self._look_at_s = 0.0

    def _waiting_for(self, views: Sequence[NodeView]) -> str:
        names = _named([node.host.name for node in self._nodes])
        for node, view in zip(self._nodes, views, strict=True):
            is_joining = node.session.job_key is not None and view.hub_state is HubState.WAITING
            if is_joining and view.note:
                return view.note  # it is connecting, or its hub refuses us
        if not any(node.host.ready for node in self._nodes):
            notes = [node.host.note for node in self._nodes if node.host.note]
            return notes[0] if len(self._nodes) == 1 and notes else f"connecting to {names}"
        if self._key is not None:
            return f"waiting for job {self._key} on {names}"
        if len(self.jobs) > 1:
            return f"{len(self.jobs)} jobs run there: choose one"
        return f"waiting for a job on {names}"


class HostsSession(ClusterSession):
    """The job on these hosts. Owns the connections to them."""

    def __init__(
        self,
        pool: ConnectionPool,
        selector: JobSelector | None = None,
        *,
        readonly: bool = False,
        tap: Tap | None = None,
    ) -> None:
        super().__init__(pool.hosts, selector, readonly=readonly, tap=tap)
        self._pool = pool
        self.hosts = pool.hosts

    def fileno(self) -> int:
        return self._pool.fileno()

    def receive(self) -> None:
        self._pool.receive()

    def retry(self) -> None:
        for host in self.hosts:
            host.retry()

    def pause(self, seconds: float) -> None:
        """Wait, and read messages as they arrive: clock offsets need exact arrival times."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            if select.select([self.fileno()], [], [], left_s)[0]:
                self.receive()

    def find_jobs(self) -> Sequence[JobRecord]:
        """Return the jobs of all hosts, after each reached host has sent its own."""
        deadline_s = time.monotonic() + JOBS_S
        while True:
            self.tick()
            if all(host.known or not host.ready for host in self.hosts) or time.monotonic() > deadline_s:
                break
            self.pause(0.02)
        self._look_at_s = 0.0
        self.tick()
        return self.jobs

    def close(self) -> None:
        self._pool.close()
        super().close()


class LocalSession:
    """A job on this machine: a JobSession, until its hub is the root of a gathered job; from then on a
    HostsSession of all its nodes.
    """

    def __init__(self, selector: JobSelector, *, readonly: bool = False, tap: Tap | None = None) -> None:
        # Nothing is started before there is such a job.
        pool = ConnectionPool((HERE,), lambda _: None, readonly=readonly)
        for host in pool.hosts:
            host.limit_bytes_per_s = HERE_BYTES_PER_S
        self._local = JobSession(selector, readonly=readonly, tap=tap)
        self._nodes = HostsSession(pool, selector, readonly=readonly, tap=tap)
        self._now: JobSession | HostsSession = self._local
        self._watched: tuple[Collection[int], int] = ((), 0)

    @property
    def jobs(self) -> tuple[JobRecord, ...]:
        return self._now.jobs

    @property
    def job_key(self) -> str | None:
        return self._now.job_key

    def tick(self) -> Snapshot:
        snapshot = self._now.tick()
        record = self._local.record if self._now is self._local else None
        if record is None or not record.is_root:
            return snapshot
        self._local.close()
        self._now = self._nodes
        self._now.select(record.job)
        self._now.watch(*self._watched)
        return self._now.tick()

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        self._watched = (ranks, bursts)
        self._now.watch(ranks, bursts)

    def send(self, message: Command | Found) -> str:
        return self._now.send(message)

    def select(self, key: str) -> None:
        self._now.select(key)

    def fileno(self) -> int:
        return self._nodes.fileno()

    def receive(self) -> None:
        self._nodes.receive()

    def retry(self) -> None:
        self._nodes.retry()

    def close(self) -> None:
        self._local.close()
        self._nodes.close()


def _named(hosts: Sequence[str]) -> str:
    """``gpu-a, gpu-b``; for many hosts ``gpu-a, gpu-b and 14 more``."""
    if len(hosts) <= _HOSTS_NAMED:
        return ", ".join(hosts)
    shown = hosts[: _HOSTS_NAMED - 1]
    return f"{', '.join(shown)} and {len(hosts) - len(shown)} more"


def _together(
    nodes: Sequence[FollowedHost], matches: Callable[[JobRecord], bool] | None
) -> tuple[JobRecord, ...]:
    found: dict[str, list[tuple[str, JobRecord]]] = {}
    for node in nodes:
        for record in node.records:
            if matches is None or matches(record):
                found.setdefault(record.job, []).append((node.host.name, record))
    jobs = [
        structs.replace(
            listed[0][1],
            host=_named([name for name, _ in listed]),
            world_size=max(record.world_size for _, record in listed),
            started_ns=min(record.started_ns for _, record in listed),
            rank_pids=tuple(pid for _, record in listed for pid in record.rank_pids),
            ended=all(record.ended for _, record in listed),
        )
        for listed in found.values()
    ]
    return tuple(sorted(jobs, key=lambda job: job.started_ns, reverse=True))
