"""Recording: the whole chunks of an MCAP file, as batches.

The reader follows the records' headers, not the index: a recording that was cut off has no index. It checks
the CRC of each chunk, so a flipped byte costs one chunk. Behind a damaged header it searches for the next
chunk.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.records import Channel, Chunk, McapRecord, Schema
from mcap.records import Message as McapMessage
from mcap.stream_reader import breakup_chunk

from overlaptop import text
from overlaptop.jobs.files import open_regular
from overlaptop.recording.batch import LIVE, MAX_BATCH_BYTES, PROFILE, STATE, Batch
from overlaptop.wire.protocol import PROTOCOL_VERSION

_MAGIC = b"\x89MCAP0\r\n"
_FOOTER, _CHANNEL, _CHUNK, _LAST = 2, 4, 6, 15
"""Opcodes of MCAP's records. _LAST: the highest one."""
_RECORD = struct.Struct("<BQ")
_CHUNK_MARK = b"\x04\x00\x00\x00zstd"
"""Part of every chunk: the length and name of its compression."""
_MARK_AT = _RECORD.size + 28
"""Its offset in a chunk's record."""
_SEARCHED_BYTES = 1 << 20


class RecordingError(Exception):
    """A file cannot be read as a recording. The message is one line."""


class _Place(NamedTuple):
    """A whole chunk in the file."""

    offset: int
    """Offset of its content."""
    length: int
    first_ns: int
    last_ns: int
    keyframe_ns: int | None
    """Time of the first keyframe in it. None if it has none."""
    after_gap: bool


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording and its damage."""

    path: Path
    places: tuple[_Place, ...]
    topics: dict[int, str]
    damage: tuple[str, ...]
    """A line for each loss, with its place."""

    @property
    def first_ns(self) -> int:
        """Unix time of the first batch."""
        return self.places[0].first_ns

    @property
    def last_ns(self) -> int:
        """Unix time of the last batch."""
        return self.places[-1].last_ns

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts, oldest first; ``("",)``: the recorder's own machine."""
        return tuple(dict.fromkeys(topic.partition("/")[2] for topic in self.topics.values())) or ("",)

    def batches(self, from_ns: int = 0) -> Iterator[Batch]:
        """Yield the batches in order, from the last keyframe before `from_ns`, or else from the start."""
        begins = (at for at, each in enumerate(self.places) if (each.keyframe_ns or from_ns) < from_ns)
        first = max(begins, default=0)
        begun, nodes = first == 0, self.nodes
        with closing(os.fdopen(_open(self.path), "rb")) as file:
            for place in self.places[first:]:
                chunk = os.pread(file.fileno(), place.length, place.offset)
                after_gap = place.after_gap
                try:
                    records = _unpacked(chunk)
                except (ValueError, McapError, struct.error):
                    continue  # it was whole when the file was opened
                for record in records:
                    if isinstance(record, McapMessage):
                        kind, _, node = self.topics.get(record.channel_id, f"{LIVE}/").partition("/")
                        if node not in nodes or (not begun and kind != STATE):
                            continue
                        begun = True
                        yield Batch(record.log_time, node, kind, record.data, after_gap)
                        after_gap = False


def open_recording(path: Path) -> Recording:
    """Read a recording once, from its first byte to its last whole chunk.

    Raises RecordingError if it is not a regular file, not a recording, or has no whole chunk.
    """
    with closing(os.fdopen(_open(path), "rb")) as file:
        return _Scan(path, file.fileno()).run()


def _open(path: Path) -> int:
    try:
        if path.is_symlink():
            raise OSError("a link, not a file")
        if path.exists() and not path.is_file():
            raise OSError("not a regular file")
        return open_regular(path, os.O_RDONLY)
    except (OSError, ValueError) as fault:  # ValueError: a null character in the name
        raise RecordingError(f"{path}: {getattr(fault, 'strerror', None) or fault}") from fault


class _Scan:
    """One pass over a file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._size = os.fstat(descriptor).st_size
        self._topics: dict[int, str] = {}
        self._damage: list[str] = []
        self._places: list[_Place] = []
        self._gap = False
        self._versions: set[str] = set()

    def run(self) -> Recording:
        at = len(_MAGIC)
        if os.pread(self._descriptor, at, 0) != _MAGIC:
            raise RecordingError(f"{self._path}: not a recording (no MCAP file)")
        while (start := self._next_chunk(at)) < self._size:
            self._check_between(at, start)
            _, length = self._record_at(start)
            self._take_chunk(start + _RECORD.size, length)
            at = start + _RECORD.size + length
        self._check_between(at, self._size)
        if not self._places:
            raise RecordingError(f"{self._path}: no whole chunk in it")
        for theirs in self._versions - {f"{PROFILE}/{PROTOCOL_VERSION}"}:
            if not theirs.startswith(f"{PROFILE}/"):
                raise RecordingError(f"{self._path}: an MCAP file of another program")
            raise RecordingError(
                f"{self._path}: made with protocol {theirs.removeprefix(f'{PROFILE}/')[:20]}, this is "
                f"{PROTOCOL_VERSION}: use the version of overlaptop that made it"
            )
        return Recording(self._path, tuple(self._places), self._topics, tuple(self._damage))

    def _record_at(self, at: int) -> tuple[int, int]:
        """Return the opcode and length of the record there. Opcode 0: the file ends before it."""
        header = os.pread(self._descriptor, _RECORD.size, at)
        return _RECORD.unpack(header) if len(header) == _RECORD.size else (0, 0)

    def _is_chunk(self, at: int, length: int) -> bool:
        """Return whether the lengths of the record and of its content agree, and the file has all of it."""
        if at + _RECORD.size + length > self._size:
            return False
        head = os.pread(self._descriptor, _MARK_AT + len(_CHUNK_MARK) + 8, at)
        if len(head) < _MARK_AT + len(_CHUNK_MARK) + 8 or not head[_MARK_AT:].startswith(_CHUNK_MARK):
            return False
        packed_bytes = int.from_bytes(head[-8:], "little")
        return packed_bytes + len(head) - _RECORD.size == length

    def _check_between(self, at: int, end: int) -> None:
        """Note the damage between two chunks, or between the last one and the file's end."""
        while at < end:
            opcode, length = self._record_at(at)
            if opcode == _FOOTER and end == self._size:
                return
            after = at + _RECORD.size + length
            if not 0 < opcode <= _LAST or opcode == _CHUNK or after > end or self._is_chunk(at, length):
                break
            if opcode == _CHANNEL:  # the summary at the end repeats those of a damaged chunk
                content = os.pread(self._descriptor, length, at + _RECORD.size)
                with suppress(ValueError, McapError, struct.error):
                    channel = Channel.read(ReadDataStream(BytesIO(content)))
                    self._topics.setdefault(channel.id, channel.topic)
            at = after
        self._gap = self._gap or at < end
        if end == self._size:
            self._damage.append(f"the end is missing, after byte {at:,}: cut off, or still being written")
        elif at < end:
            self._damage.append(f"damaged at byte {at:,}: {text.byte_count(end - at)} lost")

    def _next_chunk(self, at: int) -> int:
        """Return the offset of the first chunk from there on, or the file's size if there is none."""
        while at < self._size:
            block = os.pread(self._descriptor, _SEARCHED_BYTES + _MARK_AT + len(_CHUNK_MARK), at)
            found = block.find(_CHUNK_MARK, _MARK_AT)
            while found >= 0:
                start = at + found - _MARK_AT
                opcode, length = self._record_at(start)
                if opcode == _CHUNK and self._is_chunk(start, length):
                    return start
                found = block.find(_CHUNK_MARK, found + 1)
            at += _SEARCHED_BYTES
        return self._size

    def _take_chunk(self, offset: int, length: int) -> None:
        try:
            records = _unpacked(os.pread(self._descriptor, length, offset))
        except (ValueError, McapError, struct.error) as fault:
            self._damage.append(f"a chunk at byte {offset:,} is damaged ({fault}): it is left out")
            self._gap = True
            return
        times_ns, keyframe_ns = [], None
        for record in records:
            if isinstance(record, Channel):
                self._topics[record.id] = record.topic
            elif isinstance(record, Schema):
                self._versions.add(record.name)
            elif isinstance(record, McapMessage):
                times_ns.append(record.log_time)
                if keyframe_ns is None and self._topics.get(record.channel_id, "").startswith(STATE):
                    keyframe_ns = record.log_time
        if times_ns:
            place = _Place(offset, length, min(times_ns), max(times_ns), keyframe_ns, self._gap)
            self._places.append(place)
            self._gap = False


def _unpacked(content: bytes) -> list[McapRecord]:
    """Return the records in a chunk. Raises ValueError, McapError or struct.error if it is damaged."""
    chunk = Chunk.read(ReadDataStream(BytesIO(content)))
    if not 0 < chunk.uncompressed_size <= MAX_BATCH_BYTES:
        raise ValueError("its size")
    try:
        if zstandard.get_frame_parameters(chunk.data).content_size != chunk.uncompressed_size:
            raise ValueError("its size")
        data = zstandard.decompress(chunk.data, max_output_size=chunk.uncompressed_size)
    except zstandard.ZstdError:
        raise ValueError("compressed data") from None
    if zlib.crc32(data) != chunk.uncompressed_crc:
        raise ValueError("checksum")
    whole = Chunk("", data, chunk.message_end_time, chunk.message_start_time, 0, len(data))
    return breakup_chunk(whole)
