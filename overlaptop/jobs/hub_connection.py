"""A dashboard's connection to a hub: one protocol whatever carries it."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Protocol

from overlaptop.jobs.hub_socket import HubSocket
from overlaptop.jobs.record import JobRecord
from overlaptop.wire.commands import Command
from overlaptop.wire.schema import Message

_LOOK_FOR_HUB_S = 0.5


class HubConnection(Protocol):
    """Messages from one job's hub. Not for use from several threads at once.

    Welcome is the first message, or TurnedAway for as long as there is no room. Welcome comes again where
    the connection was lost, or the hub forgot a dashboard that was suspended. Then the history comes again
    too: pass over steps and notices that are known already.
    """

    @property
    def alive(self) -> bool:
        """False once the hub's process has ended; poll() may still have its last messages."""

    @property
    def last_received_s(self) -> float | None:
        """Seconds since the hub last sent something, as a live hub does each second; None before that."""

    @property
    def dropped(self) -> int:
        """Frames from the hub that were not messages."""

    def poll(self) -> list[Message]:
        """What has come since the last call, oldest first. Never waits."""

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """Asks for StepDetail of these ranks and of no others from now on, and for a burst whenever
        ``bursts`` grows.
        """

    def send(self, command: Command) -> bool:
        """Gives the hub a command for all ranks; False: no hub has answered yet.

        What becomes of it comes back as CommandOutcome. Raises WireError for one that is not allowed.
        """

    def close(self) -> None:
        """Closes the connection. Nothing may be called after it but close."""


class LocalHubConnection(HubSocket):
    """A connection to a hub on this machine."""

    def __init__(self, record: JobRecord) -> None:
        super().__init__(record.dashboard_path)
        self._record = record
        self._alive = True
        self._look_due_s = 0.0

    @property
    def alive(self) -> bool:
        """As HubConnection says. Looks at the process at most twice a second."""
        now_s = time.monotonic()
        if self._alive and now_s >= self._look_due_s:
            self._look_due_s = now_s + _LOOK_FOR_HUB_S
            self._alive = self._record.hub_alive
        return self._alive

    @property
    def last_received_s(self) -> float | None:
        """As HubConnection says."""
        return None if self.received_at_s is None else time.monotonic() - self.received_at_s
