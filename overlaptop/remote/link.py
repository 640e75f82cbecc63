"""One host's jobs, and the link to the hub of one of them, over a line."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from overlaptop.remote.connection import Connection, ConnectionState
from overlaptop.wire.codec import encode
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.endpoints import JobRecord
from overlaptop.wire.knobs import Search
from overlaptop.wire.messages import (
    PROTOCOL_VERSION,
    Command,
    HubStatus,
    Join,
    Message,
    Notice,
    RankEnd,
    StepDetail,
    StepTotals,
    Welcome,
)
from overlaptop.wire.relaying import (
    RelayHello,
    RelayJobs,
    RelayLaunch,
    RelayLaunchStatus,
    RelayLimit,
    RelayLink,
    RelaySelect,
    RemoteJob,
)

if TYPE_CHECKING:
    from overlaptop.wire.links import Link

_JOIN_S = 1.0
_MAX_WAITING = 1 << 14
"""Messages for a link that nobody reads, the newest."""
MAX_SAMPLE_CHARS = 1 << 12
"""Of the reasons in one sample of a GPU: each has its own, and a hundred samples of each rank are kept."""


class RemoteLink:
    """A link (wire.links.Link) to a hub of another host. It lives through drops of its line.

    While the line is down nothing is known of the hub: it counts as alive, and what is said goes nowhere. A
    line that has come back is told again which job is meant, and the hub's history comes again.
    """

    def __init__(self, host: RemoteHost, record: JobRecord) -> None:
        self._host = host
        self._job = record.job
        self._ranks: tuple[int, ...] = ()
        self._waiting: deque[Message] = deque(maxlen=_MAX_WAITING)
        self._told_relay = 0
        """The relay (Connection.relays) that was told the job; 0: none yet."""
        self._begun = False
        """It has answered that: what comes from now on is this job's hub's."""
        self._join_due_s = 0.0
        self._heard_at_s: float | None = None
        self._speaks = False
        """The hub has said something over the line as it is now."""
        self._dropped_before = host.line.dropped
        self.fate: RelayLink | None = None
        """The newest word on the hub's process."""

    @property
    def job(self) -> str:
        """Key of the job."""
        return self._job

    @property
    def alive(self) -> bool:
        """As Link says, as far as the far end has told."""
        return self.fate is None or self.fate.alive

    @property
    def last_heard_s(self) -> float | None:
        """As Link says."""
        return None if self._heard_at_s is None else self._host.monotonic_s() - self._heard_at_s

    @property
    def dropped(self) -> int:
        """As Link says, and what the far end did not pass on, since this link was opened."""
        return self._host.line.dropped - self._dropped_before

    def poll(self) -> list[Message]:
        """As Link says. Times are Unix times of this machine's clock."""
        self._host.poll()
        self.speak()
        messages = list(self._waiting)
        self._waiting.clear()
        return messages

    def watch(self, ranks: Collection[int]) -> None:
        """As Link says."""
        wanted = tuple(sorted(set(ranks)))
        if wanted != self._ranks:
            self._ranks = wanted
            self._join_due_s = 0.0

    def send(self, command: Command) -> bool:
        """As Link says."""
        return self._say(command)

    def hold(self, search: Search) -> bool:
        """As Link says."""
        return self._say(search)

    def close(self) -> None:
        """As Link says. The line stays."""
        self._waiting.clear()
        self._host.release(self)

    def hear(self, message: Message) -> None:
        """Takes what the far end passes on, in its order."""
        if isinstance(message, RelayLink):
            if message.job == self._job:
                self._begun, self.fate = True, message
        elif self._begun:
            self._heard_at_s, self._speaks = self._host.monotonic_s(), True
            if self._is_wanted(message):
                self._waiting.append(_shifted(message, self._host.line.clock.to_near_ns))

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

    def speak(self) -> None:
        """Says what is to be said now: which job is meant, and once a second that somebody is there."""
        line = self._host.line
        if not line.ready:
            self._speaks = False
            return
        if self._told_relay != line.relays:
            # The offset first: the history that follows is to be shifted right.
            if line.clock.offset_ns is None or not line.say(RelaySelect(self._job)):
                return
            self._told_relay, self._begun, self._speaks = line.relays, False, False
            self._join_due_s = 0.0
        now_s = self._host.monotonic_s()
        if now_s >= self._join_due_s and line.say(Join(PROTOCOL_VERSION, self._ranks)):
            self._join_due_s = now_s + _JOIN_S

    def _say(self, message: Command | Search) -> bool:
        encode(message)  # what is not allowed is an error whether or not there is a line
        self.speak()
        return self._speaks and self._host.line.say(message)


class RemoteHost:
    """One host behind its line, as JobSession sees it: its jobs, and the link to one of them at a time."""

    def __init__(self, line: Connection, monotonic_s: Callable[[], float] | None = None) -> None:
        """``monotonic_s``: the line's, unless told otherwise."""
        self.line = line
        self.monotonic_s = monotonic_s or line.monotonic_s
        self._jobs: tuple[RemoteJob, ...] = ()
        self._jobs_note = ""
        self._known = False
        self._link: RemoteLink | None = None
        self._limit: RelayLimit | None = None
        self._told_relay = 0
        self._owner = secrets.token_hex(8)
        """By which the relay of a later line finds what was started over this one."""
        self._order: RelayLaunch | None = None
        """The newest."""
        self._order_status: RelayLaunchStatus | None = None
        self._ordered_relay = 0
        """That was told it (Connection.relays)."""

    @property
    def name(self) -> str:
        """As the user named it."""
        return self.line.target.name

    @property
    def hello(self) -> RelayHello | None:
        """Who answered last; None before anybody did."""
        return self.line.hello

    @property
    def up(self) -> bool:
        """Whether there is a relay to speak to."""
        return self.line.ready

    @property
    def connecting(self) -> bool:
        """Whether it has not been had yet, and is being tried."""
        return not self.up and self.line.hello is None and self.line.state is not ConnectionState.FAILED

    @property
    def readonly(self) -> bool:
        """Whether the relay there changes nothing, whatever it is told."""
        return self.hello is not None and self.hello.readonly

    @property
    def since_s(self) -> float:
        """Monotonic time since which the line is up, or is not."""
        return self.line.since_s

    @property
    def note(self) -> str:
        """Why there is no relay, or why its list of jobs may be wrong, in one line; mostly empty."""
        return self._jobs_note if self.up else self.line.reason

    @property
    def detail(self) -> str:
        """More of why there is none, in many lines of foreign text; mostly empty."""
        return "" if self.up else self.line.detail

    @property
    def offset_ns(self) -> int | None:
        """The host's clock less this one; None where it is not known yet."""
        return self.line.clock.offset_ns

    @property
    def residual_ns(self) -> int | None:
        """By how much `offset_ns` may be wrong, either way."""
        return self.line.clock.residual_ns

    @property
    def bytes_per_s(self) -> float | None:
        """Received during the last second or so."""
        return self.line.bytes_per_s

    @property
    def known(self) -> bool:
        """Whether the host has ever told its jobs."""
        return self._known

    def poll(self) -> None:
        """Takes in what has come. Never waits, never raises."""
        for message in self.line.poll():
            match message:
                case RelayJobs():
                    self._jobs, self._jobs_note, self._known = message.jobs, message.note, True
                case RelayLaunchStatus():
                    if self._order is not None and message.number == self._order.number:
                        self._order_status = message
                case _:
                    if self._link is not None:
                        self._link.hear(message)
        new = self.line.ready and self._told_relay != self.line.relays
        if new and (self._limit is None or self.line.say(self._limit)):
            self._told_relay = self.line.relays
        self._order_again()

    def _order_again(self) -> None:
        """Ask the relay of a line that has come back for what was ordered over the one before."""
        order, status, line = self._order, self._order_status, self.line
        if order is None or not line.ready or self._ordered_relay == line.relays:
            return
        if (status is None or not status.ended) and line.say(replace(order, again=True)):
            self._order_status, self._ordered_relay = None, line.relays

    def list_jobs(self) -> Sequence[JobRecord]:
        """The jobs that the host told of last, newest first, also while the line is down."""
        self.poll()
        to_near_ns = self.line.clock.to_near_ns
        return [replace(job.record, started_ns=to_near_ns(job.started_ns)) for job in self._jobs]

    def open_link(self, record: JobRecord) -> Link:
        """The link to the hub of this job, in place of the one before."""
        self._link = RemoteLink(self, record)
        self._link.speak()
        return self._link

    def is_gone(self, record: JobRecord) -> bool:
        """Whether none of the job's processes is left; False while the line is down."""
        link = self._link
        return (
            self.up
            and link is not None
            and link.job == record.job
            and link.fate is not None
            and link.fate.gone
        )

    def release(self, link: RemoteLink) -> None:
        """The link is not wanted any more."""
        if self._link is link:
            self._link = None
            self.line.say(RelaySelect(""))

    def limit(self, bytes_per_s: int, hz: float) -> None:
        """How much the line may carry, now and when it comes back. WireError where RelayLimit is not so."""
        self._limit = RelayLimit(bytes_per_s, hz)
        encode(self._limit)
        self._told_relay = 0

    def order(self, words: Sequence[str], nproc: int | None = None) -> bool:
        """Start a bundled workload there, or with no words end the one that runs; False: there is no relay.

        What becomes of it is told in `order_status`. Raises WireError for one that is not allowed.
        """
        number = 1 if self._order is None else self._order.number + 1
        order = RelayLaunch(number, tuple(words), nproc, self._owner)
        self._order_again()  # first: by it the relay finds the job that this one ends
        if not self.line.say(order):
            return False
        self._order, self._order_status, self._ordered_relay = order, None, self.line.relays
        return True

    @property
    def order_status(self) -> RelayLaunchStatus | None:
        """What became of the newest order, as far as the relay that there is now has told."""
        status = self._order_status
        current = self._ordered_relay == self.line.relays
        return status if current or (status is not None and status.ended) else None

    def close(self) -> None:
        """Gives the line up."""
        self.line.close()


def _shifted(message: Message, to_near_ns: Callable[[int], int]) -> Message:
    """The message with its Unix times in this machine's clock."""
    match message:
        case StepTotals() | StepDetail():
            return replace(message, start_ns=to_near_ns(message.start_ns))
        case Notice() | RankEnd() | Command() | HubStatus() | DeviceSample():
            return replace(message, at_ns=to_near_ns(message.at_ns))
        case Welcome():
            return replace(message, started_ns=to_near_ns(message.started_ns))
        case _:
            return message
