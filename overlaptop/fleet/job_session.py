"""JobSession: finds a job on this machine, connects to its hub, and turns messages into Snapshots."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING

from overlaptop.fleet.job_state import JobState
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
QUIET_AFTER_S, QUIET_AT_MOST_S = 3.0, 8.0
"""A hub sends its status each second. A connection is stale after a silence of twice the longest of late,
within these limits: on a busy machine a hub may come late.
"""
_FORGET = 0.995
"""Factor on the longest silence at each read that brings messages."""


@dataclass(frozen=True, slots=True)
class JobSelector:
    """Selects a job. The default selects the only one there is."""

    key: str | None = None
    """This job, and any restart of it (same script, same directory)."""
    matches: Callable[[JobRecord], bool] | None = None
    """Hides all other jobs from this session. A launcher recognises its own job this way."""


def _open_local_hub(record: JobRecord) -> "HubConnection":
    # Importing zmq takes 40 ms, so it waits until there is a hub to connect to.
    from overlaptop.jobs.hub_socket import LocalHubConnection

    return LocalHubConnection(record)


class JobSession:
    """One job, followed through its hub. No method blocks; call ``tick`` as often as you like. It
    reconnects to a replaced hub, and to a restarted job: the same script and directory, or the only job
    there is.
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
        tap: Tap | None = None,
    ) -> None:
        """``readonly``: nothing can be changed through this session. ``node``: as in JobState.
        ``tap``: called with the messages of each tick.
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
        self._fleet = JobState(clock_ns, node)
        self._record: JobRecord | None = None
        self._hub: HubConnection | None = None
        self._beside: set[str] = set()
        """Jobs that ran when the job was last seen to run: no restarts of it."""
        self._joined_s = self._quiet_s = self._longest_quiet_s = 0.0
        self._gone = False
        self._watched: frozenset[int] = frozenset()
        self._bursts = self._changes = 0
        """Bursts requested by the viewer, and by changes of the job."""
        self._first_step = 0
        self._dropped_earlier = 0
        self._look_at_s = 0.0
        self._look_note = ""
        self._foreign_protocol: int | None = None
        self._turned_away = ""
        """Why the hub refuses this session."""
        self.jobs: tuple[JobRecord, ...] = ()
        """Live jobs that this session may choose, newest first, as of the last look."""

    @property
    def record(self) -> JobRecord | None:
        return self._record

    @property
    def job_key(self) -> str | None:
        return self._record.job if self._record is not None else None

    def tick(self) -> Snapshot:
        """Read new messages, look for the job while disconnected, and return the Snapshot."""
        now_s = self._monotonic_s()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            self._look()
        # Check this first, so that messages sent until then are still read. Never check again afterwards:
        # the system may reuse the pid for another process.
        if self._hub is not None and self._record is not None and not self._gone:
            self._gone = not self._hub.alive and self._is_gone(self._record)
        self._read()
        self._set_hub_state(now_s)
        snapshot = self._fleet.snapshot()
        if snapshot.first_step > self._first_step:
            self._changes += 1
            self.watch(self._watched, self._bursts)
        self._first_step = snapshot.first_step
        return snapshot

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """Request the timelines of these ranks only, and a burst whenever ``bursts`` grows. The session
        also requests a burst when the job changes: if each rank decided alone, they would measure different
        steps.
        """
        self._watched, self._bursts = frozenset(ranks), bursts
        if self._hub is not None:
            self._hub.watch(self._watched, bursts + self._changes)

    def send(self, message: Command | Found) -> str:
        if self._readonly:
            return READONLY
        if (hub := self._usable_hub) is None or not hub.send(message):
            return NOT_CONNECTED
        self._fleet.apply(message)
        return ""

    @property
    def _usable_hub(self) -> "HubConnection | None":
        """The connection to the hub. None if the hub would ignore messages from it."""
        return None if self._foreign_protocol is not None or self._turned_away else self._hub

    def select(self, key: str) -> None:
        if self._record is not None and self._record.job == key and self._hub is not None:
            return
        self._chosen = key
        self._disconnect()
        self._record = None
        self._fleet = JobState(self._clock_ns, self._node)
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
        held = self._record
        if wanted is None:
            return
        if self._hub and held and (wanted.job, wanted.hub_pid) == (held.job, held.hub_pid):
            self._record = wanted  # the new record may name more ranks
        else:
            self._join(wanted)

    def _wanted(self) -> JobRecord | None:
        """Return the job to join now, or the present one if there is no better."""
        held = self._record
        if held is not None:
            for record in self.jobs:
                if record.job == held.job:
                    if not record.ended:
                        self._beside = {each.job for each in self.jobs}
                    return record
            if self._hub is not None and not self._fleet.job_ended and self._hub.alive:
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
            self._hub = self._open_hub(record)
        except (JobFolderError, OSError) as error:
            self._look_note = str(error)
            return
        self._record = record
        self._joined_s = self._monotonic_s()
        self._foreign_protocol, self._turned_away = None, ""
        self._gone = False
        self.watch(self._watched, self._bursts)

    def _disconnect(self) -> None:
        if self._hub is not None:
            self._dropped_earlier += self._hub.dropped
            self._hub.close()
            self._hub = None

    def _read(self) -> None:
        if self._hub is None:
            return
        until_s = time.thread_time() + MOST_READING_S
        while messages := self._hub.poll():
            if self._tap is not None:
                self._tap(self._node, messages)
            self._apply(messages)
            if time.thread_time() >= until_s:
                break

    def _apply(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, TurnedAway):
                self._turned_away = message.reason
                continue
            self._turned_away = ""
            if isinstance(message, Welcome) and message.protocol != PROTOCOL_VERSION:
                self._foreign_protocol = message.protocol
            else:
                self._fleet.apply(message)

    def _set_hub_state(self, now_s: float) -> None:
        hub, dropped = self._hub, self._dropped_earlier
        if hub is None or self._record is None:
            self._fleet.set_hub_state(HubState.WAITING, self._look_note or self._waiting_for(), dropped)
            return
        dropped += hub.dropped
        received_s = hub.last_received_s
        quiet_s = now_s - self._joined_s if received_s is None else received_s
        if quiet_s < self._quiet_s:
            self._longest_quiet_s = max(self._longest_quiet_s * _FORGET, self._quiet_s)
        self._quiet_s = quiet_s
        limit_s = min(QUIET_AT_MOST_S, max(QUIET_AFTER_S, 2 * self._longest_quiet_s))
        if self._foreign_protocol is not None:
            state, note = HubState.WAITING, _protocol_note(self._foreign_protocol)
        elif self._turned_away:
            state, note = HubState.WAITING, self._turned_away
        elif received_s is None and hub.alive and quiet_s <= QUIET_AT_MOST_S:
            # Whatever the hub before it said: its job may have ended.
            state, note = HubState.WAITING, f"joining {self._record.script}"
        elif self._fleet.job_ended or (not hub.alive and self._fleet.every_rank_ended):
            state, note = HubState.ENDED, self._shown_again()
            if self._fleet.any_rank_failed and self._record.may_restart:
                state, note = HubState.WAITING, RESTARTING
        elif self._gone:
            state, note = HubState.ENDED, f"its hub and its ranks are gone; {self._shown_again()}"
        elif not hub.alive:
            state, note = HubState.LOST, "its hub is gone; looking for it"
        elif quiet_s > limit_s:
            state, note = HubState.STALE, "its hub sends nothing"
        else:
            state, note = HubState.LIVE, ""
        self._fleet.set_hub_state(state, note, dropped)

    def _shown_again(self) -> str:
        script = PurePath(self._record.script).name if self._record is not None else "the job"
        return f"if {script} is started again, it is shown here"

    def _waiting_for(self) -> str:
        if self._chosen is not None:
            return f"waiting for job {self._chosen}"
        if len(self.jobs) > 1:
            return f"{len(self.jobs)} jobs run here: choose one"
        return "waiting for a job"


def _protocol_note(theirs: int) -> str:
    older = "this dashboard" if theirs > PROTOCOL_VERSION else "the job's agent"
    return (
        f"the job speaks protocol {theirs}, this dashboard {PROTOCOL_VERSION}: {older} is older, update it"
    )
