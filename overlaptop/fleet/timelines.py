"""The timelines of a rank's last steps, packed: as objects they would slow the garbage collector."""

from collections import deque
from typing import NamedTuple

import msgspec

from overlaptop.wire.messages import StepDetail

MAX_BYTES = 4 << 20
"""Per rank: several hundred steps."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StepDetail).decode


class KeptTimeline(NamedTuple):
    """Packed timeline of one step."""

    step: int
    packed: bytes

    def unpack(self) -> StepDetail:
        return _decode(self.packed)


class Timelines:
    """Timelines of the newest steps, bounded in bytes."""

    def __init__(self) -> None:
        self._kept: deque[KeptTimeline] = deque()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def oldest_step(self) -> int:
        """Step of the oldest kept timeline. At least one is needed."""
        return self._kept[0].step

    def drop_oldest(self) -> None:
        """Drop the oldest timeline. At least one is needed."""
        self._bytes -= len(self._kept.popleft().packed)

    def add(self, detail: StepDetail) -> None:
        self._kept.append(KeptTimeline(detail.step, packed := _encode(detail)))
        self._bytes += len(packed)
        while self._bytes > MAX_BYTES:
            self.drop_oldest()

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0

    @property
    def kept(self) -> tuple[KeptTimeline, ...]:
        return tuple(self._kept)
