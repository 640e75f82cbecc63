"""What a relay has still to send: bounded, and thinned where the connection carries less.

Of a hub's messages only steps, their timelines and samples of GPUs are ever left out. Steps go by their
number, so that the same ones are left of every rank, here and on the other hosts.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from overlaptop.wire import codec
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import HubStatus, StepDetail, StepTotals, Welcome

MAX_QUEUED_BYTES = 256 << 10
"""Of steps and samples, and the same again of timelines; where the connection carries little, less."""
_MIN_QUEUED_BYTES = 8 << 10
_QUEUE_S = 2.0
"""The queue is of what the connection carries in so long."""
_FULL_BYTES = 1 << 20
"""What cannot be left out may fill the queue up to here; then nothing more is taken from the hub."""
MAX_EVERY = 1024
_MEASURED_WORTH = 4
"""Steps that carry lane totals are thinned so much less: where few are measured, these are looked at."""
_QUIET_S = 5.0
"""A queue that was less than half full for so long lets twice as many steps through again."""
_DETAIL_SHARE = 3
"""Timelines get one byte for so many of the rest, while there is too much of both."""
_TOTALS_FIELDS = 6
"""Of StepTotals, up to the first that only a measured step has."""


@dataclass(slots=True)
class _Frame:
    payload: bytes
    kind: type | None
    """StepTotals, StepDetail or DeviceSample; None: not to be left out."""
    rank: int = 0
    step: int = 0
    measured: bool = False

    def passes(self, every: int) -> bool:
        return self.step % (max(1, every // _MEASURED_WORTH) if self.measured else every) == 0


class SendQueue:
    """Frames of a hub and of the relay itself, in order, but for timelines, which may come later."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self.dropped = 0
        """Frames that the connection was too narrow for, but for steps from before this relay joined."""
        self.every = 1
        """Of the steps that come now those are sent whose number is a multiple of this."""
        self._monotonic_s = monotonic_s
        self._stream: deque[_Frame] = deque()
        self._stream_bytes = self._loose_bytes = 0
        """Of all of it, and of what may be left out."""
        self._details: deque[_Frame] = deque()
        self._detail_bytes = 0
        self._detail_credit_bytes = 0
        self._detail_order: dict[int, int] = {}
        """Rank -> when one of its timelines was last sent, counted."""
        self._turns = 0
        self._newest: dict[type, bytes] = {}
        self._bound_bytes = MAX_QUEUED_BYTES
        self._history_every = 1
        self._in_history = False
        self._busy_s = monotonic_s()
        """When the queue was last more than half full, or `every` changed."""

    def __bool__(self) -> bool:
        return bool(self._newest or self._stream or self._details)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be put in for now."""
        return self._stream_bytes > _FULL_BYTES

    def set_bandwidth(self, bytes_per_s: float) -> None:
        """What the connection is thought to carry."""
        self._bound_bytes = int(min(max(bytes_per_s * _QUEUE_S, _MIN_QUEUED_BYTES), MAX_QUEUED_BYTES))

    def clear(self) -> None:
        """Another hub is joined: what is left of the one before is of no use."""
        self._stream.clear()
        self._details.clear()
        self._stream_bytes = self._loose_bytes = self._detail_bytes = self._detail_credit_bytes = 0
        self._detail_order.clear()
        self.every = self._history_every = 1

    def put(self, payload: bytes) -> None:
        """A frame of the hub's, or of ours that must arrive, in its turn."""
        frame = self._read(payload)
        if frame.kind is not None and not self._wanted(frame):
            return
        if frame.kind is StepDetail:
            self._details.append(frame)
            self._detail_bytes += len(payload)
            if self._detail_bytes > self._bound_bytes:
                self._thin_details()
            return
        self._stream.append(frame)
        self._count(frame, 1)
        if self._loose_bytes > self._bound_bytes:
            self._thin_stream()

    def put_newest(self, kind: type, payload: bytes) -> None:
        """A frame of ours that goes before all others, in place of one of its kind that still waits."""
        self._newest[kind] = payload

    def take(self, most_bytes: int) -> list[bytes]:
        """The next frames, until they have so many bytes: the last may exceed it."""
        taken: list[bytes] = []
        for payload in self._next():
            taken.append(payload)
            most_bytes -= len(payload)
            if most_bytes <= 0:
                break
        return taken

    def tick(self) -> None:
        """To be called a few times a second."""
        now_s = self._monotonic_s()
        if self._stream_bytes > self._bound_bytes // 2:
            self._busy_s = now_s
        elif self.every > 1 and now_s - self._busy_s > _QUIET_S:
            self.every, self._busy_s = self.every // 2, now_s

    # What goes in

    def _read(self, payload: bytes) -> _Frame:
        kind = codec.kind(payload)
        if kind is Welcome:
            self._in_history, self._history_every = True, 1
        elif kind is HubStatus:
            # The first one ends the history.
            self._in_history = False
        if kind not in (StepTotals, StepDetail, DeviceSample):
            return _Frame(payload, None)
        fields = _TOTALS_FIELDS if kind is StepTotals else 2  # both others begin with two numbers as well
        values = codec.peek(payload, fields)
        if len(values) < fields or any(type(value) is not int for value in values[:2]):
            return _Frame(payload, None)  # no hub sends such a thing; whoever decodes it will refuse it
        measured = kind is StepTotals and values[5] is not None
        return _Frame(payload, kind, values[0], values[1], measured)

    def _wanted(self, frame: _Frame) -> bool:
        if self._in_history or frame.kind is not StepTotals or frame.passes(self.every):
            return True
        self.dropped += 1
        return False

    # Where there is too much

    def _thin_details(self) -> None:
        """Keep the newest of each rank, and of fewer ranks where that is still too much."""
        newest = {frame.rank: frame for frame in self._details}
        kept = deque(frame for frame in self._details if newest[frame.rank] is frame)
        size_bytes = sum(len(frame.payload) for frame in kept)
        while size_bytes > self._bound_bytes and len(kept) > 1:
            # Those whose turn was last: else the same ranks would never be seen.
            served = max(kept, key=lambda frame: self._detail_order.get(frame.rank, -1))
            kept.remove(served)
            size_bytes -= len(served.payload)
        self.dropped += len(self._details) - len(kept)
        self._details, self._detail_bytes = kept, size_bytes

    def _thin_stream(self) -> None:
        """Leave half of what may be left out; of samples the newest of each rank stays."""
        newest = {frame.rank: frame for frame in self._stream if frame.kind is DeviceSample}
        self._keep(lambda frame: frame.kind is not DeviceSample or newest[frame.rank] is frame)
        while self._loose_bytes > self._bound_bytes // 2 and self._thin_steps():
            pass
        if self._loose_bytes > self._bound_bytes:
            self._keep(lambda frame: frame.kind is None)

    def _thin_steps(self) -> bool:
        """Leave out half of the steps, of a history those long ago; returns whether there is more to it."""
        if self._in_history:
            if self._history_every >= MAX_EVERY:
                return False
            self._history_every *= 2
            every = self._history_every
            places = itertools.count(-(len(self._stream) * 3 // 4))
            self._keep(lambda frame: next(places) >= 0 or frame.kind is None or frame.passes(every))
            return True
        if self.every >= MAX_EVERY:
            return False
        self.every, self._busy_s = self.every * 2, self._monotonic_s()
        every = self.every
        self._keep(lambda frame: frame.kind is not StepTotals or frame.passes(every))
        return True

    def _keep(self, wanted: Callable[[_Frame], bool]) -> None:
        kept = deque(filter(wanted, self._stream))
        if not self._in_history:
            self.dropped += len(self._stream) - len(kept)
        self._stream = kept
        self._stream_bytes = sum(len(frame.payload) for frame in kept)
        self._loose_bytes = sum(len(frame.payload) for frame in kept if frame.kind is not None)

    def _count(self, frame: _Frame, sign: int) -> None:
        self._stream_bytes += sign * len(frame.payload)
        if frame.kind is not None:
            self._loose_bytes += sign * len(frame.payload)

    # What goes out

    def _next(self) -> Iterator[bytes]:
        while True:
            if self._newest:
                yield self._newest.pop(next(iter(self._newest)))
            elif self._details and (
                not self._stream or self._detail_credit_bytes >= len(self._details[0].payload)
            ):
                yield self._take_detail()
            elif self._stream:
                frame = self._stream.popleft()
                self._count(frame, -1)
                if self._details:
                    self._detail_credit_bytes += max(1, len(frame.payload) // _DETAIL_SHARE)
                yield frame.payload
            else:
                return

    def _take_detail(self) -> bytes:
        frame = self._details.popleft()
        self._detail_bytes -= len(frame.payload)
        self._detail_credit_bytes = max(0, self._detail_credit_bytes - len(frame.payload))
        self._turns += 1
        self._detail_order[frame.rank] = self._turns
        return frame.payload
