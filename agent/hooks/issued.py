"""The last collectives that this rank issued in each group: one of them may hang."""

from collections import deque
from time import time_ns

from overlaptop.wire.messages import MAX_LAST_CALLS, MAX_LAST_GROUPS


class IssuedCalls:
    """`note` runs on the job's threads, everything else on the agent's."""

    def __init__(self) -> None:
        self.count = 0  # Collectives and point-to-point operations issued so far
        self._last: dict[tuple[str, str], deque[tuple[str, int | None, int]]] = {}

    def note(self, group: str, device_type: str, op: str, size_bytes: int | None) -> None:
        """Note a call that is about to be issued; ``op`` is empty if the group does not number it."""
        self.count += 1
        if not op:
            return
        calls = self._last.get((group, device_type))
        if calls is None:
            if len(self._last) >= MAX_LAST_GROUPS:
                return
            calls = self._last[group, device_type] = deque(maxlen=MAX_LAST_CALLS)
        calls.append((op, size_bytes, time_ns()))

    def last(self, group: str, device_type: str) -> tuple[tuple[str, int | None, int], ...]:
        """Return operation, bytes and Unix time in ns of the last calls, oldest first."""
        return tuple(self._last.get((group, device_type), ()))
