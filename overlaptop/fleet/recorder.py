"""Recorder: writes the messages that a session reads into a file."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from overlaptop import text
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.recording.batch import Keyframe, NodeClock
from overlaptop.wire.schema import Message

if TYPE_CHECKING:
    from overlaptop.recording.keep import Keep
    from overlaptop.recording.writer import RecordingWriter


def default_path(job: str | None) -> Path:
    """Return the file in the current directory for a recording of this job that begins now."""
    return Path(f"{job or 'job'}-{time.strftime('%Y%m%d-%H%M%S')}.mcap")


class Recorder:
    """The tap of a session. Between recordings it keeps the job's state, with which the next one begins."""

    def __init__(self) -> None:
        self.path = Path()  # The file of the present or last recording
        self._read: list[tuple[str, Sequence[Message]]] = []
        self._keyframes: dict[str, Keyframe] = {}
        self._writer: RecordingWriter | None = None

    def __call__(self, node: str, messages: Sequence[Message]) -> None:
        self._read.append((node, messages))

    @property
    def size_bytes(self) -> int | None:
        """Return the bytes of the recording so far. None if nothing is recorded."""
        return None if self._writer is None else self._writer.size_bytes

    @property
    def summary(self) -> str:
        """Return the last recording in words: ``run.mcap: 3.1 MB``."""
        size_bytes = 0
        with suppress(OSError):
            size_bytes = self.path.stat().st_size
        return f"{self.path}: {text.byte_count(size_bytes)}"

    def begin(self, path: Path, keep: "Keep | None" = None) -> None:
        """Begin a recording. Raises ImportError without mcap or zstandard, OSError without the file."""
        from overlaptop.recording.writer import RecordingWriter

        self._writer, self.path = RecordingWriter(path, keep, self._keyframes), path

    def write(self, snapshot: Snapshot) -> None:
        """Write the messages since the last call, at this Snapshot's time: a replay then ticks at the same
        time. Raises OSError if the file cannot be written: call only `end` then.
        """
        read, self._read = self._read, []
        if self._writer is None:
            for node, messages in read:
                self._keyframes.setdefault(node, Keyframe()).take(messages)
            return
        for node, messages in read:
            self._writer.add(snapshot.at_ns, node, messages)
        for view in snapshot.nodes:
            self._writer.add_clock(snapshot.at_ns, view.name, NodeClock(view.offset_ns, view.residual_ns))

    def end(self) -> None:
        """End the recording, if there is one. Raises OSError if its last part cannot be written."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
