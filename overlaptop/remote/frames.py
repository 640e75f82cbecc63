"""Parses a connection's standard output: a preamble, then frames.

The preamble is everything that a login shell prints, mixed with the start script's notes, one a line. It
ends with MAGIC. After that, there are only frames (wire.codec.frame).
"""

import re
from typing import NamedTuple

from overlaptop.wire.codec import FrameReader, WireError
from overlaptop.wire.relaying import MAGIC

MAX_PREAMBLE_BYTES = 1 << 16
"""Maximum foreign output before the first note, between two notes, or before MAGIC."""
_KEPT_BYTES = 4096
_NOTE = re.compile(rb"OVERLAPTOP-NOTE ([a-z]{1,16})(?: ([^\r\n]{0,1000}))?[^\n]*")


class StartNote(NamedTuple):
    """A report of the start script before there is a relay."""

    kind: str
    """One of those in bootstrap.py. Skip unknown ones."""
    text: str


class RelayStream:
    """Split arriving bytes into notes and payloads of frames, however they were chunked."""

    def __init__(self) -> None:
        self.begun = False
        self.frame_bytes = 0
        self._frames = FrameReader()
        self._line = bytearray()
        """The incomplete end of the preamble."""
        self._kept = bytearray()
        self._preamble_bytes = 0

    @property
    def preamble(self) -> str:
        """The end of the output before MAGIC, without notes."""
        return self._kept.decode(errors="replace")

    def feed(self, data: bytes) -> list[StartNote | bytes]:
        """Return the notes and payloads that these bytes complete, oldest first.

        Raises WireError if the preamble exceeds MAX_PREAMBLE_BYTES, or a frame the maximum frame size. The
        stream is then unusable. Never holds more than either.
        """
        found: list[StartNote | bytes] = []
        if not self.begun:
            data = self._read_preamble(data, found)
        if self.begun:
            self.frame_bytes += len(data)
            found += self._frames.feed(data)
        return found

    def _read_preamble(self, data: bytes, found: list[StartNote | bytes]) -> bytes:
        """Append its notes to `found`. Returns the bytes after MAGIC, if that has arrived."""
        line = self._line
        line += data
        at = line.find(MAGIC)
        self.begun = at >= 0
        # MAGIC begins with the newline that ends the line before it, whatever that line is.
        end = at + 1 if self.begun else line.rfind(b"\n") + 1
        # If MAGIC may have begun, that newline must stay.
        if not self.begun and end > 0 and MAGIC.startswith(line[end - 1 :]):
            end -= 1
        if end > 0:
            for each in bytes(line[:end]).removesuffix(b"\n").split(b"\n"):
                self._read_line(each, found)
        if self.begun:
            rest = bytes(line[at + len(MAGIC) :])
            line.clear()
            return rest
        del line[:end]
        if self._preamble_bytes + len(line) > MAX_PREAMBLE_BYTES:
            raise WireError(f"{MAX_PREAMBLE_BYTES} bytes came, and among them nothing of a relay")
        return b""

    def _read_line(self, line: bytes, found: list[StartNote | bytes]) -> None:
        if note := _NOTE.fullmatch(line):
            kind, text = note.groups(b"")
            found.append(StartNote(kind.decode(), text.decode(errors="replace")))
            self._preamble_bytes = 0
            return
        self._preamble_bytes += len(line) + 1
        if line:
            self._kept += line + b"\n"
            del self._kept[:-_KEPT_BYTES]
