"""JobSession: finds a job on this machine, connects to its hub, and turns messages into Snapshots."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING

from overlaptop.fleet.job_state import Hub, JobState
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.record import JobRecord, list_jobs
from overlaptop.wire.commands import Command
from overlaptop.wire.joining import TurnedAway
from overlaptop.wire.messages import Found, Welcome
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.schema import Message

if TYPE_CHECKING:
    from overlaptop.jobs.hub_socket import HubConnection

Tap = Callable[[str, Sequence[Message]], None]
"""Called with a node's name and the messages that were read from its hub together."""
LOOK_EVERY_S = 0.5
READONLY = "this dashboard is read-only"
NOT_CONNECTED = "there is no connection to the job"
RESTARTING = "ranks failed; if torchrun restarts them, they are shown here"
MOST_READING_S = 0.1
"""CPU time for which one tick reads, if messages keep coming, as a large job's history does."""
QUIET_AFTER_S = 6.0
"""A hub sends its status each second, a little late on a busy machine. After this silence the connection is
stale."""


@dataclass(frozen=True, slots=True)
class JobSelector:
    """Selects a job. The default selects the only one there is."""

    key: str | None = None  # This job, and any restart of it (same script, same directory)
    matches: Callable[[JobRecord], bool] | None = None
    """Hides all other jobs from this session. A launcher recognises its own job this way."""


def _open_local_hub(record: JobRecord) -> "HubConnection":
    # Importing zmq takes 40 ms, so it waits until there is a hub to connect to.
    from overlaptop.jobs.hub_socket import LocalHubConnection

    return LocalHubConnection(record)


class JobSession:
    """One job, followed through its hub. No method blocks. It reconnects to a replaced hub, and to a
    restarted job: the same script and directory, or the only job there is.
    """

    def __init__(
        self,
        selector: JobSelector | None = None,
        *,
        readonly: bool = False,
        list_jobs: Callable[[], Sequence[JobRecord]] = list_jobs,
        open_hub: "Callable[[JobRecord], HubConnection]" = _open_local_hub,
        is_gone: Callable[[JobRecord], bool] = attrgetter("gone"),
        clock_ns: Callable[[], int] = time.time_ns,
        monotonic_s: Callable[[], float] = time.monotonic,
        node: str = "",
        fleet: JobState | None = None,
        tap: Tap | None = None,
    ) -> None:
        """``readonly``: nothing can be changed through this session. ``fleet``: the state of a job on
        several nodes; the session reads the hub of this ``node``.
        """
        self._selector = selector or JobSelector()
        self._readonly = readonly
        self._chosen = self._selector.key
        self._list_jobs = list_jobs
        self._open_hub = open_hub
        self._is_gone = is_gone
        self._monotonic_s = monotonic_s
        self._clock_ns = clock_ns
        self._node = node
        self._tap = tap
        self._fleet = fleet or JobState(clock_ns)
        self.record: JobRecord | None = None  # The job that is shown or being joined
        self._connection: HubConnection | None = None
        self._beside: set[str] = set()  # Jobs that ran when the job was last seen to run: no restarts of it
        self._joined_s = 0.0
        self._gone = False
        self._watched: frozenset[int] = frozenset()
        self._bursts = self._changes = 0  # Bursts requested by the viewer, and by changes of the job
        self._first_step = 0
        self._dropped_earlier = 0
        self._look_at_s = 0.0
        self._look_note = ""
        self._turned_away = ""  # Why the hub refuses this session, or speaks another protocol
        self.jobs: tuple[JobRecord, ...] = ()
        """Live jobs that this session may choose, newest first, as of the last look."""

    @property
    def job_key(self) -> str | None:
        return self.record.job if self.record is not None else None

    @property
    def hub(self) -> Hub:
        return self._fleet.hub(self._node)

    def tick(self) -> Snapshot:
        self.read()
        snapshot = self._fleet.snapshot()
        if snapshot.first_step > self._first_step:
            self._changes += 1
            self.watch(self._watched, self._bursts)
        self._first_step = snapshot.first_step
        return snapshot

    def read(self) -> None:
        """Read new messages, and look for the job while disconnected."""
        now_s = self._monotonic_s()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            self._look()
        # Check this first, so that messages sent until then are still read. Never check again afterwards:
        # the system may reuse the pid for another process.
        if self._connection is not None and self.record is not None and not self._gone:
            self._gone = not self._connection.alive and self._is_gone(self.record)
        until_s = time.thread_time() + MOST_READING_S
        while self._connection is not None and (messages := self._connection.poll()):
            if self._tap is not None:
                self._tap(self._node, messages)
            self._apply(messages)
            if time.thread_time() >= until_s:
                break
        self._fleet.set_hub_state(*self._state_and_note(now_s), self._dropped, self._node)

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """Request the timelines of these ranks only, and a burst whenever ``bursts`` grows. The session
        also requests a burst when the job changes: if each rank decided alone, they would measure different
        steps.
        """
        self._watched, self._bursts = frozenset(ranks), bursts
        if self._connection is not None:
            self._connection.watch(self._watched, bursts + self._changes)

    def send(self, message: Command | Found) -> str:
        if self._readonly:
            return READONLY
        if self._connection is None or self._turned_away or not self._connection.send(message):
            return NOT_CONNECTED
        self._fleet.apply(message, self._node)
        return ""

    def select(self, key: str, fleet: JobState | None = None) -> None:
        """Show the job with this key from now on. ``fleet``: as in the constructor, for that job."""
        if fleet is None and self.job_key == key and self._connection is not None:
            return
        self._chosen = key
        self._disconnect()
        self.record = None
        self._fleet = fleet or JobState(self._clock_ns)
        self._look_at_s = 0.0

    def close(self) -> None:
        self._disconnect()
        self._look_at_s = float("inf")

    def _look(self) -> None:
        try:
            found = self._list_jobs()
        except (JobFolderError, OSError) as error:
            self._look_note = str(error)
            return
        self._look_note = ""
        matches = self._selector.matches
        self.jobs = tuple(record for record in found if matches is None or matches(record))
        wanted = self._wanted()
        held = self.record
        if wanted is None:
            return
        if self._connection and held and (wanted.job, wanted.hub_pid) == (held.job, held.hub_pid):
            self.record = wanted  # the new record may name more ranks
        else:
            self._join(wanted)

    def _wanted(self) -> JobRecord | None:
        """Return the job to join now, or the present one if there is no better."""
        held = self.record
        if held is not None:
            for record in self.jobs:
                if record.job == held.job:
                    if not record.ended:
                        self._beside = {each.job for each in self.jobs}
                    return record
            if self._connection is not None and not self.hub.job_ended and self._connection.alive:
                return None  # its hub is alive, even if the directory lacks it
            for record in self.jobs:
                again = (record.script, record.cwd) == (held.script, held.cwd)
                if again and record.job not in self._beside:
                    return record
        elif self._chosen is not None:
            return next((record for record in self.jobs if record.job == self._chosen), None)
        if self._chosen is None and len(self.jobs) == 1:
            return self.jobs[0]
        return None

    def _join(self, record: JobRecord) -> None:
        self._disconnect()
        try:
            self._connection = self._open_hub(record)
        except (JobFolderError, OSError) as error:
            self._look_note = str(error)
            return
        self.record = record
        self._joined_s = self._monotonic_s()
        self._turned_away, self._gone = "", False
        self.watch(self._watched, self._bursts)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._dropped_earlier += self._connection.dropped
            self._connection.close()
            self._connection = None

    def _apply(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, TurnedAway):
                self._turned_away = message.reason
            elif isinstance(message, Welcome):
                theirs, self._turned_away = message.protocol, ""
                if self._node and message.job != self.job_key:  # it would empty the state of all nodes
                    self._turned_away = "its hub has another job"
                elif theirs != PROTOCOL_VERSION:
                    older = "this dashboard" if theirs > PROTOCOL_VERSION else "the job's agent"
                    self._turned_away = (
                        f"the job speaks protocol {theirs}, this dashboard {PROTOCOL_VERSION}: "
                        f"{older} is older, update it"
                    )
            if not self._turned_away:
                self._fleet.apply(message, self._node)

    @property
    def _dropped(self) -> int:
        return self._dropped_earlier + (self._connection.dropped if self._connection is not None else 0)

    def _state_and_note(self, now_s: float) -> tuple[HubState, str]:
        connection = self._connection
        if connection is None or self.record is None:
            return HubState.WAITING, self._look_note or self._waiting_for()
        received_s = connection.last_received_s
        is_quiet = (now_s - self._joined_s if received_s is None else received_s) > QUIET_AFTER_S
        again = f"if {PurePath(self.record.script).name} is started again, it is shown here"
        if self._turned_away:
            return HubState.WAITING, self._turned_away
        if received_s is None and connection.alive and not is_quiet:
            # Whatever the hub before it said: its job may have ended.
            return HubState.WAITING, f"joining {self.record.script}"
        if self.hub.job_ended or (not connection.alive and self._fleet.every_rank_ended(self._node)):
            if self.record.may_restart and self._fleet.any_rank_failed(self._node):
                return HubState.WAITING, RESTARTING
            return HubState.ENDED, again
        if self._gone:
            return HubState.ENDED, f"its hub and its ranks are gone; {again}"
        if not connection.alive:
            return HubState.LOST, "its hub is gone; looking for it"
        return (HubState.STALE, "its hub sends nothing") if is_quiet else (HubState.LIVE, "")

    def _waiting_for(self) -> str:
        if self._chosen is not None:
            return f"waiting for job {self._chosen}"
        if len(self.jobs) > 1:
            return f"{len(self.jobs)} jobs run here: choose one"
        return "waiting for a job"
