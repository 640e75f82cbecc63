"""Recordings of jobs without processes: what a session reads is written as `record` does."""

from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from overlaptop.fleet.job_session import JobSession
from overlaptop.fleet.recorder import Recorder
from overlaptop.recording.reader import Recording, RecordingError, open_recording
from overlaptop.recording.writer import Keep
from tests.fleet.builders import info, status, welcome
from tests.fleet.fakes import FakeHost, record
from tests.tui.waits import split_step


class PlayedJob:
    """A job of several ranks, its session, and its recorder, which begins at once if it has a path."""

    def __init__(self, clock, path: Path | None, ranks: int = 2, keep: Keep | None = None) -> None:
        self.clock, self.ranks = clock, ranks
        self.host = FakeHost("", record())
        self.recorder = Recorder()
        self.session = JobSession(
            hosts=[self.host], clock_ns=clock, monotonic_s=clock.monotonic_s, tap=self.recorder
        )
        if path is not None:
            self.recorder.begin(path, keep)
        self.snapshots = []
        self.session.tick()
        self.say(
            welcome(world_size=ranks), *(info(rank, world_size=ranks) for rank in range(ranks)), status()
        )

    def say(self, *messages, after_s: float = 0.1):
        """These are read, so many seconds after the last, and written."""
        self.send(*messages, after_s=after_s)
        snapshot = self.session.tick()
        self.recorder.write(snapshot)
        self.snapshots.append(snapshot)
        return snapshot

    def send(self, *messages, after_s: float = 0.1):
        """The hub sends these, so many seconds after the last."""
        self.clock.pass_s(after_s)
        self.host.hub.say(*messages)

    def step(self, number: int, *, late: int | None = None, late_ms: int = 16, after_s: float = 0.5):
        """All ranks make this step, with its timelines, now; it is read and written."""
        return self.say(*self._messages(number, late, late_ms), after_s=after_s)

    def make(self, number: int, *, late: int | None = None, after_s: float = 0.5):
        """As `step`, but nobody reads it yet."""
        self.send(*self._messages(number, late, 16), after_s=after_s)

    def _messages(self, number, late, late_ms):
        made = [
            [replace(each, start_ns=self.clock()) for each in split_step(rank, number, late_ms=late_by)]
            for rank in range(self.ranks)
            for late_by in [late_ms if rank == late else 0]
        ]
        return [*(message for of_rank in made for message in of_rank), status()]


def whole(path: Path) -> Recording | None:
    """The recording that another process writes, once it is whole."""
    with suppress(RecordingError):
        recording = open_recording(path)
        return None if recording.damage else recording
    return None


def played(
    clock, path: Path, steps: int = 40, *, late: int | None = 1, after_s: float = 0.5, **options
) -> PlayedJob:
    """A recording of steps in which rank ``late`` is late, one each ``after_s``."""
    job = PlayedJob(clock, path, **options)
    for number in range(steps):
        job.step(number, late=late, after_s=after_s)
    job.recorder.end()
    return job
