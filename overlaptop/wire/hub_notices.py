"""Which notices say nothing new: where no launcher numbers a node's ranks, each of them speaks for all."""

from __future__ import annotations

from collections import OrderedDict

from overlaptop.wire.messages import Notice

ECHO_S = 10.0
"""Ranks that say the same of one event do so within moments; later it is another event."""
_MAX_TEXTS = 256


class Echoes:
    """The notices that were heard lately. Times are those of a monotonic clock."""

    def __init__(self) -> None:
        self._first: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        """By level and text: which rank said it first, and when."""

    def is_echo(self, notice: Notice, now_s: float) -> bool:
        """Whether another rank has just said the same."""
        key = notice.level, notice.text
        rank, since_s = self._first.get(key, (notice.rank, now_s))
        if rank != notice.rank and now_s - since_s <= ECHO_S:
            return True
        self._first[key] = notice.rank, now_s
        self._first.move_to_end(key)
        if len(self._first) > _MAX_TEXTS:
            self._first.popitem(last=False)
        return False
