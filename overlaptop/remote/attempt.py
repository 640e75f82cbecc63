"""One connection attempt: a process, what arrives from the relay there, and when it is given up."""

from __future__ import annotations

from collections.abc import Callable

from overlaptop.remote import failures
from overlaptop.remote.bootstrap import FAIL, WAIT
from overlaptop.remote.child import ChildProcess
from overlaptop.remote.clock import ClockOffset
from overlaptop.remote.failures import Failure
from overlaptop.remote.frames import RelayStream, StartNote
from overlaptop.remote.targets import Target
from overlaptop.wire.codec import WireError, decode, encode, frame
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.relaying import RelayHello, RelayPing, RelayPong
from overlaptop.wire.schema import Message

PING_EVERY_S = 1.0
FIRST_PINGS = 4
"""Each follows the answer to the one before, so that the clock is known soon; then one a second."""
SILENT_S = 8.0
"""A relay that is silent for so long is frozen: it answers each ping."""
FIRST_BYTES_S = 30.0
"""Until the host's first bytes, and until a relay's: an interpreter may lie on a slow file system."""
ASK_AGAIN_S = 1.0
"""The pause before the start script is asked to look for a job again."""
MAX_INBOX_BYTES = 1 << 20
"""What was received and not taken yet. No more is read then, and the relay sends less."""
_READ_BYTES = 1 << 17
"""At a time, so that taking it in is done in some milliseconds."""
_END_OF_OUTPUT_S = 2.0
"""A process that has closed its output is given so long to end by itself, with its status."""
_MAX_PINGS = 64


class ConnectionAttempt:
    """See the module. Times of the clock ``_s`` are monotonic, those of ``_ns`` Unix times."""

    def __init__(
        self,
        target: Target,
        process: ChildProcess,
        clock: ClockOffset,
        now_s: float,
        *,
        echo: Callable[[bytes], None] | None = None,
    ) -> None:
        """``echo`` gets what the process writes to its standard error until the host is reached."""
        self.process = process
        self.reached = False
        """The host has answered: whoever had to be convinced there is."""
        self.waiting = ""
        """Why there is no relay yet, as the start script reports; empty: one is there, or about to be."""
        self.hello: RelayHello | None = None
        self.bad_frames = 0
        self.dropped_there = 0
        """Frames that the relay did not pass on."""
        self._target = target
        self._clock = clock
        self._echo = echo
        self._stream = RelayStream()
        self._received_s = now_s
        self._inbox: list[Message] = []
        self._inbox_bytes = 0
        self._fault: Failure | None = None
        self._reported_failure: Failure | None = None
        """The start script's, when it cannot go on."""
        self._output_ended = False
        self._ask_due_s: float | None = None
        self._ping_due_s = 0.0
        self._pings = 0
        self._pongs = 0
        self._sent_ns: dict[int, int] = {}
        """Of the pings that have not been answered."""

    @property
    def up(self) -> bool:
        """Whether the host answers: with a relay, or since it waits for a job."""
        return self.hello is not None or bool(self.waiting)

    @property
    def clock_known(self) -> bool:
        """Whether the first pings have been answered: the clock is known as well as it will be soon."""
        return self._pongs >= FIRST_PINGS

    @property
    def frame_bytes(self) -> int:
        """Received from the relay."""
        return self._stream.frame_bytes

    @property
    def readable(self) -> bool:
        """Whether its output is to be read, now or once there is some."""
        return not self._output_ended and self._fault is None and self._inbox_bytes < MAX_INBOX_BYTES

    @property
    def foreign_text(self) -> str:
        """The last of what it wrote that was not meant for us: many lines of foreign text, mostly empty."""
        return (self.process.errors + self._stream.preamble).strip()

    def receive(self, now_s: float, clock_ns: Callable[[], int] | None = None) -> bool:
        """Takes in what can be read now, within bounds; whether there was something.

        ``clock_ns``: asked when it was read; None: it may have come long before.
        """
        errors = self.process.read_errors()
        if errors and self._echo is not None and not self.reached:
            self._echo(errors)
        if not self.readable:
            return False
        data = self.process.read(_READ_BYTES)
        if data is None:
            self._output_ended = True
        if not data:
            return False
        # After reading: a trip that seems shorter than it was would seem better than it is.
        now_ns = None if clock_ns is None else clock_ns()
        self._received_s = now_s
        try:
            received = self._stream.feed(data)
        except WireError as error:
            self._fault = Failure(f"what answers there is no relay: {error}")
            return True
        for each in received:
            if isinstance(each, StartNote):
                self._handle_note(each, now_s)
            else:
                self._handle(each, now_ns)
        if self._stream.begun:
            self.reached, self.waiting, self._ask_due_s = True, "", None
        return True

    def take(self) -> list[Message]:
        """What has come since the last call, oldest first."""
        messages, self._inbox, self._inbox_bytes = self._inbox, [], 0
        return messages

    def send(self, message: Message) -> bool:
        """Sends the relay a message; False: there is none, or it does not read. WireError as encode has."""
        payload = frame(encode(message))
        return self.hello is not None and self.process.write(payload)

    def send_due(self, now_s: float, now_ns: int) -> None:
        """Sends what is due: a ping, or that the host is to look for a job again."""
        if self._ask_due_s is not None and now_s >= self._ask_due_s:
            self._ask_due_s = None
            self.process.write(b"\n")  # one for each note: nothing of it is left when the relay begins
        answered = self._pings < FIRST_PINGS and not self._sent_ns
        if self.hello is not None and (answered or now_s >= self._ping_due_s):
            self._pings += 1
            self._ping_due_s = now_s + PING_EVERY_S
            if len(self._sent_ns) >= _MAX_PINGS:
                self._sent_ns.clear()
            self._sent_ns[self._pings] = now_ns
            self.send(RelayPing(self._pings, self._stream.frame_bytes))
        self.process.flush()

    def reset_silence(self, now_s: float) -> None:
        """Measures its silence from now on: nobody has read for a while."""
        self._received_s = now_s

    def failure(self, now_s: float) -> Failure | None:
        """Why it is to be given up; None: it is not."""
        if self._fault is not None:
            return self._fault
        silent_s = now_s - self._received_s
        if self.process.ended:
            # What it wrote last may still be in the pipe, and some of it may say why.
            return None if self.receive(now_s) else self._fault or self._why_ended()
        if self._output_ended and silent_s > _END_OF_OUTPUT_S:
            return self._reported_failure or Failure("the connection broke")
        if self.up:
            silence = f"the connection was silent for {SILENT_S:.0f} s"
            return Failure(silence) if silent_s > SILENT_S else None
        if self.process.interactive and not self.reached:
            return None  # a person takes as long over a password as they like
        what = "the relay does not begin" if self.reached else "the host does not answer"
        silence = f"{what}: nothing came for {FIRST_BYTES_S:.0f} s"
        return Failure(silence) if silent_s > FIRST_BYTES_S else None

    def _why_ended(self) -> Failure:
        while self.process.read_errors():
            pass
        status, target = self.process.reap() or 0, self._target
        return self._reported_failure or failures.of_ending(
            target.kind, target.place, status, self.process.errors, self._stream.preamble
        )

    def _handle_note(self, note: StartNote, now_s: float) -> None:
        self.reached = True
        self.waiting = ""
        if note.kind == WAIT:
            self.waiting = failures.one_line(note.text) or "it waits for a job"
            self._ask_due_s = now_s + ASK_AGAIN_S
        elif note.kind == FAIL:
            self._reported_failure = Failure(note.text or "it cannot go on")

    def _handle(self, payload: bytes, now_ns: int | None) -> None:
        if self._fault is not None:
            return
        try:
            message = decode(payload)
        except WireError:
            self.bad_frames += 1
            if self.hello is None:
                self._fault = Failure("the relay there is not to be understood: update the older one")
            return
        if isinstance(message, RelayHello):
            if self.hello is not None:
                self.bad_frames += 1
            elif message.protocol == PROTOCOL_VERSION:
                self.hello = message
            else:
                self._fault = failures.of_protocol(message.protocol, PROTOCOL_VERSION, message.version)
        elif self.hello is None:
            self._fault = Failure("what answers there is no relay: it sends no hello")
        elif isinstance(message, RelayPong):
            if (sent_ns := self._sent_ns.get(message.number)) is not None:
                # Of several that came together the relay answers the last.
                self._sent_ns = {each: at for each, at in self._sent_ns.items() if each > message.number}
                self._pongs += 1
                if now_ns is not None:
                    self._clock.add(sent_ns, message.received_ns, message.sent_ns, now_ns)
            self.dropped_there = message.dropped
        else:
            self._inbox.append(message)
            self._inbox_bytes += len(payload)
