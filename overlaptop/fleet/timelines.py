"""The timelines of a rank's last steps, packed: as objects they would keep the garbage collector busy."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from overlaptop.wire.messages import StepDetail

MAX_BYTES = 4 << 20
"""Of a rank: some hundreds of steps."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StepDetail).decode


class KeptTimeline(NamedTuple):
    """One step's."""

    step: int
    packed: bytes

    def unpack(self) -> StepDetail:
        """As it came."""
        return _decode(self.packed)


class Timelines:
    """Those of the newest steps, bounded in bytes."""

    def __init__(self) -> None:
        self._kept: deque[KeptTimeline] = deque()
        self._bytes = 0

    def add(self, detail: StepDetail) -> None:
        """Keep it, in place of the oldest ones."""
        self._kept.append(KeptTimeline(detail.step, packed := _encode(detail)))
        self._bytes += len(packed)
        while self._bytes > MAX_BYTES:
            self._bytes -= len(self._kept.popleft().packed)

    def clear(self) -> None:
        """Forget them all."""
        self._kept.clear()
        self._bytes = 0

    @property
    def kept(self) -> tuple[KeptTimeline, ...]:
        """Oldest first."""
        return tuple(self._kept)
