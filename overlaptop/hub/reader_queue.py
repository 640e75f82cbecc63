"""What one reader is still to be sent: as much as it grants, thinned where more comes.

Steps are left out by their number, so that the same ones are left of every rank and on every host.
Timelines are left out but for the newest step's. Facts, notices and outcomes are never left out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import StepDetail, StepTotals
from overlaptop.wire.schema import Message

KEPT = 1 << 30
"""The spacing of a frame that is never left out."""
MAX_EVERY = 1024
_MAX_QUEUED_BYTES = 4 << 20
"""Beyond, the oldest frames are dropped, whatever they are."""
_MEASURED_WORTH = 4
"""Steps that carry lane totals are thinned so much less: where few are measured, these are looked at."""
_SAMPLE_WORTH = 8
"""So are samples of GPUs: there are two a second, of all steps together many more."""
_QUIET_S = 5.0
"""A queue that was less than half full for so long lets twice as many steps through again."""
_FAR_HISTORY_BYTES = 256 << 10
"""Of history, to a reader on another host: of more the older three quarters are thinned, repeatedly."""
_NEAR_WINDOW_BYTES = 1 << 20
"""No reader on another host grants so much."""
_HISTORY_WINDOWS = 2
"""So much of it may be left, in windows, once it is known what the connection carries."""
_MEASURED_TICKS = 3
"""By then a reader has measured its connection, and its window says something."""
_MAX_BATCH_BYTES = 1 << 17
_MAX_BATCH_FRAMES = 256


class Frame(NamedTuple):
    """One message as it travels."""

    payload: bytes
    spacing: int
    """It is sent as long as no more than one of so many steps, or samples, is."""
    source: int | None = None
    """Of steps, and of samples, a number for each rank: the newest of each is sent in any case."""
    timeline_step: int | None = None


def make_frame(message: Message, payload: bytes, sample_number: int = 0) -> Frame:
    """The frame of a message of a rank. ``sample_number``: any that counts samples of GPUs."""
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
    """The largest power of two that divides a number, as far as one matters here."""
    return number & -number or MAX_EVERY


class ReaderQueue:
    """Frames in order, but for timelines, which may come later. History comes before all others."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.dropped = 0
        """Frames left out of what came since the reader joined."""
        self.every = 1
        """Steps are sent whose number is a multiple of this."""
        self.history: deque[Frame] = deque()
        self._monotonic_s = monotonic_s
        self._stream: deque[Frame] = deque()
        self._newest: dict[int, Frame] = {}
        """Source -> its newest frame, if that was left out."""
        self._details: deque[Frame] = deque()
        self._stream_bytes = self._loose_bytes = self._detail_bytes = self._history_bytes = 0
        """Loose: of the stream, what may be left out."""
        self._owed_bytes = 0
        """To timelines: while there is too much of both, they get half."""
        self._history_every = 1
        self._ticks = 0
        self._sent_bytes = self._received_bytes = self._window_bytes = 0
        self._busy_s = monotonic_s()
        """When the queue was last more than half full, or `every` changed."""

    def begin(self, history: list[Frame]) -> None:
        """Queue what the reader is sent first."""
        self.history.extend(history)
        self._history_bytes = _size(self.history)

    def put(self, frame: Frame) -> None:
        """Queue a frame that has just come."""
        if frame.timeline_step is not None:
            self._details.append(frame)
            self._detail_bytes += len(frame.payload)
            if self._detail_bytes > self._bound_bytes:
                self._thin_details()
            return
        self._append(frame)
        self._thin_stream()

    def grant(self, received_bytes: int, window_bytes: int) -> None:
        """The reader has received so much, and so much more may be on the way."""
        if not self._window_bytes and window_bytes < _NEAR_WINDOW_BYTES:
            self._thin_history(_FAR_HISTORY_BYTES)
        self._received_bytes = min(received_bytes, self._sent_bytes)
        self._window_bytes = window_bytes

    def take(self) -> list[bytes]:
        """The next frames that may be sent now; they count as sent."""
        batch: list[bytes] = []
        room_bytes = self._received_bytes + self._window_bytes - self._sent_bytes
        left_bytes = min(room_bytes, _MAX_BATCH_BYTES)
        while left_bytes > 0 and len(batch) < _MAX_BATCH_FRAMES and (payload := self._next()):
            batch.append(payload)
            left_bytes -= len(payload)
        self.count_sent(sum(map(len, batch)))
        return batch

    def count_sent(self, size_bytes: int) -> None:
        """So much was sent that was not queued here."""
        self._sent_bytes += size_bytes

    def finish(self) -> None:
        """Nothing more comes: all that is left may be taken, and what was the newest."""
        self._stream.extend(self._newest.values())
        self._window_bytes = 1 << 62

    def tick(self) -> None:
        """Fit what is queued to what the reader has granted lately. Once a second."""
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
        """Of steps, and of timelines, that wait: half of what may be on the way, more beside history."""
        if not self._window_bytes:
            return _MAX_QUEUED_BYTES  # it has joined, and its first grant is on the way
        return self._window_bytes * (2 if self.history else 1) // 2

    def _next(self) -> bytes:
        """The frame whose turn it is; empty: there is none."""
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
        the newest: in both all ranks can be compared.
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
        """What was its newest and left out is so for good."""
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

    def _thin_history(self, most_bytes: int) -> None:
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
