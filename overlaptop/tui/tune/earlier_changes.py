"""The changes of the jobs that were watched before the present one: a log outlives its job. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.snapshot import Snapshot

MAX_CHANGES = 128
"""Of all those jobs together: the oldest ones go."""


@dataclass(frozen=True, slots=True)
class JobChanges:
    """What was changed of one job, oldest first."""

    job: str
    """Its key."""
    script: str
    changes: tuple[CommandView, ...]


class EarlierChanges:
    """Follows what is watched, and keeps what a job that is left behind had in its log."""

    def __init__(self) -> None:
        self._last: Snapshot | None = None
        """The newest that has a job."""
        self._kept: list[JobChanges] = []

    def see(self, snapshot: Snapshot) -> None:
        """Take the next snapshot, of whichever job."""
        if snapshot.job is None:
            return
        last = self._last
        if last is not None and last.job is not None and last.job.job != snapshot.job.job:
            self._keep(
                JobChanges(
                    last.job.job, last.job.script, tuple(each for each in last.commands if each.knob)
                )
            )
        self._last = snapshot

    @property
    def newest_first(self) -> list[JobChanges]:
        """All but those of the present job: of that one the snapshot has them."""
        present = self._last.job.job if self._last is not None and self._last.job is not None else ""
        return [each for each in reversed(self._kept) if each.job != present]

    def _keep(self, left: JobChanges) -> None:
        self._kept = [each for each in self._kept if each.job != left.job]
        if left.changes:
            self._kept.append(left)
        too_many = sum(len(each.changes) for each in self._kept) - MAX_CHANGES
        while too_many > 0:
            oldest = self._kept[0]
            self._kept[0] = replace(oldest, changes=oldest.changes[too_many:])
            too_many -= len(oldest.changes)
            if not self._kept[0].changes:
                del self._kept[0]
