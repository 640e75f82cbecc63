"""The search for a knob's best value as the hub sees it: who holds it, and what is undone in silence.

A dashboard renews the lease of its search once a second. Where it falls silent without having ended it (its
process was killed, its machine is gone), the knob stands at whatever was tried last; the hub then gives it
the old value back. A hub that takes the place of another finds the search in the job's folder: also where
both died, what was changed is undone.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from overlaptop.jobs.files import keep, read_regular
from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.commands import Command
from overlaptop.wire.knobs import Search
from overlaptop.wire.protocol import LEASE_S

_MAX_ENDED = 64
_MAX_FILE_BYTES = 1 << 12


class SearchLease:
    """At most one search at a time: the first one stands. Times are those of the hub's clock."""

    def __init__(self, path: Path, now_s: float, lease_s: float = LEASE_S) -> None:
        """``path``: where the search is kept for the hub that comes after this one."""
        self.held: Search | None = None
        self._path = path
        self._lease_s = lease_s
        self._until_s = 0.0
        self._ended: deque[str] = deque(maxlen=_MAX_ENDED)
        """What has ended is not taken up again: a dashboard that was stopped may not know yet."""
        self._last: Search | None = None
        """The newest one that has ended."""
        with suppress(OSError, WireError):
            if isinstance(found := decode(read_regular(path, _MAX_FILE_BYTES)), Search):
                self.held, self._until_s = found, now_s + lease_s

    @property
    def state(self) -> Search | None:
        """For a new dashboard: the search that goes on, else the one that ended last."""
        return self.held or self._last

    def renew(self, search: Search, now_s: float) -> Search | None:
        """Take a dashboard's Search; returns what to publish, None: nothing new."""
        if search.over:
            return self.end() if self.held is not None and self.held.id == search.id else None
        if search.id in self._ended or (self.held is not None and self.held.id != search.id):
            return None
        self._until_s = now_s + self._lease_s
        if self.held is not None:
            return None  # as it was taken, so it stays: the value to go back to above all
        self.held = search
        self._keep()
        return search

    def objection(self, command: Command) -> str:
        """Why a search's command is not passed on, in words for the screen; empty: it is."""
        if self.held is None:
            return "the search that asks has ended"
        if command.search != self.held.id:
            return f"{self.held.by} searches for the best {self.held.knob}"
        if command.knob != self.held.knob:
            return f"the search that asks is about {self.held.knob}"
        return ""

    def has_lapsed(self, now_s: float) -> bool:
        """Whether the one that searches has fallen silent."""
        return self.held is not None and now_s > self._until_s

    def end(self) -> Search:
        """The search that goes on is over. Returns what to publish."""
        assert self.held is not None, "asked only where one goes on"
        self._last = replace(self.held, over=True)
        self._ended.append(self.held.id)
        self.held = None
        self._keep()
        return self._last

    def _keep(self) -> None:
        # Without the file the next hub learns of a search from the one that searches.
        keep(self._path, b"" if self.held is None else encode(self.held))
