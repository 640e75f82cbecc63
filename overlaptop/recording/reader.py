"""Recording: the whole chunks of an MCAP file, as batches.

The reader follows the records' headers, not the index: a recording that was cut off has no index. It checks
the CRC of each chunk, so a flipped byte costs one chunk. Behind a damaged header it searches for the next
chunk.
"""

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Channel, Chunk, McapRecord, Schema
from mcap.records import Message as McapMessage
from mcap.stream_reader import breakup_chunk

from overlaptop import text
from overlaptop.recording.batch import LIVE, MAX_BATCH_BYTES, PROFILE, STATE, Batch
from overlaptop.wire.protocol import PROTOCOL_VERSION

_MAGIC = b"\x89MCAP0\r\n"
_HEADER = struct.Struct("<BQ")  # Of a record: opcode and length
_CHUNK_HEADER = struct.Struct("<BQ28x8sQ")
"""Of a chunk's record: opcode, length, compression, length of the packed data."""
_CHUNK_MARK = b"\x04\x00\x00\x00zstd"  # Part of every chunk: the length and name of its compression
_MARK_AT = _HEADER.size + 28
_SEARCHED_BYTES = 1 << 16
_BETWEEN_CHUNKS = frozenset(range(1, Opcode.DATA_END + 1)) - {Opcode.CHUNK}
_DAMAGE = (ValueError, OverflowError, McapError, struct.error, zstandard.ZstdError)
"""What reading a damaged record raises."""


class RecordingError(Exception):
    """A file cannot be read as a recording. The message is one line."""


class _Place(NamedTuple):
    """A whole chunk in the file."""

    offset: int  # Offset of its content
    length: int
    first_ns: int
    last_ns: int
    keyframe_ns: int | None  # Time of the first keyframe in it. None if it has none.
    after_gap: bool


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording and its damage."""

    path: Path
    places: tuple[_Place, ...]
    topics: dict[int, str]
    damage: tuple[str, ...]  # A line for each loss, with its place

    @property
    def first_ns(self) -> int:
        return self.places[0].first_ns

    @property
    def last_ns(self) -> int:
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
        with _open(self.path) as file:
            for place in self.places[first:]:
                chunk = os.pread(file.fileno(), place.length, place.offset)
                after_gap = place.after_gap
                try:
                    records = _unpacked(chunk)
                except _DAMAGE:
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
    places: list[_Place] = []
    topics: dict[int, str] = {}
    damage: list[str] = []
    versions: set[str] = set()
    after_gap, opcode = False, 0
    with _open(path) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise RecordingError(f"{path}: not a recording (no MCAP file)")
        for opcode, at, end in _records(file):
            if not opcode:
                damage.append(f"damaged at byte {at:,}: {text.byte_count(end - at)} lost")
                after_gap = True
                continue
            content = os.pread(file.fileno(), end - at, at)
            try:
                if opcode == Opcode.CHUNK:
                    records = _unpacked(content)
                elif opcode == Opcode.CHANNEL:  # the summary at the end repeats those of a damaged chunk
                    records = [Channel.read(ReadDataStream(BytesIO(content)))]
                else:
                    continue
            except _DAMAGE as fault:
                damage.append(f"a chunk at byte {at:,} is damaged ({fault}): it is left out")
                after_gap = True
                continue
            for each in records:
                if isinstance(each, Channel):
                    topics.setdefault(each.id, each.topic)
            versions |= {each.name for each in records if isinstance(each, Schema)}
            messages = [each for each in records if isinstance(each, McapMessage)]
            if messages:
                times_ns = [each.log_time for each in messages]
                states_ns = (
                    each.log_time for each in messages if topics.get(each.channel_id, "").startswith(STATE)
                )
                first_ns, last_ns, keyframe_ns = min(times_ns), max(times_ns), next(states_ns, None)
                places.append(_Place(at, len(content), first_ns, last_ns, keyframe_ns, after_gap))
                after_gap = False
        end = file.tell()
        if opcode != Opcode.FOOTER or file.read() != _MAGIC:
            damage.append(f"the end is missing, after byte {end:,}: cut off, or still being written")
    if not places:
        raise RecordingError(f"{path}: no whole chunk in it")
    for theirs in versions - {f"{PROFILE}/{PROTOCOL_VERSION}"}:
        if not theirs.startswith(f"{PROFILE}/"):
            raise RecordingError(f"{path}: an MCAP file of another program")
        raise RecordingError(
            f"{path}: made with protocol {theirs.removeprefix(f'{PROFILE}/')[:20]}, this is "
            f"{PROTOCOL_VERSION}: use the version of overlaptop that made it"
        )
    return Recording(path, tuple(places), topics, tuple(damage))


def _open(path: Path) -> BinaryIO:
    try:
        # Opening a fifo waits for its writer, and opening a device may do anything.
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError("not a regular file")
        return path.open("rb")
    except OSError as fault:
        raise RecordingError(f"{path}: {text.reason(fault)}") from fault


def _records(file: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """Yield the opcode of each record, and where its content begins and ends. Opcode 0: damage, up to the
    next chunk. The file then is where the last whole record ends.
    """
    at, chunk_at, size = len(_MAGIC), 0, os.fstat(file.fileno()).st_size
    while True:
        if chunk_at < at:
            chunk_at = _next_chunk(file, at, size)
        header = os.pread(file.fileno(), _HEADER.size, at)
        opcode, length = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
        begin, end = at + _HEADER.size, at + _HEADER.size + length
        if at == chunk_at < size:
            yield (opcode if opcode == Opcode.CHUNK else 0), begin, end
        elif opcode in _BETWEEN_CHUNKS and end <= min(chunk_at, begin + MAX_BATCH_BYTES):
            yield opcode, begin, end
        elif chunk_at < size:
            yield 0, at, chunk_at
            end = chunk_at
        else:
            break
        at = end
    file.seek(at)


def _next_chunk(file: BinaryIO, at: int, size: int) -> int:
    """Return the offset of the first whole chunk from there on; `size` if there is none."""
    while at < size:
        block = os.pread(file.fileno(), _SEARCHED_BYTES + _CHUNK_HEADER.size, at)
        found = block.find(_CHUNK_MARK, _MARK_AT)
        while 0 <= found <= len(block) - (_CHUNK_HEADER.size - _MARK_AT):
            start = found - _MARK_AT
            _, length, _, packed_bytes = _CHUNK_HEADER.unpack_from(block, start)
            end = start + _CHUNK_HEADER.size + packed_bytes
            if end == start + _HEADER.size + length <= min(size - at, start + MAX_BATCH_BYTES):
                return at + start
            found = block.find(_CHUNK_MARK, found + 1)
        at += _SEARCHED_BYTES
    return size


def _unpacked(content: bytes) -> list[McapRecord]:
    """Return the records in a chunk. Raises one of _DAMAGE if it is damaged."""
    chunk = Chunk.read(ReadDataStream(BytesIO(content)))
    # The frame's own size would make zstandard allocate more than the limit.
    frame = zstandard.get_frame_parameters(chunk.data)
    if not 0 < chunk.uncompressed_size <= MAX_BATCH_BYTES or frame.content_size != chunk.uncompressed_size:
        raise ValueError("its size")
    return breakup_chunk(chunk, validate_crc=True)
