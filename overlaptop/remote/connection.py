"""The connection to one host: a command's pipes that carry frames. A lost connection is retried."""

import random
import time
from collections.abc import Callable
from enum import Enum
from selectors import EVENT_READ, BaseSelector

from overlaptop.remote import failures
from overlaptop.remote.attempt import ConnectionAttempt
from overlaptop.remote.child import ChildProcess
from overlaptop.remote.failures import Failure
from overlaptop.remote.targets import Target
from overlaptop.remote.tunnel import Tunnel
from overlaptop.wire.joining import RelayJobs
from overlaptop.wire.schema import Message

BACK_OFF_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
REFUSED_PAUSE_S = 300.0
"""Pause after a working connection is refused: some hosts ban clients that retry too often."""
JITTER = 0.25  # Maximum random share of a pause, so that hosts lost together do not all reconnect together
BACK_OFF_RESET_S = 60.0  # After being up for this long, a connection starts with the shortest pause again
_OPEN_S = 1.0  # Interval at which the relay is told that a client is there, and the connection it wants


class ConnectionState(Enum):
    """State of a connection."""

    CONNECTING = "connecting"
    UP = "up"  # The host answers, with a relay or while it waits for a job
    DOWN = "down"  # It failed or was lost, and will be retried automatically
    FAILED = "failed"  # It failed, and a person has to act first. `Connection.retry` tries it again.


class Connection:
    """A connection to one host. No method waits. Use it from one thread.

    Call ``maintain`` several times a second. An event loop should also call ``receive`` whenever the
    selector finds something to read: round trips are then measured to the millisecond.
    """

    def __init__(
        self,
        target: Target,
        command: tuple[str, ...],
        selector: BaseSelector,
        *,
        may_start: Callable[[], bool] = lambda: True,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``command``: to run there (bootstrap.remote_command). ``selector``: receives the descriptors to
        read, with this object as data. ``may_start``: asked before an attempt.
        """
        self.target = target
        self.monotonic_s = monotonic_s
        self.jobs: RelayJobs | None = None
        """The relay's last list, kept while there is no relay. None before the first."""
        self.state = ConnectionState.CONNECTING
        self.since_s = monotonic_s()
        """Monotonic time since which it is up, or is not up. Retries do not change it."""
        self.reason = ""  # Of the state, as one line with a remedy if one is known. Empty if all is well.
        self.detail = ""  # Other output of the last attempt's process: lines of foreign text, usually none
        self.needs_terminal = False  # It failed because ssh could not ask the user something
        self.bytes_per_s: float | None = None  # In the last second. None without a relay.
        self.selector = selector
        self.tunnel = Tunnel(self.send, selector, self)
        self._command = command
        self._may_start = may_start
        self._attempt: ConnectionAttempt | None = None
        self._ending: list[ChildProcess] = []
        self._tries = 0
        self._due_s = self._open_due_s = float("-inf")
        self._meter = (0.0, 0)  # When `bytes_per_s` was last computed, and the bytes received by then
        self._watched: int | None = None
        self._closed = False

    @property
    def ready(self) -> bool:
        return self._attempt is not None and self._attempt.jobs is not None

    @property
    def settled(self) -> bool:
        return self.state is not ConnectionState.CONNECTING

    @property
    def logging_in(self) -> bool:
        """Whether the host has not answered the present attempt yet."""
        return self._attempt is not None and not self._attempt.reached

    @property
    def processes(self) -> tuple[ChildProcess, ...]:
        return (*self._ending, *(() if self._attempt is None else (self._attempt.process,)))

    def maintain(self) -> None:
        """Process received data and retry a lost connection. Never waits or raises."""
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
        self._update(self._attempt, now_s)  # a relay may have come and gone since the last call
        if failure is not None:
            self._lose(failure, now_s)
            return
        if now_s >= self._open_due_s and self.send(self.tunnel.wanted):
            self._open_due_s = now_s + _OPEN_S
        self._attempt.send_due(now_s)

    def receive(self) -> None:
        """Read the available data and pass it on. Never waits or raises."""
        if self._attempt is not None:
            self._attempt.receive(self.monotonic_s())
            if self.ready:
                self.tunnel.pump()
            self._watch()

    def send(self, message: Message) -> bool:
        """Send the relay a message. False if there is none, or it does not read. WireError as in encode."""
        return self._attempt is not None and self._attempt.send(message)

    def start(self, *, interactive: bool = False, on_stderr: Callable[[bytes], None] | None = None) -> None:
        """Start an attempt now, unless one is under way.

        ``interactive``: it may ask on the terminal. ``on_stderr``: as in ConnectionAttempt.
        """
        if self._attempt is not None or self._closed:
            return
        argv = self.target.argv(self._command, interactive=interactive)
        now_s = self.monotonic_s()
        try:
            process = ChildProcess(argv, interactive=interactive)
        except OSError as error:
            self._lose(failures.of_start(argv[0], error), now_s)
            return
        self._attempt = ConnectionAttempt(
            self.target, process, now_s, deliver=self.tunnel.receive, on_stderr=on_stderr
        )
        self.state, self.needs_terminal = ConnectionState.CONNECTING, False
        self._meter, self._open_due_s = (now_s, 0), now_s
        self._watch()

    def retry(self) -> None:
        """Retry a connection that is down or has failed, at the next poll without a pause."""
        if self.state in (ConnectionState.DOWN, ConnectionState.FAILED) and not self._closed:
            self.state, self._due_s = ConnectionState.DOWN, float("-inf")

    def close(self) -> None:
        """Give up for good. Never waits: the caller ends `processes`."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.process.close_input()
            self._ending.append(self._drop(self._attempt))
        self.state, self._due_s, self.bytes_per_s = ConnectionState.DOWN, float("inf"), None

    def _update(self, attempt: ConnectionAttempt, now_s: float) -> None:
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
        # A connection that worked may work again: a booting host refuses keys until its homes are mounted.
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
        self._attempt = None
        self._watch()
        self.relay_lost()
        return attempt.process

    def relay_lost(self) -> None:
        """Discard the relay's reports and its connection to a hub."""
        self.tunnel.leave()
        self.tunnel.closed = None

    def _watch(self) -> None:
        """Register the process's output with the selector while it should be read."""
        attempt = self._attempt
        wanted = attempt.process.out_fd if attempt is not None and attempt.readable else None
        if wanted != self._watched:
            if self._watched is not None:
                self.selector.unregister(self._watched)
            if wanted is not None:
                self.selector.register(wanted, EVENT_READ, self)
            self._watched = wanted
