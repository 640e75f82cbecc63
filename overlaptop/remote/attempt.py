"""One connection attempt: its process, the data from the relay, and its timeouts.

A connection's standard output begins with a preamble: everything that a login shell prints, mixed with the
start script's notes, one a line. It ends with MAGIC. After that, there are only frames (wire.codec.frame).
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from overlaptop.remote import failures
from overlaptop.remote.bootstrap import FAIL, WAIT
from overlaptop.remote.child import ChildProcess
from overlaptop.remote.failures import Failure
from overlaptop.remote.targets import Target
from overlaptop.wire.codec import FrameReader, WireError, decode, encode, frame
from overlaptop.wire.joining import MAGIC, RelayBytes, RelayClosed, RelayJobs
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.schema import Message

SILENT_S = 8.0  # A relay that is silent for this long is frozen: it lists its jobs every two seconds
FIRST_BYTES_S = 30.0
"""Timeout for the host's first bytes, and for a relay's: the interpreter may be on a slow file system."""
ASK_AGAIN_S = 1.0  # Pause before the start script is told to look for a job again
_READ_BYTES = 1 << 17  # Maximum bytes read at once, so that processing takes only a few milliseconds
MAX_PREAMBLE_BYTES = 1 << 16
"""Maximum foreign output before the first note, between two notes, or before MAGIC."""
_KEPT_BYTES = 4096
_NOTE = re.compile(rb"OVERLAPTOP-NOTE ([a-z]{1,16})(?: ([^\r\n]{0,1000}))?[^\n]*")


class StartNote(NamedTuple):
    """A report of the start script before there is a relay (bootstrap.py)."""

    kind: str
    text: str


class RelayStream:
    """Split arriving bytes into notes and payloads of frames, however they were chunked."""

    def __init__(self) -> None:
        self.begun = False
        self.frame_bytes = 0
        self._frames = FrameReader()
        self._line = b""  # The incomplete end of the preamble
        self._kept = b""
        self._foreign_bytes = 0  # Before the first note, or after the last one

    @property
    def preamble(self) -> str:
        """The end of the output before MAGIC, without notes."""
        return self._kept.decode(errors="replace")

    def feed(self, data: bytes) -> list[StartNote | bytes]:
        """Return the notes and payloads that these bytes complete, oldest first.

        Raises WireError if the preamble exceeds MAX_PREAMBLE_BYTES, or a frame the maximum frame size: the
        stream is then unusable.
        """
        found: list[StartNote | bytes] = []
        if not self.begun:
            *lines, self._line = (self._line + data).split(b"\n")
            for number, line in enumerate(lines, 1):
                # MAGIC begins with the newline that ends the line before it, whatever that line is.
                if line == MAGIC.strip(b"\n"):
                    self.begun, data = True, b"\n".join([*lines[number:], self._line])
                    break
                if note := _NOTE.fullmatch(line):
                    kind, text = note.groups(b"")
                    found.append(StartNote(kind.decode(), text.decode(errors="replace")))
                    self._foreign_bytes = 0
                    continue
                self._foreign_bytes += len(line) + 1
                if line:
                    self._kept = (self._kept + line + b"\n")[-_KEPT_BYTES:]
        if self.begun:
            self.frame_bytes += len(data)
            found += self._frames.feed(data)
        elif self._foreign_bytes + len(self._line) > MAX_PREAMBLE_BYTES:
            raise WireError(f"{MAX_PREAMBLE_BYTES} bytes came, and among them nothing of a relay")
        return found


class ConnectionAttempt:
    """One attempt. Times of the clock ``_s`` are monotonic."""

    def __init__(
        self,
        target: Target,
        process: ChildProcess,
        now_s: float,
        *,
        deliver: Callable[[RelayBytes | RelayClosed], None],
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> None:
        """``deliver``: gets a hub's data. ``on_stderr``: gets standard error until the host answers."""
        self.process = process
        self.reached = False  # The host has answered, so authentication is over
        self.waiting = ""  # Why there is no relay yet. Empty if there is one, or soon will be.
        self.jobs: RelayJobs | None = None  # The relay's newest list. None if there is no relay yet.
        self._target = target
        self._deliver = deliver
        self._on_stderr = on_stderr
        self._stream = RelayStream()
        self._received_s = now_s
        self._fault: Failure | None = None
        self._output_ended = False
        self._ask_due_s: float | None = None

    @property
    def up(self) -> bool:
        """Whether the host has answered: with a relay, or by waiting for a job."""
        return self.jobs is not None or bool(self.waiting)

    @property
    def frame_bytes(self) -> int:
        return self._stream.frame_bytes

    @property
    def readable(self) -> bool:
        return not self._output_ended and self._fault is None

    @property
    def foreign_text(self) -> str:
        """The end of its output that is not from us."""
        return (self.process.errors + self._stream.preamble).strip()

    def receive(self, now_s: float) -> bool:
        """Read the available output, within bounds. Returns whether there was any."""
        errors = self.process.read_errors()
        if errors and self._on_stderr is not None and not self.reached:
            self._on_stderr(errors)
        if not self.readable:
            return False
        data = self.process.read(_READ_BYTES)
        if data is None:
            self._output_ended = True
        if not data:
            return False
        self._received_s = now_s
        try:
            received = self._stream.feed(data)
        except WireError as error:
            self._fault = Failure(f"the process there is no relay: {error}")
            return True
        for each in received:
            if isinstance(each, StartNote):
                self._handle_note(each, now_s)
            else:
                self._handle(each)
        if self._stream.begun:
            self.reached, self.waiting, self._ask_due_s = True, "", None
        return True

    def send(self, message: Message) -> bool:
        """Send the relay a message. False if there is none, or it does not read. WireError as in encode."""
        payload = frame(encode(message))
        return self.jobs is not None and self.process.write(payload)

    def send_due(self, now_s: float) -> None:
        """Tell the start script to look for a job again, if it is time."""
        if self._ask_due_s is not None and now_s >= self._ask_due_s:
            self._ask_due_s = None
            self.process.write(b"\n")  # one for each note, so nothing of it is left when the relay begins
        self.process.flush()

    def failure(self, now_s: float) -> Failure | None:
        """Return why to give up the attempt. None if there is no reason."""
        if self._fault is not None:
            return self._fault
        silent_s = now_s - self._received_s
        if self.process.ended:
            # Its last output may still be in the pipe, and may name the reason.
            return None if self.receive(now_s) else self._fault or self._why_ended()
        if self.up:
            silence = f"the connection was silent for {SILENT_S:.0f} s"
            return Failure(silence) if silent_s > SILENT_S else None
        if self.process.interactive and not self.reached:
            return None  # no timeout while a person types a password
        what = "the relay does not begin" if self.reached else "the host does not answer"
        silence = f"{what}: nothing came for {FIRST_BYTES_S:.0f} s"
        return Failure(silence) if silent_s > FIRST_BYTES_S else None

    def _why_ended(self) -> Failure:
        while self.process.read_errors():
            pass
        status, target = self.process.reap() or 0, self._target
        return failures.of_ending(
            target.kind, target.place, status, self.process.errors, self._stream.preamble
        )

    def _handle_note(self, note: StartNote, now_s: float) -> None:
        self.reached = True
        self.waiting = ""
        if note.kind == WAIT:
            self.waiting = failures.one_line(note.text) or "it waits for a job"
            self._ask_due_s = now_s + ASK_AGAIN_S
        elif note.kind == FAIL:
            self._fault = Failure(note.text or "it cannot go on")

    def _handle(self, payload: bytes) -> None:
        if self._fault is not None:
            return
        try:
            message = decode(payload)
        except WireError:
            self._fault = Failure("the relay there is not to be understood: update the older one")
            return
        if isinstance(message, RelayJobs):
            if message.protocol == PROTOCOL_VERSION:
                self.jobs = message
            else:
                self._fault = failures.of_protocol(message.protocol, PROTOCOL_VERSION, message.version)
        elif self.jobs is None:
            self._fault = Failure("the process there is no relay: it does not list its jobs first")
        elif isinstance(message, RelayBytes | RelayClosed):
            self._deliver(message)
