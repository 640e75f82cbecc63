"""A dashboard's connection to a hub: one protocol over any transport."""

import time
from collections.abc import Collection
from typing import Protocol

from overlaptop.jobs.hub_socket import HubSocket
from overlaptop.jobs.record import JobRecord
from overlaptop.wire.commands import Command
from overlaptop.wire.messages import Found
from overlaptop.wire.schema import Message

_LOOK_FOR_HUB_S = 0.5


class HubConnection(Protocol):
    """Messages from one job's hub. Not thread-safe.

    Welcome is the first message, or TurnedAway if the hub has enough dashboards. Welcome comes again after
    a lost connection, or if the hub forgot a suspended dashboard. The history then comes again, too: skip
    known steps and notices.
    """

    @property
    def alive(self) -> bool:
        """False once the hub's process has ended. poll() may still return its last messages."""

    @property
    def last_received_s(self) -> float | None:
        """Seconds since the hub last sent something. A live hub does so each second.
        None before the first.
        """

    @property
    def dropped(self) -> int:
        """Frames from the hub that were not messages."""

    def poll(self) -> list[Message]:
        """Return the messages since the last call, oldest first. Never waits."""

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """Request StepDetail of these ranks only, and a burst whenever ``bursts`` grows."""

    def send(self, message: Command | Found) -> bool:
        """Send the hub a command for all ranks, or a finding. False if no hub has answered yet, or it reads
        nothing.

        A command's outcome comes back as CommandOutcome. Raises WireError if the command is not allowed.
        """

    def close(self) -> None:
        """Close the connection. Afterwards, only close may be called."""


class LocalHubConnection(HubSocket):
    """A connection to a hub on this machine."""

    def __init__(self, record: JobRecord) -> None:
        super().__init__(record.dashboard_path)
        self._record = record
        self._alive = True
        self._look_due_s = 0.0

    @property
    def alive(self) -> bool:
        """As in HubConnection. Checks the process at most twice a second."""
        now_s = time.monotonic()
        if self._alive and now_s >= self._look_due_s:
            self._look_due_s = now_s + _LOOK_FOR_HUB_S
            self._alive = self._record.hub_alive
        return self._alive

    @property
    def last_received_s(self) -> float | None:
        return None if self.received_at_s is None else time.monotonic() - self.received_at_s
