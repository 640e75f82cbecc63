"""The buffers that CUPTI fills.

CUPTI requests a buffer on the thread that launches the next kernel, about once in a thousand launches, and
returns it on its own thread (callbacks.py).
"""

import ctypes
from collections.abc import Iterator

from overlaptop.agent.clock import now_ns
from overlaptop.agent.sources.cupti.callbacks import REQUESTED, CallbackLog

MAX_BUFFERS = 256  # With more buffers in use, tracing has to end


class Buffers:
    """Which buffers CUPTI holds, as of the last `look`, and the contents of those that it has returned."""

    def __init__(self) -> None:
        """Raises CuptiError if this machine cannot have the callbacks."""
        self._log = CallbackLog()
        self.request, self.complete = self._log.request, self._log.complete
        self._held: dict[int, int] = {}  # By address: a time in ns before which CUPTI had not requested it
        self._filled: dict[int, int] = {}  # By address: the valid bytes
        self._looked_ns = now_ns()

    @property
    def outstanding(self) -> int:
        return len(self._held)

    @property
    def oldest_ns(self) -> int | None:
        """A time before which CUPTI had requested none of the buffers that it holds."""
        return min(self._held.values(), default=None)

    @property
    def exhausted(self) -> bool:
        return len(self._held) > MAX_BUFFERS

    def look(self) -> None:
        """See what CUPTI has requested and returned. Raises CuptiError if that is too much to follow."""
        before_ns, self._looked_ns = self._looked_ns, now_ns()
        for address, valid_bytes in self._log.entries():
            if valid_bytes == REQUESTED:
                self._held[address] = before_ns
            elif address in self._held:  # otherwise another tool's, or handed over
                self._filled[address] = valid_bytes
                del self._held[address]

    def drain(self) -> Iterator[bytes]:
        """Yield the contents of returned buffers in order, and free them."""
        filled, self._filled = self._filled, {}
        for address, valid_bytes in filled.items():
            yield ctypes.string_at(address, valid_bytes)
            self._log.free(address)

    def discard(self) -> None:
        """Drop the contents of returned buffers, and expect no more: another user has taken CUPTI. Buffers
        that it still holds stay allocated.
        """
        while self._filled:
            self._log.free(self._filled.popitem()[0])
        self._held.clear()
