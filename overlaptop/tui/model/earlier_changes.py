"""The changes of the jobs that were watched before the present one: a log outlives its job. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.snapshot import Snapshot

MAX_CHANGES = 128
"""Of all those jobs together: the oldest ones go."""
MAX_JOBS = 32


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
        self._job = ""
        """The present one."""
        self._seen: dict[str, JobChanges] = {}
        """By job, the one that was shown last at the end."""
        self.units: dict[str, str] = {}
        """By knob: what is known of it goes with its job."""

    def see(self, snapshot: Snapshot) -> None:
        """Take the next snapshot, of whichever job."""
        if snapshot.job is None:
            return
        self._job = snapshot.job.job
        self.units |= {each.knob.name: each.knob.unit for each in snapshot.knobs}
        self._seen.pop(self._job, None)
        self._seen[self._job] = JobChanges(self._job, snapshot.job.script, snapshot.changes)
        if len(self._seen) > MAX_JOBS:
            del self._seen[next(iter(self._seen))]

    @property
    def newest_first(self) -> list[JobChanges]:
        """All but those of the present job: of that one the snapshot has them."""
        found, room = [], MAX_CHANGES
        for left in reversed(self._seen.values()):
            if left.job != self._job and left.changes and room > 0:
                found.append(replace(left, changes=left.changes[-room:]))
                room -= len(left.changes)
        return found
