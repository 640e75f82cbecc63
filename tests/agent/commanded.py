"""A job that takes commands, and a dashboard without a screen that gives them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlaptop.fleet.job_session import JobSession
from overlaptop.wire import commands
from tests.warm import Warm, WarmRanks, environment

PATIENT_S = 90.0
AGENT = ("-m", "overlaptop.agent", "--control")


@contextlib.contextmanager
def socket_directory() -> Iterator[Path]:
    """A socket directory of its own, short enough for a unix socket's path."""
    # A hub may still be ending in it, and removes its own files meanwhile.
    temporary = tempfile.TemporaryDirectory(prefix="ot-", ignore_cleanup_errors=True)
    with temporary as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAPTOP_DIR", f"{folder}/s")
        yield Path(folder) / "s"


class Job:
    """One job of two ranks, whose script ends after as many steps as its argument says, or when the file
    ``stop`` is there.
    """

    def __init__(
        self,
        folder: Path,
        training: str,
        words: tuple[str, ...] = AGENT,
        *,
        steps: int = 1_000_000,
        warm: Warm | None = None,
    ) -> None:
        """``words``: what comes before the script. Under torchrun, unless there are ``warm`` processes."""
        self.folder = folder
        script = folder / "train.py"
        script.write_text(textwrap.dedent(training))
        all_words = [*words, str(script), str(steps)]
        with (folder / "log").open("w") as log:
            if warm is not None:
                self.process = WarmRanks(warm, all_words, 2, folder, log, log)
                return
            self.process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                 *all_words],
                cwd=folder, env={**environment(), "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log,
            )  # fmt: skip

    def end(self) -> int:
        """Have it end by itself; returns its exit status. Not while a dashboard is there: see Dashboard."""
        (self.folder / "stop").touch()
        return self.process.wait(PATIENT_S)

    def log(self) -> str:
        """What it has said so far."""
        return (self.folder / "log").read_text()

    def losses(self) -> list[str]:
        return [(self.folder / f"losses{rank}").read_text() for rank in (0, 1)]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextlib.contextmanager
def jobs_in(tmp_path: Path, training: str, warm: Warm | None = None):
    """What launches jobs in a socket directory of their own; they are ended behind it.

    Under torchrun, unless there are ``warm`` processes.
    """
    jobs = []
    with socket_directory():

        def launch(words=AGENT, **options):
            folder = tmp_path / str(len(jobs))
            folder.mkdir()
            jobs.append(Job(folder, training, words, warm=warm, **options))
            return jobs[-1]

        yield launch
        for job in jobs:
            job.close()


def losses_alone(start, job: Job) -> list[str]:
    """Those of as many steps as `job` made, without us. ``start``: what `jobs_in` gives."""
    alone = start(words=(), steps=len(job.losses()[0].split()))
    assert alone.process.wait(PATIENT_S) == 0, alone.log()
    return alone.losses()


@contextlib.contextmanager
def watchers():
    """What makes dashboards without a screen; they are closed behind it."""
    made = []

    def make():
        made.append(Dashboard())
        return made[-1]

    yield make
    for each in made:
        each.close()


class Dashboard:
    """A dashboard without a screen."""

    def __init__(self) -> None:
        self.session = JobSession()
        self.steps = {}

    def until(self, holds):
        give_up_s = time.monotonic() + PATIENT_S
        while True:
            snapshot = self.session.tick()
            for step in snapshot.fresh:
                self.steps[step.rank, step.step] = step
            if found := holds(snapshot):
                return found
            assert time.monotonic() < give_up_s, snapshot
            time.sleep(0.02)

    def until_it_trains(self, steps=10):
        return self.until(
            lambda snapshot: (
                len(snapshot.ranks) == 2
                and all(view.last is not None and view.last.step >= steps for view in snapshot.ranks)
                and snapshot
            )
        )

    def ask(self, steps=3):
        return self.send(commands.make(commands.CAPTURE, {"steps": steps}))

    def send(self, command):
        assert self.session.send(command) == ""
        return command.id

    def outcome(self, key, states=()):
        """What became of a command; or how far it is, once that is one of these states."""

        def found(snapshot):
            for each in snapshot.commands:
                if each.id == key and (each.state in states if states else each.done):
                    return each
            return None

        return self.until(found)

    def process(self, rank):
        return self.session.tick().ranks[rank].info.pid

    def until_it_has_ended(self, job):
        """Its exit status. Reads meanwhile: libzmq aborts a process that reads nothing while a hub ends."""
        self.until(lambda _: job.process.poll() is not None)
        return job.process.returncode

    def end(self, job):
        """Have it end by itself; returns its exit status."""
        (job.folder / "stop").touch()
        return self.until_it_has_ended(job)

    def goes_on(self, steps=10):
        """The job trains on from here."""
        last = [view.last.step for view in self.session.tick().ranks]
        self.until(
            lambda snapshot: all(
                view.last.step > before + steps for view, before in zip(snapshot.ranks, last, strict=True)
            )
        )

    def close(self) -> None:
        self.session.close()
