"""The interface of a session: Snapshots come from it, commands go to it."""

from collections.abc import Collection
from typing import Protocol

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.jobs.record import JobRecord
from overlaptop.wire.commands import Command
from overlaptop.wire.messages import Found


class Session(Protocol):
    """A JobSession, a ReplaySession, a FinishedSession, or a test's fake."""

    @property
    def jobs(self) -> tuple[JobRecord, ...]:
        """Jobs that can be shown, newest first."""

    @property
    def job_key(self) -> str | None:
        """Key of the job that is shown or being joined. None if there is none."""

    def tick(self) -> Snapshot:
        """Return the current Snapshot. Never blocks."""

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """Set the ranks whose timelines are on the screen, and the number of bursts requested so far."""

    def send(self, message: Command | Found) -> str:
        """Send a command, or a finding. Return why it cannot be sent, or "" if it was sent."""

    def select(self, key: str) -> None:
        """Show the job with this key from now on."""

    def close(self) -> None:
        """Close the connection to the job."""


class ReadSession:
    """The base of a Session whose job was read from files: nothing can be asked of it."""

    jobs: tuple[JobRecord, ...] = ()

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """Do nothing: all timelines were read."""

    def send(self, message: Command | Found) -> str:
        """Refuse the message."""
        del message
        return "this job was read from a file: it takes no commands"

    def select(self, key: str) -> None:
        """Do nothing: there is no other job."""

    def close(self) -> None:
        """Do nothing: nothing is open."""
