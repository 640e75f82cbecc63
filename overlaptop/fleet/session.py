"""What a session is: where Snapshots come from, and where commands go."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.wire.endpoints import JobRecord
from overlaptop.wire.knobs import Search
from overlaptop.wire.messages import Command


class Session(Protocol):
    """Where Snapshots come from: a JobSession, a replay, or a test's script."""

    @property
    def jobs(self) -> tuple[JobRecord, ...]:
        """The jobs that could be shown, newest first."""

    @property
    def job_key(self) -> str | None:
        """Key of the job that is shown or being joined; None while there is none."""

    def tick(self) -> Snapshot:
        """What is known now. Never blocks."""

    def watch(self, ranks: Collection[int]) -> None:
        """The ranks whose timeline is on the screen."""

    def send(self, command: Command) -> str:
        """Tell the job to do something; returns why that cannot be, empty: it is on its way."""

    def hold(self, search: Search) -> str:
        """Say that a search goes on here; returns why it cannot, empty: it may."""

    def select(self, key: str) -> None:
        """Show the job with this key from now on."""

    def close(self) -> None:
        """Give up the line to the job."""


class Connections(Protocol):
    """The lines to other hosts, for whoever waits for what they bring."""

    def fileno(self) -> int:
        """A descriptor that can be read from whenever `receive` has something to do; the same for good."""

    def receive(self) -> None:
        """Take in what has come. Never blocks."""

    def retry(self) -> None:
        """Try those that are down at once."""
