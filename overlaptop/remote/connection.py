"""The connection to one host: a command's pipes that carry frames. It is retried whenever it was lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from enum import Enum
from selectors import EVENT_READ, BaseSelector

from overlaptop.remote import failures
from overlaptop.remote.attempt import ConnectionAttempt
from overlaptop.remote.child import ChildProcess, end_all, uninterrupted
from overlaptop.remote.failures import Failure
from overlaptop.remote.targets import Target
from overlaptop.remote.tunnel import Tunnel
from overlaptop.wire.relaying import RelayJobs
from overlaptop.wire.schema import Message

BACK_OFF_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
REFUSED_PAUSE_S = 300.0
"""Of a connection that has worked and is refused now: some hosts ban who tries too often."""
JITTER = 0.25
"""Of a pause, at most: hosts that were lost together do not come back together."""
BACK_OFF_RESET_S = 60.0
"""A connection that was up for so long begins with the shortest pause again."""
_OPEN_S = 1.0
"""So often the relay is told that somebody is there, and what is wanted."""
_CLOSE_PATIENCE_S = 0.5


class ConnectionState(Enum):
    """How a connection is."""

    CONNECTING = "connecting"
    """It is being tried."""
    UP = "up"
    """The host answers, with a relay or while it waits for a job."""
    DOWN = "down"
    """It failed or was lost. It will be tried again by itself."""
    FAILED = "failed"
    """It failed, and a person has to do something first: `Connection.retry` tries it again."""


class Connection:
    """See the module. Nothing in it waits but `close`; to be used from one thread.

    ``maintain`` has to be called some times a second. An event loop calls ``receive`` besides, whenever the
    selector finds something to read: round trips are then measured to the millisecond.
    """

    def __init__(
        self,
        target: Target,
        command: tuple[str, ...],
        *,
        may_start: Callable[[], bool] = lambda: True,
        selector: BaseSelector | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``command``: to be run there (bootstrap.remote_command). ``may_start``: asked before an attempt.

        ``selector`` gets what can be read from, with this as data.
        """
        self.target = target
        self.monotonic_s = monotonic_s
        self.jobs: RelayJobs | None = None
        """What the relay listed last, also while there is none; None before there was one."""
        self.state = ConnectionState.CONNECTING
        self.since_s = monotonic_s()
        """Monotonic time since which it is up, or is not, however often it has been tried meanwhile."""
        self.reason = ""
        """Why it is so, in one line, with what to do where that is known; empty: all is well."""
        self.detail = ""
        """What the last attempt's process wrote besides: many lines of foreign text, mostly empty."""
        self.needs_terminal = False
        """It failed since ssh could not ask the user something."""
        self.bytes_per_s: float | None = None
        """Received during the last second or so; None where there is no relay."""
        self.selector = selector
        self.tunnel = Tunnel(self.send, selector, self)
        """To one hub there."""
        self._command = command
        self._may_start = may_start
        self._attempt: ConnectionAttempt | None = None
        self._ending: list[ChildProcess] = []
        self._tries = 0
        self._due_s = self._open_due_s = float("-inf")
        self._meter = (0.0, 0)
        """When `bytes_per_s` was reckoned last, and what had come by then."""
        self._watched: int | None = None
        self._closed = False

    # How it is

    @property
    def ready(self) -> bool:
        """Whether there is a relay to send to."""
        return self._attempt is not None and self._attempt.jobs is not None

    @property
    def settled(self) -> bool:
        """Whether an attempt has come to something: it failed, or is up."""
        return self.state is not ConnectionState.CONNECTING

    @property
    def logging_in(self) -> bool:
        """Whether an attempt is under way that the host has not answered yet."""
        return self._attempt is not None and not self._attempt.reached

    @property
    def processes(self) -> tuple[ChildProcess, ...]:
        """Its processes, for whoever waits for them or ends them."""
        return (*self._ending, *(() if self._attempt is None else (self._attempt.process,)))

    # What it does

    def maintain(self) -> None:
        """Keeps it going: takes in what has come, retries what was lost. Never waits or raises."""
        now_s = self.monotonic_s()
        self._ending = [process for process in self._ending if process.reap() is None]
        for process in self._ending:
            process.kill()
        if self._attempt is None:
            if self.state is not ConnectionState.FAILED and now_s >= self._due_s and self._may_start():
                self.start()
            return
        self.receive()
        failure = self._attempt.failure(now_s)
        self._update(self._attempt, now_s)  # a relay may have come and gone since the last time
        if failure is not None:
            self._lose(failure, now_s)
            return
        if now_s >= self._open_due_s and self.send(self.tunnel.wanted):
            self._open_due_s = now_s + _OPEN_S
        self._attempt.send_due(now_s)

    def receive(self) -> None:
        """Takes in what can be read now, and passes on what is to be. Never waits or raises."""
        if self._attempt is not None:
            if not self.tunnel.is_full:
                self._attempt.receive(self.monotonic_s())
            if self.ready:
                self.tunnel.pump()
            self._watch()

    def send(self, message: Message) -> bool:
        """Sends the relay a message; False: there is none, or it does not read. WireError as encode has."""
        return self._attempt is not None and self._attempt.send(message)

    def start(self, *, interactive: bool = False, echo: Callable[[bytes], None] | None = None) -> None:
        """Tries it now, if no attempt is under way.

        ``interactive``: it may ask the user on the terminal. ``echo`` gets what it writes to its standard
        error until the host is reached.
        """
        if self._attempt is not None or self._closed:
            return
        argv = self.target.argv(self._command, interactive=interactive)
        now_s = self.monotonic_s()
        try:
            with uninterrupted():  # whoever is interrupted ends `processes`
                process = ChildProcess(argv, interactive=interactive)
                self._attempt = ConnectionAttempt(
                    self.target, process, now_s, deliver=self.tunnel.receive, echo=echo
                )
        except OSError as error:
            self._lose(failures.of_start(argv[0], error), now_s)
            return
        self.state, self.needs_terminal = ConnectionState.CONNECTING, False
        self._meter, self._open_due_s = (now_s, 0), now_s
        self._watch()

    def retry(self) -> None:
        """Tries a connection that is down or has failed at the next poll, without any pause."""
        if self.state in (ConnectionState.DOWN, ConnectionState.FAILED) and not self._closed:
            self.state, self._due_s = ConnectionState.DOWN, float("-inf")

    def abandon(self) -> None:
        """Gives it up for good: nothing is started any more. `processes` are the caller's to end."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.process.close_input()
            self._ending.append(self._drop(self._attempt))
        self.state, self._due_s, self.bytes_per_s = ConnectionState.DOWN, float("inf"), None

    def close(self) -> None:
        """Gives it up, and comes back when nothing of it is left: after 1.5 s at most."""
        self.abandon()
        end_all(self._ending, _CLOSE_PATIENCE_S)
        self._ending.clear()
        self.tunnel.leave()

    # Changes of state

    def _update(self, attempt: ConnectionAttempt, now_s: float) -> None:
        """Takes over what the attempt has found out."""
        if not attempt.up:
            return
        if self.state is not ConnectionState.UP:
            self.state, self.since_s = ConnectionState.UP, now_s
        self.reason, self.detail = attempt.waiting, ""
        if attempt.jobs is None:
            return
        self.jobs = attempt.jobs
        if now_s - self.since_s >= BACK_OFF_RESET_S:
            self._tries = 0
        began_s, began_bytes = self._meter
        if now_s - began_s >= 1.0:
            self.bytes_per_s = (attempt.frame_bytes - began_bytes) / (now_s - began_s)
            self._meter = (now_s, attempt.frame_bytes)

    def _lose(self, failure: Failure, now_s: float) -> None:
        if self.state is ConnectionState.UP:
            self.since_s = now_s
        if self._attempt is not None:
            self.detail = self._attempt.foreign_text
            process = self._drop(self._attempt)
            process.kill()
            if process.reap() is None:
                self._ending.append(process)
        reason, pause_s = failure.reason, BACK_OFF_S[min(self._tries, len(BACK_OFF_S) - 1)]
        # What has worked may work again: a host that boots refuses keys until its homes are mounted.
        worked = self.jobs is not None
        if failure.lasting and worked:
            pause_s = REFUSED_PAUSE_S
            reason += "; where ssh has to ask, start overlaptop again" * failure.needs_terminal
        self.state = ConnectionState.FAILED if failure.lasting and not worked else ConnectionState.DOWN
        self.needs_terminal = failure.needs_terminal and self.state is ConnectionState.FAILED
        self.reason, self.bytes_per_s = reason, None
        self._tries += 1
        self._due_s = now_s + pause_s * (1 + JITTER * random.random())  # noqa: S311 # no secret

    def _drop(self, attempt: ConnectionAttempt) -> ChildProcess:
        """Drops an attempt. Its process is the caller's to end."""
        self._attempt = None
        self._watch()
        self.relay_lost()
        return attempt.process

    def relay_lost(self) -> None:
        """What the relay has reported, and its connection to a hub, are of the past."""
        self.tunnel.leave()
        self.tunnel.closed = None

    def _watch(self) -> None:
        """Has the selector look at exactly what is to be read."""
        if self.selector is None:
            return
        attempt = self._attempt
        reads = attempt is not None and attempt.readable and not self.tunnel.is_full
        wanted = attempt.process.out_fd if attempt is not None and reads else None
        if wanted != self._watched:
            if self._watched is not None:
                self.selector.unregister(self._watched)
            if wanted is not None:
                self.selector.register(wanted, EVENT_READ, self)
            self._watched = wanted
