"""The interface of a session: Snapshots come from it, commands go to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.jobs.record import JobRecord
from overlaptop.wire.commands import Command


class Session(Protocol):
    """A JobSession, a ClusterSession, a FinishedSession, or a test's script."""

    @property
    def jobs(self) -> tuple[JobRecord, ...]:
        """The jobs that could be shown, newest first."""

    @property
    def job_key(self) -> str | None:
        """Key of the job that is shown or being joined; None while there is none."""

    def tick(self) -> Snapshot:
        """What is known now. Never blocks."""

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """The ranks whose timeline is on the screen, and how many bursts were asked of them so far."""

    def send(self, command: Command) -> str:
        """Send a command; returns why that is impossible, empty: it is on its way."""

    def select(self, key: str) -> None:
        """Show the job with this key from now on."""

    def close(self) -> None:
        """Close the connection to the job."""


class Connections(Protocol):
    """The connections to other hosts, for an event loop that waits for their messages."""

    def fileno(self) -> int:
        """A descriptor that is readable whenever `receive` has something to do; always the same."""

    def receive(self) -> None:
        """Read what has arrived. Never blocks."""

    def retry(self) -> None:
        """Reconnect those that are down at once."""
