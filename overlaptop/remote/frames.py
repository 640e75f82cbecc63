"""What comes out of a connection's standard output: a preamble, then frames.

The preamble is whatever a login shell prints, and between it the start script's notes, one a line. It ends
with MAGIC; from there on there are frames only (wire.codec.frame).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from overlaptop.wire.codec import FrameReader, WireError
from overlaptop.wire.relaying import MAGIC

MAX_PREAMBLE_BYTES = 1 << 16
"""Of what is not ours, before the first note, between two, or before MAGIC."""
_KEPT_BYTES = 4096
"""Of the preamble, for the text of an error."""
_MAX_NOTES = 16
"""Of those that nobody has taken yet, the newest."""
_NOTE = re.compile(rb"OVERLAPTOP-NOTE ([a-z]{1,16})(?: ([^\r\n]{0,1000}))?[^\n]*")


@dataclass(frozen=True, slots=True)
class StartNote:
    """What the start script reports before there is a relay."""

    kind: str
    """One of those in bootstrap.py; another one is to be passed over."""
    text: str


class RelayStream:
    """Cuts the bytes that arrive into notes and the payloads of frames, however they were split."""

    def __init__(self) -> None:
        self._frames: FrameReader | None = None
        self._line = bytearray()
        """Of the preamble, what has not been looked at to its end."""
        self._kept = bytearray()
        self._preamble_bytes = 0
        self._notes: list[StartNote] = []
        self.frame_bytes = 0
        """How many have come behind MAGIC."""

    @property
    def begun(self) -> bool:
        """Whether MAGIC has come."""
        return self._frames is not None

    @property
    def preamble(self) -> str:
        """The last of what was printed before MAGIC, the notes left out."""
        return self._kept.decode(errors="replace")

    def take_notes(self) -> list[StartNote]:
        """The notes since the last call, oldest first."""
        notes, self._notes = self._notes, []
        return notes

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that these bytes complete, oldest first.

        Raises WireError where the preamble is longer than MAX_PREAMBLE_BYTES, or a frame longer than a
        frame may be: the stream is of no further use then. Never holds more than either.
        """
        if self._frames is None:
            rest = self._read_preamble(data)
            if rest is None:
                return []
            data, self._frames = rest, FrameReader()
        self.frame_bytes += len(data)
        return self._frames.feed(data)

    def _read_preamble(self, data: bytes) -> bytes | None:
        """What follows MAGIC; None where that has not come yet."""
        line = self._line
        line += data
        at = line.find(MAGIC)
        rest = None if at < 0 else bytes(line[at + len(MAGIC) :])
        # MAGIC begins with the newline that ends the line before it, whatever that was.
        end = line.rfind(b"\n") + 1 if at < 0 else at + 1
        # Where MAGIC may have begun, that newline has to stay.
        if at < 0 < end and MAGIC.startswith(line[end - 1 :]):
            end -= 1
        if end > 0:
            for each in bytes(line[:end]).removesuffix(b"\n").split(b"\n"):
                self._read_line(each)
            del line[:end]
        if rest is not None:
            line.clear()
        elif self._preamble_bytes + len(line) > MAX_PREAMBLE_BYTES:
            raise WireError(f"{MAX_PREAMBLE_BYTES} bytes came, and among them nothing of a relay")
        return rest

    def _read_line(self, line: bytes) -> None:
        if note := _NOTE.fullmatch(line):
            kind, text = note.groups(b"")
            self._notes = [
                *self._notes[1 - _MAX_NOTES :],
                StartNote(kind.decode(), text.decode(errors="replace")),
            ]
            self._preamble_bytes = 0
            return
        self._preamble_bytes += len(line) + 1
        if line:
            self._kept += line + b"\n"
            del self._kept[:-_KEPT_BYTES]
