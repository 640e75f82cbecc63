"""The line to one host: a command's pipes that carry frames, had again whenever it was lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from enum import Enum
from selectors import EVENT_READ, BaseSelector

from overlaptop.remote import failures
from overlaptop.remote.attempt import SILENT_S, ConnectionAttempt
from overlaptop.remote.child import ChildProcess, end_all, uninterrupted
from overlaptop.remote.clock import ClockOffset
from overlaptop.remote.failures import Failure
from overlaptop.remote.targets import Target
from overlaptop.wire.messages import Message
from overlaptop.wire.relaying import RelayHello

BACK_OFF_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
REFUSED_PAUSE_S = 300.0
"""Of a line that has worked and is refused now: some hosts ban who tries too often."""
JITTER = 0.25
"""Of a pause, at most: hosts that were lost together do not come back together."""
FORGIVEN_S = 60.0
"""A line that was up for so long begins with the shortest pause again."""
_GAP_S = 2.0
"""Between two looks. After a longer one (a laptop that slept) silence is measured anew."""
_LOOKED_S = 0.01
"""With a selector, whoever has just looked need not look again: a dashboard's tick polls three times."""
_CLOSE_PATIENCE_S = 0.5


class ConnectionState(Enum):
    """How a line is."""

    CONNECTING = "connecting"
    """It is being tried."""
    UP = "up"
    """The host answers, with a relay or while it waits for a job."""
    DOWN = "down"
    """It could not be had, or was lost. It will be tried again by itself."""
    FAILED = "failed"
    """It could not be had, and a person has to do something first: `Connection.retry` tries it again."""


class Connection:
    """See the module. Nothing in it waits but `close`; to be used from one thread.

    ``poll`` has to be called some times a second, by whoever wants what comes. An event loop may call
    ``receive`` besides, whenever something can be read: round trips are then measured to the millisecond.
    """

    def __init__(
        self,
        target: Target,
        words: tuple[str, ...],
        *,
        may_start: Callable[[], bool] = lambda: True,
        selector: BaseSelector | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        clock_ns: Callable[[], int] = time.time_ns,
        seed: int | None = None,
    ) -> None:
        """``words``: the far command (bootstrap.far_words). ``may_start``: asked before each try.

        ``selector`` gets what can be read from, with this line as data. ``seed``: of the pauses' jitter.
        """
        self.target = target
        self.clock = ClockOffset()
        self.monotonic_s = monotonic_s
        self.hello: RelayHello | None = None
        """Of the relay that was spoken to last; None before there was one."""
        self.relays = 0
        """How many have said hello: another one knows nothing of what the one before was told."""
        self.bytes_per_s: float | None = None
        """Received during the last second or so; None where there is no relay."""
        self._words = words
        self._may_start = may_start
        self._selector = selector
        self._clock_ns = clock_ns
        self._jitter = random.Random(seed)  # noqa: S311 # no secret
        self._state = ConnectionState.CONNECTING
        self._reason = self._detail = ""
        self._asks = False
        self._since_s = self._polled_s = monotonic_s()
        self._call: ConnectionAttempt | None = None
        self._dying: list[ChildProcess] = []
        self._left: list[Message] = []
        """What has come before the line was lost, and was not taken yet."""
        self._tries = 0
        self._due_s = float("-inf")
        self._dropped_before = 0
        self._meter = (0.0, 0)
        """When `bytes_per_s` was reckoned last, and what had come by then."""
        self._watched: int | None = None
        self._closed = False

    # How it is

    @property
    def state(self) -> ConnectionState:
        """How it is now."""
        return self._state

    @property
    def since_s(self) -> float:
        """Monotonic time since which it is up, or is not, however often it has been tried meanwhile."""
        return self._since_s

    @property
    def reason(self) -> str:
        """Why it is so, in one line, with what to do where that is known; empty: all is well."""
        return self._reason

    @property
    def detail(self) -> str:
        """What the last try's process wrote besides: many lines of foreign text, mostly empty."""
        return self._detail

    @property
    def ready(self) -> bool:
        """Whether a relay is there to be spoken to."""
        return self._call is not None and self._call.hello is not None

    @property
    def settled(self) -> bool:
        """Whether a try has come to something: it failed, or is up and the host's clock is known, or it has
        been up for so long that the clock may never be.
        """
        measured = self._call is None or self._call.hello is None or self._call.measured
        patient = self.monotonic_s() - self._since_s < SILENT_S
        return self._state is not ConnectionState.CONNECTING and (measured or not patient)

    @property
    def knocking(self) -> bool:
        """Whether a try is under way to which the host has not said a word yet."""
        return self._call is not None and not self._call.reached

    @property
    def asks(self) -> bool:
        """Whether it failed since ssh could not ask the user something."""
        return self._state is ConnectionState.FAILED and self._asks

    @property
    def retry_in_s(self) -> float | None:
        """Seconds until it is tried again; None where it is not waiting for that."""
        return max(0.0, self._due_s - self.monotonic_s()) if self._state is ConnectionState.DOWN else None

    @property
    def every(self) -> int:
        """As in RelayPong: which steps the far end passes on; 1: all."""
        return 1 if self._call is None else self._call.every

    @property
    def dropped(self) -> int:
        """Frames that were no messages, and those that the far ends did not pass on."""
        call = self._call
        return self._dropped_before + (0 if call is None else call.bad_frames + call.dropped_there)

    @property
    def carriers(self) -> tuple[ChildProcess, ...]:
        """Its processes, for whoever waits for them or ends them."""
        return (*self._dying, *(() if self._call is None else (self._call.carrier,)))

    # What it does

    def poll(self) -> list[Message]:
        """What has come since the last call, oldest first. Keeps the line going; never waits or raises."""
        # A clock that stands still does not tell whether it has been looked at.
        if self._selector is None or not 0.0 < self.monotonic_s() - self._polled_s < _LOOKED_S:
            self.keep()
        messages, self._left = self._left, []
        if self._call is not None:
            messages += self._call.take()
        self._watch()
        return messages

    def keep(self) -> None:
        """As `poll`, but what has come stays for that."""
        now_s = self.monotonic_s()
        slept, self._polled_s = now_s - self._polled_s > _GAP_S, now_s
        self._dying = [carrier for carrier in self._dying if carrier.bury() is None]
        for carrier in self._dying:
            carrier.kill()
        if self._call is None:
            if self._state is not ConnectionState.FAILED and now_s >= self._due_s and self._may_start():
                self.start()
            return
        self.receive()
        if slept:
            self._call.forgive(now_s)
        if (failure := self._call.why_over(now_s)) is not None:
            self._lose(failure, now_s)
        else:
            self._look(self._call, now_s)
            self._call.speak(now_s, self._clock_ns())

    def receive(self) -> None:
        """Takes in what can be read now. Never waits or raises."""
        if self._call is not None:
            self._call.receive(self.monotonic_s(), self._clock_ns)
            self._watch()

    def say(self, message: Message) -> bool:
        """Gives the relay a message; False: there is none, or it does not read. WireError as encode has."""
        return self._call is not None and self._call.say(message)

    def start(self, *, interactive: bool = False, echo: Callable[[bytes], None] | None = None) -> None:
        """Tries it now, if no try is under way.

        ``interactive``: it may ask the user on the terminal. ``echo`` gets what it writes to its standard
        error until the host is reached.
        """
        if self._call is not None or self._closed:
            return
        argv = self.target.argv(self._words, interactive=interactive)
        now_s = self.monotonic_s()
        try:
            with uninterrupted():  # whoever is interrupted ends `carriers`
                carrier = ChildProcess(argv, interactive=interactive)
                self._call = ConnectionAttempt(self.target, carrier, self.clock, now_s, echo=echo)
        except OSError as error:
            self._lose(failures.of_start(argv[0], error), now_s)
            return
        self._state, self._asks = ConnectionState.CONNECTING, False
        self._watch()

    def retry(self) -> None:
        """Tries a line that is down or has failed at the next poll, without any pause."""
        if self._state in (ConnectionState.DOWN, ConnectionState.FAILED) and not self._closed:
            self._state, self._due_s = ConnectionState.DOWN, float("-inf")

    def hang_up(self) -> None:
        """Gives the line up for good: nothing is started any more. `carriers` are the caller's to end."""
        self._closed = True
        if self._call is not None:
            self._call.carrier.hang_up()
            self._dying.append(self._drop(self._call))
        self._state, self._due_s, self.bytes_per_s = ConnectionState.DOWN, float("inf"), None

    def close(self) -> None:
        """Gives the line up, and comes back when nothing of it is left: after 1.5 s at most."""
        self.hang_up()
        end_all(self._dying, _CLOSE_PATIENCE_S)
        self._dying.clear()

    # Its ups and downs

    def _look(self, call: ConnectionAttempt, now_s: float) -> None:
        """Takes over what the call has come to know."""
        if not call.up:
            return
        if self._state is not ConnectionState.UP:
            self._state, self._since_s = ConnectionState.UP, now_s
        self._reason, self._detail = call.waiting, ""
        if call.hello is None:
            return
        if call.hello is not self.hello:
            self.hello = call.hello
            self.relays += 1
            self._meter = (now_s, call.frame_bytes)
        if now_s - self._since_s >= FORGIVEN_S:
            self._tries = 0
        began_s, began_bytes = self._meter
        if now_s - began_s >= 1.0:
            self.bytes_per_s = (call.frame_bytes - began_bytes) / (now_s - began_s)
            self._meter = (now_s, call.frame_bytes)

    def _lose(self, failure: Failure, now_s: float) -> None:
        if self._state is ConnectionState.UP:
            self._since_s = now_s
        if self._call is not None:
            self._detail = self._call.words
            carrier = self._drop(self._call)
            carrier.kill()
            if carrier.bury() is None:
                self._dying.append(carrier)
        reason, pause_s = failure.reason, BACK_OFF_S[min(self._tries, len(BACK_OFF_S) - 1)]
        # What has worked may work again: a host that boots refuses keys until its homes are mounted.
        worked = self.relays > 0
        if failure.lasting and worked:
            pause_s = REFUSED_PAUSE_S
            reason += "; where ssh has to ask, start overlaptop again" * failure.asks
        self._state = ConnectionState.FAILED if failure.lasting and not worked else ConnectionState.DOWN
        self._reason, self._asks, self.bytes_per_s = reason, failure.asks, None
        self._tries += 1
        self._due_s = now_s + pause_s * (1 + JITTER * self._jitter.random())

    def _drop(self, call: ConnectionAttempt) -> ChildProcess:
        """Takes leave of a call; what it had received stays. Its process is the caller's to end."""
        self._left += call.take()
        self._dropped_before += call.bad_frames + call.dropped_there
        self._call = None
        self._watch()
        return call.carrier

    def _watch(self) -> None:
        """Has the selector look at exactly what is to be read."""
        if self._selector is None:
            return
        call = self._call
        wanted = call.carrier.out_fd if call is not None and call.readable else None
        if wanted != self._watched:
            if self._watched is not None:
                self._selector.unregister(self._watched)
            if wanted is not None:
                self._selector.register(wanted, EVENT_READ, self)
            self._watched = wanted
