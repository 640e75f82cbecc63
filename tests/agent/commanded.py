"""A job that takes commands, and a dashboard without a screen that gives them."""

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
from overlaptop.launch.supervisor import end_with_parent
from overlaptop.wire import commands
from tests.warm import Warm, WarmRanks, environment

PATIENT_S = 90.0
TRAINING = Path(__file__).with_name("train_ddp.py").read_text()
AGENT = ("-m", "overlaptop.agent", "--control")


@contextlib.contextmanager
def socket_directory() -> Iterator[Path]:
    # A hub may still be ending in it, and removes its own files meanwhile.
    temporary = tempfile.TemporaryDirectory(prefix="ot-", ignore_cleanup_errors=True)
    with temporary as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAPTOP_DIR", f"{folder}/s")
        yield Path(folder) / "s"


class CommandedJob:
    """One job, whose script ends after as many steps as its argument says, or when the file ``stop`` is
    there.
    """

    def __init__(
        self,
        folder: Path,
        words: tuple[str, ...] = AGENT,
        *,
        training: str = TRAINING,
        steps: int = 1_000_000,
        ranks: int = 2,
        warm: Warm | None = None,
    ) -> None:
        """``words``: what comes before the script. Under torchrun, unless there are ``warm`` processes."""
        self.folder = folder
        script = folder / "train.py"
        script.write_text(textwrap.dedent(training))
        all_words = [*words, str(script), str(steps)]
        with (folder / "log").open("w") as log:
            if warm is not None:
                self.process = WarmRanks(warm, all_words, ranks, folder, log, log)
                return
            self.process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
                 *all_words],
                cwd=folder, env=environment(), stdout=log, stderr=log,
                preexec_fn=end_with_parent,
            )  # fmt: skip

    def end(self) -> int:
        """Have it end by itself; returns its exit status. Not while a dashboard is there: see Dashboard."""
        (self.folder / "stop").touch()
        return self.process.wait(PATIENT_S)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def losses(self) -> list[str]:
        return [path.read_text() for path in sorted(self.folder.glob("losses*"))]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Dashboard:
    def __init__(self) -> None:
        self.session = JobSession()
        self.steps = {}

    def look(self):
        """Each look keeps its fresh steps: no later one tells them again."""
        snapshot = self.session.tick()
        for step in snapshot.fresh:
            self.steps[step.rank, step.step] = step
        return snapshot

    def until(self, holds):
        give_up_s = time.monotonic() + PATIENT_S
        while True:
            snapshot = self.look()
            if found := holds(snapshot):
                return found
            assert time.monotonic() < give_up_s, snapshot
            time.sleep(0.02)

    def until_it_trains(self, steps=10, ranks=2):
        def trains(snapshot):
            last = [view.last.step for view in snapshot.ranks if view.last is not None]
            return snapshot if len(last) == ranks and min(last) >= steps else None

        return self.until(trains)

    def ask(self, steps=3):
        return self.send(commands.make(commands.CAPTURE, {"steps": steps}))

    def send(self, command):
        assert self.session.send(command) == ""
        return command.id

    def set(self, knob, value):
        command = commands.make_restoring(knob) if value is None else commands.make_setting(knob, value)
        return self.outcome(self.send(command))

    def knob(self, name, value_text):
        def told(snapshot):
            known = {each.knob.name: each.knob for each in snapshot.knobs if not each.differs}
            return known[name] if name in known and known[name].value_text == value_text else None

        return self.until(told)

    def steps_of(self, rank):
        return {number: step for (r, number), step in sorted(self.steps.items()) if r == rank}

    def outcome(self, key, states=()):
        def found(snapshot):
            made = (each for each in snapshot.commands if each.id == key)
            return next((each for each in made if (each.state in states if states else each.done)), None)

        return self.until(found)

    def end(self, job):
        """Have it end by itself; returns its exit status. Reads meanwhile: libzmq aborts a process that
        reads nothing while a hub ends.
        """
        (job.folder / "stop").touch()
        self.until(lambda _: job.process.poll() is not None)
        return job.process.returncode

    def goes_on(self, steps=10):
        last = max(view.last.step for view in self.look().ranks)
        self.until_it_trains(last + steps, len(self.look().ranks))
