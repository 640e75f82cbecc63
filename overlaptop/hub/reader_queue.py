"""The queue of one reader: it sends only as much as the reader grants, and drops the excess.

Steps are dropped by their number, so that the same steps remain of every rank and on every host. Only the
newest step's timelines are kept. Facts, notices and outcomes are never thinned.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import StepDetail, StepTotals
from overlaptop.wire.schema import Message

KEPT = 1 << 30  # Spacing of a frame that is never thinned
MAX_EVERY = 1024
_MAX_QUEUED_BYTES = 4 << 20  # Beyond this, the oldest frames of any kind are dropped
_MEASURED_WORTH = 4  # Factor by which steps with lane totals, which are needed most, are thinned less
_SAMPLE_WORTH = 8  # The same factor for samples of GPUs: two a second, far fewer than steps
_QUIET_S = 5.0  # If a queue is less than half full for this long, twice as many steps are sent again
_HISTORY_WINDOWS = 2  # Maximum history left, in windows, once the speed of the connection is known
_MEASURED_TICKS = 3  # After this many ticks, a reader has measured its connection, and its window is valid
_MAX_BATCH_BYTES = 1 << 17
_MAX_BATCH_FRAMES = 256


class Frame(NamedTuple):
    """An encoded message with its priority."""

    payload: bytes
    spacing: int  # The frame is sent while `ReaderQueue.every` is at most this
    source: int | None = None
    """For steps and samples, a number for each rank. The newest of each source is always sent."""
    timeline_step: int | None = None


def make_frame(message: Message, payload: bytes, sample_number: int = 0) -> Frame:
    """Return the frame of a rank's message. ``sample_number``: any counter of GPU samples."""
    match message:
        case StepTotals():
            worth = _MEASURED_WORTH if message.measured else 1
            return Frame(payload, _lowest_bit(message.step) * worth, 2 * message.rank)
        case StepDetail():
            return Frame(payload, KEPT, timeline_step=message.step)
        case DeviceSample():
            spacing = _lowest_bit(sample_number) * _SAMPLE_WORTH
            return Frame(payload, spacing, 2 * message.rank + 1)
        case _:
            return Frame(payload, KEPT)


def _lowest_bit(number: int) -> int:
    return number & -number or MAX_EVERY


class ReaderQueue:
    """Frames in order, except for timelines, which may come later. History comes before all others."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.dropped = 0  # Frames dropped since the reader joined, without those of the history
        self.every = 1  # Only steps whose number is a multiple of this are sent
        self.history: deque[Frame] = deque()
        self._monotonic_s = monotonic_s
        self._stream: deque[Frame] = deque()
        self.status: bytes | None = None
        """The hub's status, sent regardless of grants: a reader that lags should know by how much."""
        self._newest: dict[int, Frame] = {}  # Source -> its newest frame, if that was dropped
        self._details: deque[Frame] = deque()
        self._stream_bytes = self._loose_bytes = self._detail_bytes = self._history_bytes = 0
        """`_loose_bytes`: stream frames that may be dropped."""
        self._owed_bytes = 0  # Bytes owed to timelines: while there is too much of both, they get half
        self._history_every = 1
        self._ticks = 0
        self._sent_bytes = self._received_bytes = self._window_bytes = 0
        self._busy_s = monotonic_s()  # When the queue was last more than half full, or `every` changed

    def begin(self, history: list[Frame], most_bytes: float = float("inf")) -> None:
        """Queue the history, or about ``most_bytes`` of it."""
        self.history.extend(history)
        self._history_bytes = _size(self.history)
        self._thin_history(most_bytes)

    def put(self, frame: Frame) -> None:
        if frame.timeline_step is not None:
            self._details.append(frame)
            self._detail_bytes += len(frame.payload)
            if self._detail_bytes > self._bound_bytes:
                self._thin_details()
            return
        self._append(frame)
        self._thin_stream()

    def grant(self, received_bytes: int, window_bytes: int) -> None:
        """Record the bytes that the reader has received, and how many more may be in flight."""
        self._received_bytes = min(received_bytes, self._sent_bytes)
        self._window_bytes = window_bytes

    def take(self) -> list[bytes]:
        """Return the next frames that are granted. They count as sent."""
        batch: list[bytes] = []
        free_bytes = self._received_bytes + self._window_bytes - self._sent_bytes
        left_bytes = min(free_bytes, _MAX_BATCH_BYTES)
        while left_bytes > 0 and len(batch) < _MAX_BATCH_FRAMES and (payload := self._next()):
            batch.append(payload)
            left_bytes -= len(payload)
        if not self.history and self.status is not None:
            batch.append(self.status)
            self.status = None
        self._sent_bytes += sum(map(len, batch))
        return batch

    def finish(self) -> None:
        """Release all remaining frames and the newest of each source, because nothing more comes."""
        self._stream.extend(self._newest.values())
        self._window_bytes = 1 << 62

    def tick(self) -> None:
        """Adapt the queue to the reader's recent grants. Called once a second."""
        now_s = self._monotonic_s()
        self._ticks += 1
        if self._ticks >= _MEASURED_TICKS:
            self._thin_history(_HISTORY_WINDOWS * self._window_bytes)
        if self._loose_bytes > self._bound_bytes // 2:
            self._busy_s = now_s
            return
        if self.every > 1 and now_s - self._busy_s > _QUIET_S:
            self.every, self._busy_s = self.every // 2, now_s
        for frame in self._newest.values():
            self._stream.append(frame)
            self._count(frame, 1)
        self._newest.clear()

    @property
    def _bound_bytes(self) -> int:
        """Limit for queued steps, and for timelines: half of the window, or all of it beside history."""
        return self._window_bytes * (2 if self.history else 1) // 2

    def _next(self) -> bytes:
        if self.history:
            frame = self.history.popleft()
            self._history_bytes -= len(frame.payload)
        elif self._details and (not self._stream or self._owed_bytes >= len(self._details[0].payload)):
            frame = self._details.popleft()
            self._detail_bytes -= len(frame.payload)
            self._owed_bytes = max(0, self._owed_bytes - len(frame.payload))
        elif self._stream:
            frame = self._stream.popleft()
            self._count(frame, -1)
            if self._details:
                self._owed_bytes += len(frame.payload)
        else:
            return b""
        return frame.payload

    def _thin_details(self) -> None:
        """Keep the timelines of the step that is being sent, so that its last ranks come too, and those of
        the newest step: in both, all ranks can be compared.
        """
        newest = max(frame.timeline_step or 0 for frame in self._details)
        kept_steps = {self._details[0].timeline_step, newest}
        kept = deque(frame for frame in self._details if frame.timeline_step in kept_steps)
        self.dropped += len(self._details) - len(kept)
        self._details, self._detail_bytes = kept, _size(kept)

    def _append(self, frame: Frame) -> None:
        if frame.source is not None:
            self._forget(frame.source)
            if frame.spacing < self.every:
                self._newest[frame.source] = frame
                return
        self._stream.append(frame)
        self._count(frame, 1)

    def _forget(self, source: int) -> None:
        """Drop a source's newest frame for good, if it was dropped."""
        if self._newest.pop(source, None) is not None:
            self.dropped += 1

    def _count(self, frame: Frame, sign: int) -> None:
        self._stream_bytes += sign * len(frame.payload)
        if frame.spacing < KEPT:
            self._loose_bytes += sign * len(frame.payload)

    def _thin_stream(self) -> None:
        while self._loose_bytes > self._bound_bytes and self.every < MAX_EVERY:
            self.every, self._busy_s = self.every * 2, self._monotonic_s()
            frames, self._stream = self._stream, deque()
            self._stream_bytes = self._loose_bytes = 0
            newer, self._newest = self._newest, {}
            for frame in frames:
                self._append(frame)
            for source, frame in newer.items():
                self._forget(source)
                self._newest[source] = frame
        while self._stream_bytes > _MAX_QUEUED_BYTES:
            self._count(self._stream.popleft(), -1)
            self.dropped += 1

    def _thin_history(self, most_bytes: float) -> None:
        while self._history_bytes > most_bytes and self._history_every < MAX_EVERY:
            self._history_every *= 2
            older = len(self.history) * 3 // 4
            kept = [
                frame
                for place, frame in enumerate(self.history)
                if place >= older or frame.spacing >= self._history_every
            ]
            self.history, self._history_bytes = deque(kept), _size(kept)


def _size(frames: Iterable[Frame]) -> int:
    return sum(len(frame.payload) for frame in frames)
