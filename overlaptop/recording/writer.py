"""RecordingWriter: writes batches into MCAP files of bounded size."""

import errno
import io
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from mcap.writer import CompressionType, Writer

from overlaptop.recording.batch import ENCODING, LIVE, NODE, PROFILE, STATE, Keyframe, NodeClock, packed
from overlaptop.recording.keep import DEFAULT_KEEP, Keep
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.schema import Message

CHUNK_NS = 5_000_000_000  # A killed writer loses at most the batches of this time
_CHUNK_BYTES = 1 << 20
KEYFRAME_NS = 30_000_000_000
LEAST_FREE_BYTES = 1 << 30
"""A recording ends if less of the disk is free, or less than 5 %: the job needs it for its own files."""


def earlier_part(path: Path) -> Path:
    """Return where the earlier part is kept: ``run.mcap`` -> ``run.1.mcap``."""
    return path.with_name(f"{path.stem}.1{path.suffix}")


class RecordingWriter:
    """One recording. Each method raises OSError if the file cannot be written; then only close it."""

    def __init__(
        self, path: Path, keep: Keep | None = None, keyframes: dict[str, Keyframe] | None = None
    ) -> None:
        """Create the file, with mode 0600. Raises FileExistsError if it exists.

        ``keyframes``: the present state of each node. The writer updates it.
        """
        self._path, self._keep = path, keep or Keep.parse(DEFAULT_KEEP)
        self._keyframes = {} if keyframes is None else keyframes
        self._clocks: dict[str, NodeClock] = {}
        self._begun_ns: int | None = None
        self._chunk_ns = self._keyframe_ns = 0
        self._begin()

    def add(self, at_ns: int, node: str, messages: Sequence[Message]) -> None:
        """Append one batch. ``at_ns``: when it was read, Unix time; ``node`` as Batch has it."""
        if self._begun_ns is None or at_ns - self._keyframe_ns >= KEYFRAME_NS:
            self._keyframe_ns = at_ns
            self._add_keyframes(at_ns)
        self._keyframes.setdefault(node, Keyframe()).take(messages)
        self.add_frames(at_ns, node, packed(messages))

    def add_frames(self, at_ns: int, node: str, data: bytes) -> None:
        """Append encoded messages as `add` does, but write no keyframes: for recordings of minutes."""
        if self._begun_ns is None:
            self._begun_ns = self._chunk_ns = at_ns
        self._write(at_ns, f"{LIVE}/{node}", data)
        if at_ns - self._chunk_ns >= CHUNK_NS:
            self._chunk_ns = at_ns
            disk = os.fstatvfs(self._file.fileno())
            if disk.f_bavail * disk.f_frsize < min(LEAST_FREE_BYTES, disk.f_blocks * disk.f_frsize // 20):
                raise OSError(errno.ENOSPC, "too little of the disk is left for the job")
            self._writer.flush()  # type: ignore[no-untyped-call]
            if self._keep.is_full(at_ns - self._begun_ns, self.size_bytes):
                self._rotate(at_ns)

    def add_clock(self, at_ns: int, node: str, clock: NodeClock) -> None:
        """Append a host's clock offset if it has changed."""
        if self._clocks.get(node) != clock:
            self._clocks[node] = clock
            self._write(at_ns, f"{NODE}/{node}", msgspec.json.encode(clock))

    @property
    def size_bytes(self) -> int:
        """Bytes written to the present file."""
        return self._file.tell()

    def close(self) -> None:
        """Write the rest and the index. Raises OSError on failure; the file is closed anyway."""
        if self._file.closed:
            return
        try:
            self._writer.finish()  # type: ignore[no-untyped-call]
            self._file.flush()
        finally:
            with suppress(OSError):
                self._file.close()

    def _begin(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = io.BufferedWriter(io.FileIO(os.open(self._path, flags, 0o600), "wb"))
        self._writer = Writer(self._file, chunk_size=_CHUNK_BYTES, compression=CompressionType.ZSTD)
        self._writer.start(profile=PROFILE)
        self._schema = self._writer.register_schema(f"{PROFILE}/{PROTOCOL_VERSION}", "", b"")
        self._channels: dict[str, int] = {}

    def _rotate(self, at_ns: int) -> None:
        """Replace the earlier part by this file, and begin another."""
        self.close()
        self._path.replace(earlier_part(self._path))
        self._begin()
        self._begun_ns = self._chunk_ns = self._keyframe_ns = at_ns
        self._add_keyframes(at_ns)

    def _add_keyframes(self, at_ns: int) -> None:
        for node, keyframe in self._keyframes.items():
            if messages := keyframe.messages():
                self._write(at_ns, f"{STATE}/{node}", packed(messages))
        for node, clock in self._clocks.items():
            self._write(at_ns, f"{NODE}/{node}", msgspec.json.encode(clock))

    def _write(self, at_ns: int, topic: str, data: bytes) -> None:
        if topic not in self._channels:
            encoding = "json" if topic.startswith(NODE) else ENCODING
            self._channels[topic] = self._writer.register_channel(topic, encoding, self._schema)
        self._writer.add_message(self._channels[topic], at_ns, data, at_ns)
