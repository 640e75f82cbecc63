"""One host's jobs, and the connection to the hub of one of them, over the connection to that host."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from selectors import EVENT_READ
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from overlaptop.jobs.credit import DEFAULT_BYTES_PER_S, Credit
from overlaptop.jobs.record import JobRecord
from overlaptop.remote.clock import ClockOffset
from overlaptop.remote.connection import Connection, ConnectionState
from overlaptop.remote.targets import Target
from overlaptop.wire.codec import encode
from overlaptop.wire.commands import Command
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import (
    GroupCalls,
    HubStatus,
    Notice,
    Pong,
    RankEnd,
    StackSamples,
    Standstill,
    StepDetail,
    StepTotals,
    Welcome,
)
from overlaptop.wire.schema import Message

if TYPE_CHECKING:
    from overlaptop.jobs.hub_connection import HubConnection
    from overlaptop.jobs.hub_socket import HubSocket

_MAX_WAITING = 1 << 14
"""Messages of a hub that nobody has taken, the newest."""
_REJOIN_S = 0.5
"""At least, between two connections to a hub that closes them, or is not there."""
MAX_SAMPLE_CHARS = 1 << 12
"""Of the texts in one sample of a GPU: each has its own, and a hundred samples of each rank are kept."""


class RemoteHubConnection:
    """A HubConnection to a hub of another host. It outlives the connection to that host.

    Without a connection nothing is known of the hub: it counts as alive, and what is sent goes nowhere.
    Over each new one the hub is joined anew, and its history comes again.
    """

    def __init__(self, host: RemoteHost, job: str) -> None:
        self._host = host
        self.job = job
        self._socket: HubSocket | None = None
        """While there is a relay."""
        self._descriptor = -1
        self._joined_s = float("-inf")
        self._ranks: frozenset[int] = frozenset()
        self._bursts = 0
        self._untaken: deque[Message] = deque(maxlen=_MAX_WAITING)
        self._received_at_s: float | None = None
        self._dropped = 0

    @property
    def alive(self) -> bool:
        """As HubConnection says, as far as the relay has reported."""
        closed = self._host.tunnel.closed
        return closed is None or closed.alive

    @property
    def last_received_s(self) -> float | None:
        """As HubConnection says."""
        return None if self._received_at_s is None else self._host.monotonic_s() - self._received_at_s

    @property
    def dropped(self) -> int:
        """As HubConnection says."""
        return self._dropped + (0 if self._socket is None else self._socket.dropped)

    def poll(self) -> list[Message]:
        """As HubConnection says. Times are Unix times of this machine's clock."""
        self.receive()
        messages, self._untaken = list(self._untaken), deque(maxlen=_MAX_WAITING)
        return messages

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """As HubConnection says."""
        self._ranks, self._bursts = frozenset(ranks), bursts
        if self._socket is not None:
            self._socket.watch(ranks, bursts)

    def send(self, command: Command) -> bool:
        """As HubConnection says."""
        encode(command)  # what is not allowed is an error whether or not there is a connection
        return self._socket is not None and self.alive and self._socket.send(command)

    def close(self) -> None:
        """As HubConnection says. The connection to the host stays."""
        self._untaken.clear()
        self.disconnect()
        self._host.release(self)

    def receive(self) -> None:
        """Takes what has come, at the time at which it does."""
        if self._socket is not None:
            for message in self._socket.poll():
                self._received_at_s = self._host.monotonic_s()
                if self._is_wanted(message):
                    self._untaken.append(_shifted(message, self._host.clock.to_local_ns))
        over = self._socket is None or not self._host.tunnel.wanted.job
        if over and self._host.ready and self._host.monotonic_s() - self._joined_s > _REJOIN_S:
            with suppress(OSError):  # no folder or descriptor for a socket: tried again
                self._connect()

    def disconnect(self) -> None:
        """There is no relay any more."""
        if self._socket is not None:
            if self._host.selector is not None:
                self._host.selector.unregister(self._descriptor)
            self._dropped += self._socket.dropped
            self._socket.close()
            self._socket = None
            self._host.tunnel.leave()

    def _connect(self) -> None:
        # zmq takes 40 ms to import: not before there is somebody to talk to.
        from overlaptop.jobs.hub_socket import HubSocket

        self.disconnect()
        self._joined_s = self._host.monotonic_s()
        credit = Credit(time.monotonic, self._host.limit_bytes_per_s)
        path = self._host.tunnel.open(self.job)
        self._socket = HubSocket(path, credit=credit, on_pong=self._host.compare_clocks)
        self._socket.watch(self._ranks, self._bursts)
        if self._host.selector is not None:
            self._descriptor = self._socket.descriptor
            self._host.selector.register(self._descriptor, EVENT_READ, self._host)

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


class RemoteHost(Connection):
    """One host as JobSession sees it: its jobs, and the hub of one at a time, over one connection."""

    limit_bytes_per_s = DEFAULT_BYTES_PER_S
    """How much a hub there may send."""

    def __init__(self, target: Target, command: tuple[str, ...], **options: Any) -> None:
        """All as Connection has it."""
        super().__init__(target, command, **options)
        self.clock = ClockOffset()
        """Measured over the connection to a hub there."""
        self._hub: RemoteHubConnection | None = None

    @property
    def name(self) -> str:
        """As the user named it."""
        return self.target.name

    @property
    def known(self) -> bool:
        """The host has listed its jobs."""
        return self.jobs is not None

    @property
    def connecting(self) -> bool:
        """Whether it has not been reached yet, and is being tried."""
        return not self.known and self.state is not ConnectionState.FAILED

    @property
    def readonly(self) -> bool:
        """Whether hubs there take no command over this connection."""
        return self.jobs is not None and self.jobs.readonly

    @property
    def note(self) -> str:
        """Why there is no relay, or why its list of jobs may be wrong, in one line; mostly empty."""
        return self.jobs.note if self.ready and self.jobs is not None else self.reason

    def receive(self) -> None:
        """As Connection has it, and what has come from the hub."""
        super().receive()
        if self._hub is not None:
            self._hub.receive()

    def list_jobs(self) -> Sequence[JobRecord]:
        """The jobs that the host listed last, newest first, also while there is no connection."""
        return [
            replace(JobRecord.of_remote(job), started_ns=self.clock.to_local_ns(job.started_ns))
            for job in (() if self.jobs is None else self.jobs.jobs)
        ]

    def open_hub(self, record: JobRecord) -> HubConnection:
        """The connection to the hub of this job, in place of the one before."""
        if self._hub is not None:
            self._hub.close()
        self._hub = RemoteHubConnection(self, record.job)
        self._hub.receive()
        return self._hub

    def is_gone(self, record: JobRecord) -> bool:
        """Whether none of the job's processes is left; False while there is no connection."""
        closed = self.tunnel.closed
        wanted = self._hub is not None and self._hub.job == record.job
        return wanted and closed is not None and closed.gone

    def release(self, hub: RemoteHubConnection) -> None:
        """The connection to a hub is not wanted any more."""
        if self._hub is hub:
            self._hub = None
            self.tunnel.closed = None

    def compare_clocks(self, pong: Pong, back_ns: int) -> None:
        """Takes one round trip into account."""
        self.clock.add(pong.sent_ns, pong.received_ns, pong.answered_ns, back_ns)

    def relay_lost(self) -> None:
        """As Connection has it."""
        super().relay_lost()
        if self._hub is not None:
            self._hub.disconnect()


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
