"""JobSession: one job, on this machine or on several hosts, each with its own hub and connection.

The connections are independent. If one breaks, its ranks keep their last state and are marked; the others
are not affected. After a reconnect the hub sends its history again, and known messages are skipped.

**Commands.** Each hub sends a command to its own ranks. All ranks of a job agree through the job's own
store: all act or none does. So a command goes to every hub with the same id, and to none if some rank
cannot be reached. If a connection breaks just then, its ranks do not answer and nothing changes. Each hub
publishes the outcome for its own ranks, and hub/executions.py merges them.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeAlias

from msgspec import structs

from overlaptop.fleet.job_state import Hub, JobState
from overlaptop.fleet.nodes import out_of_reach
from overlaptop.fleet.snapshot import HubState, NodeView, Snapshot
from overlaptop.jobs.clock import ClockOffset
from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.record import JobRecord, list_jobs
from overlaptop.wire.commands import CHANGES, Command
from overlaptop.wire.joining import TurnedAway
from overlaptop.wire.messages import Found, Welcome
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.schema import Message

if TYPE_CHECKING:
    from overlaptop.jobs.hub_reader import HubConnection
    from overlaptop.remote.host import GatheredHost, RemoteHost

Tap = Callable[[str, Sequence[Message]], None]
"""Called with a node's name and the messages that were read from its hub together."""
LOOK_EVERY_S = 0.5
READONLY = "this dashboard is read-only"
NOT_CONNECTED = "there is no connection to the job"
RESTARTING = "ranks failed; if torchrun restarts them, they are shown here"
MOST_READING_S = 0.1
"""CPU time for which one tick reads a hub, if messages keep coming, as a large job's history does."""
QUIET_AFTER_S = 6.0
"""A hub sends its status each second, a little late on a busy machine. After this silence the connection is
stale."""
_HOSTS_NAMED = 3


@dataclass(frozen=True, slots=True)
class JobSelector:
    """Selects a job. The default selects the only one there is."""

    key: str | None = None  # This job, and any restart of it (same script, same directory)
    matches: Callable[[JobRecord], bool] | None = None
    """Hides all other jobs from this session. A launcher recognises its own job this way."""


class LocalHost:
    """The host that we run on. It has no name, and no node in a Snapshot."""

    name = note = detail = ""
    ready = known = True
    connecting = readonly = False
    bytes_per_s: float | None = None
    clock = ClockOffset()

    def maintain(self) -> None:
        """Do nothing: there is no connection to keep."""

    def list_jobs(self) -> Sequence[JobRecord]:
        return list_jobs()

    def open_hub(self, record: JobRecord) -> "HubConnection":
        # Importing zmq takes 40 ms, so it waits until there is a hub to connect to.
        from overlaptop.jobs.hub_socket import LocalHubConnection

        return LocalHubConnection(record)

    def is_gone(self, record: JobRecord) -> bool:
        return record.gone

    def close(self) -> None:
        """Do nothing: nothing is open."""


Host: TypeAlias = "LocalHost | RemoteHost | GatheredHost"


class FollowedHost:
    """One host, and the connection to the job's hub there. It reconnects to a hub that replaced another."""

    def __init__(
        self, host: Host, fleet: JobState, tap: Tap | None, monotonic_s: Callable[[], float]
    ) -> None:
        self.host = host
        self.records: tuple[JobRecord, ...] = ()  # Its jobs as of the last look
        self.record: JobRecord | None = None  # The job that is joined or was joined last
        self.ranks: tuple[int, ...] = ()  # The job's ranks that are, or were, on this host
        self._fleet, self._tap, self._monotonic_s = fleet, tap, monotonic_s
        self._connection: HubConnection | None = None
        self._joined_s = 0.0
        self._gone = False
        self._dropped_earlier = 0
        self._look_note = ""
        self._turned_away = ""  # Why the hub refuses this session, or speaks another protocol

    @property
    def hub(self) -> Hub:
        return self._fleet.hub(self.host.name)

    def look(self, matches: Callable[[JobRecord], bool] | None) -> None:
        """List the host's jobs."""
        self.records, self._look_note = (), ""
        try:
            self.records = tuple(each for each in self.host.list_jobs() if matches is None or matches(each))
        except (JobFolderError, OSError) as error:
            self._look_note = str(error)

    def has(self, key: str | None) -> bool:
        return any(record.job == key for record in self.records)

    def join(self, key: str | None) -> None:
        """Connect to the job's hub, unless that is done."""
        record, held = next((each for each in self.records if each.job == key), None), self.record
        if record is None:
            return
        if self._connection and held and (record.job, record.hub_pid) == (held.job, held.hub_pid):
            self.record = record  # the new record may name more ranks
            return
        self.close()
        try:
            self._connection = self.host.open_hub(record)
        except (JobFolderError, OSError) as error:
            self._look_note = str(error)
            return
        self.record = record
        self._joined_s = self._monotonic_s()
        self._turned_away, self._gone = "", False

    def read(self, waiting: str) -> None:
        """Read new messages. ``waiting``: the connection's note while there is no job."""
        # Check this first, so that messages sent until then are still read. Never check again afterwards:
        # the system may reuse the pid for another process.
        if self._connection is not None and self.record is not None and not self._gone:
            self._gone = not self._connection.alive and self.host.is_gone(self.record)
        until_s = time.thread_time() + MOST_READING_S
        while self._connection is not None and (messages := self._connection.poll()):
            if self._tap is not None:
                self._tap(self.host.name, messages)
            for message in messages:
                self._apply(message)
            if time.thread_time() >= until_s:
                break
        self._fleet.set_hub_state(*self._state_and_note(waiting), self._dropped, self.host.name)

    def view(self, common: ClockOffset | None) -> NodeView:
        """Return the host's connection. ``common``: the clock that all clocks are compared to. None: this
        machine's.
        """
        host, hub = self.host, self.hub
        offset_ns, residual_ns = host.clock.offset_ns, host.clock.residual_ns
        if common is not None and offset_ns is not None and residual_ns is not None:
            offset_ns -= common.offset_ns or 0
            residual_ns -= common.residual_ns or 0
        return NodeView(
            host.name, hub.state, hub.since_ns, hub.note,
            offset_ns=offset_ns, residual_ns=residual_ns,
            bytes_per_s=host.bytes_per_s, detail=host.detail, readonly=host.readonly,
        )  # fmt: skip

    def watch(self, ranks: Collection[int], bursts: int) -> None:
        """Request the timelines of these of its ranks only, and a burst whenever ``bursts`` grows."""
        if self._connection is not None:
            here = frozenset(ranks).intersection(self.ranks) if self.host.name else ranks
            self._connection.watch(here, bursts)

    def send(self, message: Command | Found) -> bool:
        """Send this to the hub. False: that is not possible now."""
        if self._connection is None or self._turned_away or not self._connection.send(message):
            return False
        self._fleet.apply(message, self.host.name)
        return True

    def leave(self, fleet: JobState) -> None:
        """Leave the job. ``fleet``: the state of the next one."""
        self.close()
        self.record, self.ranks, self._fleet, self._dropped_earlier = None, (), fleet, 0

    def close(self) -> None:
        """Close the connection to the hub."""
        if self._connection is not None:
            self._dropped_earlier += self._connection.dropped
            self._connection.close()
            self._connection = None

    def _apply(self, message: Message) -> None:
        if isinstance(message, TurnedAway):
            self._turned_away = message.reason
        elif isinstance(message, Welcome):
            theirs, self._turned_away = message.protocol, ""
            if self.record is not None and message.job != self.record.job:
                self._turned_away = "its hub has another job"  # it would empty the state of all nodes
            elif theirs != PROTOCOL_VERSION:
                older = "this dashboard" if theirs > PROTOCOL_VERSION else "the job's agent"
                self._turned_away = (
                    f"the job speaks protocol {theirs}, this dashboard {PROTOCOL_VERSION}: "
                    f"{older} is older, update it"
                )
        if not self._turned_away:
            self._fleet.apply(message, self.host.name)

    @property
    def _dropped(self) -> int:
        return self._dropped_earlier + (self._connection.dropped if self._connection is not None else 0)

    def _state_and_note(self, waiting: str) -> tuple[HubState, str]:
        state, note = self._hub_state_and_note(waiting)
        if self.host.ready or state is HubState.ENDED:
            return state, note
        return HubState.WAITING if self.host.connecting else HubState.LOST, self.host.note

    def _hub_state_and_note(self, waiting: str) -> tuple[HubState, str]:
        connection = self._connection
        if connection is None or self.record is None:
            return HubState.WAITING, self._look_note or waiting
        received_s = connection.last_received_s
        is_quiet = (
            self._monotonic_s() - self._joined_s if received_s is None else received_s
        ) > QUIET_AFTER_S
        again = f"if {PurePath(self.record.script).name} is started again, it is shown here"
        node = self.host.name
        if self._turned_away:
            return HubState.WAITING, self._turned_away
        if received_s is None and connection.alive and not is_quiet:
            # Whatever the hub before it said: its job may have ended.
            return HubState.WAITING, f"joining {self.record.script}"
        if self.hub.job_ended or (not connection.alive and self._fleet.every_rank_ended(node)):
            if self.record.may_restart and self._fleet.any_rank_failed(node):
                return HubState.WAITING, RESTARTING
            return HubState.ENDED, again
        if self._gone:
            return HubState.ENDED, f"its hub and its ranks are gone; {again}"
        if not connection.alive:
            return HubState.LOST, "its hub is gone; looking for it"
        return (HubState.STALE, "its hub sends nothing") if is_quiet else (HubState.LIVE, "")


class JobSession:
    """One job, followed through the hubs of its hosts. No method blocks. Jobs with the same key are one,
    because their ranks meet at the same address. It follows a restarted job: the same script and directory,
    or the only job there is.
    """

    def __init__(
        self,
        selector: JobSelector | None = None,
        hosts: Sequence[Host] | None = None,
        *,
        readonly: bool = False,
        clock_ns: Callable[[], int] = time.time_ns,
        monotonic_s: Callable[[], float] = time.monotonic,
        tap: Tap | None = None,
    ) -> None:
        """``hosts``: at least one; default this machine. ``readonly``: nothing can be changed through this
        session.
        """
        selector = selector or JobSelector()
        self._matches = selector.matches
        self._key = selector.key
        self._chosen = selector.key is not None  # The user chose the job. Only its restart may replace it.
        self._readonly = readonly
        self._clock_ns, self._monotonic_s = clock_ns, monotonic_s
        self._tap = tap
        self._fleet = JobState(clock_ns)
        self._follow_all((LocalHost(),) if hosts is None else hosts)
        self._last: Snapshot | None = None
        self._homes: frozenset[tuple[str, str]] = frozenset()  # Script and directory of the job, by host
        self._beside: set[str] = set()  # Jobs that ran when the job was last seen to run: no restarts of it
        self._watched: frozenset[int] = frozenset()
        self._bursts = self._changes = 0  # Bursts requested by the viewer, and by changes of the job
        self._first_step = 0
        self._look_at_s = 0.0
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
            self._look()
        for node in self._nodes:
            node.read(self._waiting_on(node))
        # With one named host, all others were gathered there: their clocks are known on its network, which
        # is closer than this machine.
        is_gathered = len(self._named) == 1 < len(self._nodes)
        common = self._named[0].clock if is_gathered else None
        views = [] if self._is_local else [node.view(common) for node in self._nodes]
        snapshot = self._fleet.snapshot(views, self._waiting_for(views))
        for node, view in zip(self._nodes, snapshot.nodes, strict=False):
            node.ranks = view.ranks
        self._changes += snapshot.first_step > self._first_step
        self._first_step = snapshot.first_step
        self.watch(self._watched, self._bursts)
        self._last = snapshot
        return snapshot

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """Request the timelines of these ranks only, and a burst whenever ``bursts`` grows. The session
        also requests a burst when the job changes: if each rank decided alone, they would measure different
        steps.
        """
        self._watched, self._bursts = frozenset(ranks), bursts
        for node in self._nodes:
            node.watch(self._watched, bursts + self._changes)

    def send(self, message: Command | Found) -> str:
        if self._readonly:
            return READONLY
        if isinstance(message, Command) and not self._is_local:
            if self._last is None or self._last.job is None:
                return NOT_CONNECTED
            what = "change" if message.name in CHANGES else message.name
            if why := out_of_reach(what, self._last.nodes, self._last.ranks):
                return why
        sent = [node.send(message) for node in self._nodes]
        # If it reached only some ranks, the others do not answer: nothing changes, and the ranks report
        # that.
        return "" if any(sent) else NOT_CONNECTED

    def select(self, key: str) -> None:
        self._chosen = True
        if key != self._key:
            self._turn_to(key)

    def close(self) -> None:
        for node in self._nodes:
            node.close()
            node.host.close()
        self._look_at_s = float("inf")

    @property
    def _is_local(self) -> bool:
        return not self._named[0].name

    def _follow_all(self, hosts: Sequence[Host]) -> None:
        self._named = hosts  # Hosts that the user named
        self._nodes = tuple(map(self._follow, hosts))  # These, then those that their hubs have gathered

    def _follow(self, host: Host) -> FollowedHost:
        return FollowedHost(host, self._fleet, self._tap, self._monotonic_s)

    def _add_gathered(self) -> None:
        """Follow hosts whose hubs the named ones have gathered, if there are any."""

    def _look(self) -> None:
        for node in self._nodes:
            node.look(self._matches)
        self.jobs = _together(self._nodes)
        records = (job for node in self._nodes for job in node.records if job.job == self._key)
        self._homes |= {(job.script, job.cwd) for job in records}
        wanted = self._wanted()
        if wanted != self._key and wanted is not None:
            self._turn_to(wanted)
        for node in self._nodes:
            node.join(self._key)

    def _wanted(self) -> str | None:
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
        return self.jobs[0].job if len(self.jobs) == 1 else self._key

    def _goes_on(self) -> bool:
        """Whether the job still runs, or may run on a host that cannot be reached."""
        reached = [node for node in self._nodes if node.host.ready]
        if any(node.has(self._key) for node in reached):
            return True
        if joined := [node for node in reached if node.record is not None]:
            return any(node.hub.state in (HubState.LIVE, HubState.STALE) for node in joined)
        return any(node.record is not None or node.has(self._key) for node in self._nodes)

    def _turn_to(self, key: str) -> None:
        self._key = key
        self._homes = frozenset()
        self._fleet = JobState(self._clock_ns)
        for node in self._nodes:
            node.leave(self._fleet)
        self._nodes = self._nodes[: len(self._named)]  # the next job's root gathers its own
        self._look_at_s = 0.0

    def _waiting_on(self, node: FollowedHost) -> str:
        """Return the note of a host without the job."""
        if self._is_local:
            return self._waiting_for([])
        if node.host.note or not node.host.known:
            return node.host.note
        count = len(node.records)
        return "the job is not there" if self._key else f"{count or 'no'} job{'s' * (count != 1)} there"

    def _waiting_for(self, views: Sequence[NodeView]) -> str:
        """Return the note while no host knows the job."""
        names = _named([node.host.name for node in self._nodes])
        for node, view in zip(self._nodes, views, strict=False):
            if node.record is not None and view.hub_state is HubState.WAITING and view.note:
                return view.note  # it is connecting, or its hub refuses us
        if not any(node.host.ready for node in self._nodes):
            notes = [node.host.note for node in self._nodes if node.host.note]
            return notes[0] if len(self._nodes) == 1 and notes else f"connecting to {names}"
        where, on_hosts = ("here", "") if self._is_local else ("there", f" on {names}")
        if self._key is not None:
            return f"waiting for job {self._key}{on_hosts}"
        if len(self.jobs) > 1:
            return f"{len(self.jobs)} jobs run {where}: choose one"
        return f"waiting for a job{on_hosts}"


def _named(hosts: Sequence[str]) -> str:
    """``gpu-a, gpu-b``; for many hosts ``gpu-a, gpu-b and 14 more``."""
    if len(hosts) <= _HOSTS_NAMED:
        return ", ".join(hosts)
    shown = hosts[: _HOSTS_NAMED - 1]
    return f"{', '.join(shown)} and {len(hosts) - len(shown)} more"


def _together(nodes: Sequence[FollowedHost]) -> tuple[JobRecord, ...]:
    found: dict[str, list[tuple[str, JobRecord]]] = {}
    for node in nodes:
        for record in node.records:
            found.setdefault(record.job, []).append((node.host.name or record.host, record))
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
