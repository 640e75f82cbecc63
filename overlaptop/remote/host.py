"""One host's jobs, and the connection to the hub of one of them, over the connection to that host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from overlaptop.jobs.record import JobRecord
from overlaptop.remote.connection import Connection, ConnectionState
from overlaptop.wire.codec import encode
from overlaptop.wire.commands import Command
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import (
    GroupCalls,
    HubStatus,
    Join,
    Notice,
    RankEnd,
    StackSamples,
    Standstill,
    StepDetail,
    StepTotals,
    Welcome,
)
from overlaptop.wire.protocol import JOIN_S, PROTOCOL_VERSION
from overlaptop.wire.relaying import (
    RelayHello,
    RelayJobs,
    RelayLimit,
    RelaySelect,
    RelayStatus,
)
from overlaptop.wire.schema import Message

if TYPE_CHECKING:
    from overlaptop.jobs.hub_connection import HubConnection

_MAX_WAITING = 1 << 14
"""Messages of a hub that nobody has taken, the newest."""
MAX_SAMPLE_CHARS = 1 << 12
"""Of the texts in one sample of a GPU: each has its own, and a hundred samples of each rank are kept."""


class RemoteHubConnection:
    """A HubConnection to a hub of another host. It outlives its connection.

    Without a connection nothing is known of the hub: it counts as alive, and what is sent goes nowhere.
    Each new relay is sent which job is meant (see RemoteHost), and the hub's history comes again.
    """

    def __init__(self, host: RemoteHost, record: JobRecord) -> None:
        self._host = host
        self.job = record.job
        self._ranks: tuple[int, ...] = ()
        self._bursts = 0
        self._untaken: deque[Message] = deque(maxlen=_MAX_WAITING)
        self._joined = False
        """The relay has answered its selection: what comes from now on is this job's hub's."""
        self._join_due_s = 0.0
        self._received_at_s: float | None = None
        self._hub_answers = False
        """The hub has sent something over the connection as it is now."""
        self._dropped_before = host.connection.dropped
        self.state: RelayStatus | None = None
        """The newest report on the hub's process."""

    @property
    def alive(self) -> bool:
        """As HubConnection says, as far as the relay has reported."""
        return self.state is None or self.state.alive

    @property
    def last_received_s(self) -> float | None:
        """As HubConnection says."""
        return None if self._received_at_s is None else self._host.monotonic_s() - self._received_at_s

    @property
    def dropped(self) -> int:
        """As HubConnection says, and what the relay did not pass on, since this was opened."""
        return self._host.connection.dropped - self._dropped_before

    def poll(self) -> list[Message]:
        """As HubConnection says. Times are Unix times of this machine's clock."""
        self._host.poll()
        messages, self._untaken = list(self._untaken), deque(maxlen=_MAX_WAITING)
        return messages

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """As HubConnection says."""
        wanted = tuple(sorted(set(ranks)))
        if (wanted, bursts) != (self._ranks, self._bursts):
            self._ranks, self._bursts = wanted, bursts
            self._join_due_s = 0.0

    def send(self, command: Command) -> bool:
        """As HubConnection says."""
        encode(command)  # what is not allowed is an error whether or not there is a connection
        self._host.update_relay()
        return self._host.selected and self._hub_answers and self._host.connection.send(command)

    def close(self) -> None:
        """As HubConnection says. The connection stays."""
        self._untaken.clear()
        self._host.release(self)

    def receive(self, message: Message) -> None:
        """Takes what the relay passes on, in its order."""
        if isinstance(message, RelayStatus):
            if message.job == self.job:
                self._joined, self.state = True, message
        elif self._joined:
            self._received_at_s, self._hub_answers = self._host.monotonic_s(), True
            if self._is_wanted(message):
                self._untaken.append(_shifted(message, self._host.connection.clock.to_local_ns))

    def reset(self) -> None:
        """The job is selected anew: nothing that is on its way belongs to it."""
        self._joined = self._hub_answers = False
        self._join_due_s = 0.0

    def join_due(self) -> None:
        """Sends the hub once a second, and when the ranks change, which timelines are wanted."""
        now_s = self._host.monotonic_s()
        join = Join(PROTOCOL_VERSION, self._ranks, self._bursts)
        if now_s >= self._join_due_s and self._host.connection.send(join):
            self._join_due_s = now_s + JOIN_S

    def _is_wanted(self, message: Message) -> bool:
        """Not what no hub would send, of which so much is kept that it could fill the memory here."""
        match message:
            case StepDetail():
                return message.rank in self._ranks
            case DeviceSample():
                reasons = (*(message.throttle_reasons or ()), *(each.reason for each in message.unknown))
                names = sum(len(each.name) for each in message.unknown)
                return names + sum(map(len, reasons)) <= MAX_SAMPLE_CHARS
            case _:
                return True


class RemoteHost:
    """One host behind its connection, as JobSession sees it: its jobs, and the hub of one at a time.

    A relay knows nothing of what the one before was sent. What is to hold for each (the limit, the selected
    job) is sent to it once, in `update_relay`.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.monotonic_s = connection.monotonic_s
        self.known = False
        """The host has listed its jobs."""
        self._jobs = RelayJobs((), "")
        self._hub: RemoteHubConnection | None = None
        self._limit: RelayLimit | None = None
        self._relay = 0
        """That `_pending` is for (Connection.relay_count)."""
        self._pending: dict[type, RelayLimit | RelaySelect] = {}
        """What is still to be sent to it, in this order."""

    @property
    def name(self) -> str:
        """As the user named it."""
        return self.connection.target.name

    @property
    def hello(self) -> RelayHello | None:
        """Of the newest relay; None before there was one."""
        return self.connection.hello

    @property
    def up(self) -> bool:
        """Whether there is a relay to send to."""
        return self.connection.ready

    @property
    def connecting(self) -> bool:
        """Whether it has not been reached yet, and is being tried."""
        return self.hello is None and self.connection.state is not ConnectionState.FAILED

    @property
    def readonly(self) -> bool:
        """Whether the relay there changes nothing, whatever it is sent."""
        return self.hello is not None and self.hello.readonly

    @property
    def since_s(self) -> float:
        """Monotonic time since which the connection is up, or is not."""
        return self.connection.since_s

    @property
    def note(self) -> str:
        """Why there is no relay, or why its list of jobs may be wrong, in one line; mostly empty."""
        return self._jobs.note if self.up else self.connection.reason

    @property
    def detail(self) -> str:
        """More of why there is none, in many lines of foreign text; mostly empty."""
        return "" if self.up else self.connection.detail

    @property
    def offset_ns(self) -> int | None:
        """The host's clock less this one; None where it is not known yet."""
        return self.connection.clock.offset_ns

    @property
    def residual_ns(self) -> int | None:
        """By how much `offset_ns` may be wrong, either way."""
        return self.connection.clock.residual_ns

    @property
    def bytes_per_s(self) -> float | None:
        """Received during the last second or so."""
        return self.connection.bytes_per_s

    def poll(self) -> None:
        """Takes in what has come. Never waits, never raises."""
        for message in self.connection.poll():
            match message:
                case RelayJobs():
                    self._jobs, self.known = message, True
                case _:
                    if self._hub is not None:
                        self._hub.receive(message)
        self.update_relay()

    def update_relay(self) -> None:
        """Sends what the relay has not been sent yet: to a new one, all that holds for each."""
        connection, hub = self.connection, self._hub
        if not connection.ready:
            return
        if self._relay != connection.relay_count:
            self._relay = connection.relay_count
            self._pending.clear()
            if self._limit is not None:
                self._pending[RelayLimit] = self._limit
            if hub is not None:
                self._pending[RelaySelect] = RelaySelect(hub.job)
        for kind, message in tuple(self._pending.items()):
            # The offset first: the history that follows a selection is to be shifted right.
            selects = isinstance(message, RelaySelect) and message.job
            if selects and connection.clock.offset_ns is None:
                continue
            if connection.send(message):
                del self._pending[kind]
                if selects and hub is not None:
                    hub.reset()
        if hub is not None and self.selected:
            hub.join_due()

    @property
    def selected(self) -> bool:
        """Whether the relay has been sent which job is meant."""
        return self._relay == self.connection.relay_count and RelaySelect not in self._pending

    def list_jobs(self) -> Sequence[JobRecord]:
        """The jobs that the host listed last, newest first, also while there is no connection."""
        self.poll()
        to_local_ns = self.connection.clock.to_local_ns
        return [
            replace(JobRecord.of_remote(job), started_ns=to_local_ns(job.started_ns))
            for job in self._jobs.jobs
        ]

    def open_hub(self, record: JobRecord) -> HubConnection:
        """The connection to the hub of this job, in place of the one before."""
        self._hub = RemoteHubConnection(self, record)
        self._select(record.job)
        return self._hub

    def is_gone(self, record: JobRecord) -> bool:
        """Whether none of the job's processes is left; False while there is no connection."""
        hub = self._hub
        state = hub.state if self.up and hub is not None and hub.job == record.job else None
        return state is not None and state.gone

    def release(self, hub: RemoteHubConnection) -> None:
        """The connection to a hub is not wanted any more."""
        if self._hub is hub:
            self._hub = None
            self._select("")

    def limit(self, bytes_per_s: int) -> None:
        """How much the connection may carry, for each relay. WireError where RelayLimit is not so."""
        limit = RelayLimit(bytes_per_s)
        encode(limit)
        self._limit = self._pending[RelayLimit] = limit
        self.update_relay()

    def close(self) -> None:
        """Gives the connection up."""
        self.connection.close()

    def _select(self, job: str) -> None:
        self._pending[RelaySelect] = RelaySelect(job)
        self.update_relay()


def _shifted(message: Message, to_local_ns: Callable[[int], int]) -> Message:
    """The message with its Unix times in this machine's clock."""
    match message:
        case StepTotals() | StepDetail():
            return replace(message, start_ns=to_local_ns(message.start_ns))
        case Notice() | RankEnd() | Command() | HubStatus() | DeviceSample():
            return replace(message, at_ns=to_local_ns(message.at_ns))
        case Welcome():
            return replace(message, started_ns=to_local_ns(message.started_ns))
        case Standstill():
            return replace(
                message,
                groups=tuple(_shifted_calls(each, to_local_ns) for each in message.groups),
                since_ns=None if message.since_ns is None else to_local_ns(message.since_ns),
            )
        case StackSamples():
            return replace(message, from_ns=to_local_ns(message.from_ns), to_ns=to_local_ns(message.to_ns))
        case _:
            return message


def _shifted_calls(group: GroupCalls, to_local_ns: Callable[[int], int]) -> GroupCalls:
    return replace(group, calls=tuple(replace(call, at_ns=to_local_ns(call.at_ns)) for call in group.calls))
