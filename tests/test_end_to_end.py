"""The whole of it: a job under torchrun, an agent in each rank, its hub, and the app reading from it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overlaptop.fleet.job_session import JobSession
from overlaptop.launch import supervisor
from overlaptop.report.who_is_late import who_is_late
from overlaptop.tui.app import OverlaptopApp
from tests.agent.commanded import socket_directory
from tests.processes import PATIENCE_S, eventually
from tests.tui.fakes import screen_text
from tests.warm import WarmRanks

ROOT = Path(__file__).resolve().parents[1]
RANK = (
    "-m", "overlaptop.agent", "workloads/ddp.py",
    "--layers", "2", "--width", "128", "--batch", "1", "--data-ms", "30",
)  # fmt: skip
COMMAND = (
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *RANK
)  # fmt: skip
GRACE_S = 5.0
SIZE = (160, 45)


class JobBelowSupervisor:
    """The job, below a supervisor that lets nothing of it outlive the tests. They share it: torch takes
    seconds to start.
    """

    def __init__(self) -> None:
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__, str(GRACE_S), *COMMAND],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def end(self) -> None:
        """As Ctrl-C or a scheduler would: torchrun is told, and ends its ranks; the hub ends by itself."""
        torchrun = supervisor.descendants(self._supervisor.pid)[0]
        supervisor.send(torchrun, signal.SIGTERM)

    def close(self) -> None:
        self._supervisor.stdin.close()  # the lifeline
        self._supervisor.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def job():
    with socket_directory(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.delenv("NO_COLOR", raising=False)
        started = JobBelowSupervisor()
        yield started
        started.close()


@pytest.fixture
def start_again(warm):
    """Starts the same ranks, without torchrun: to who watches them they are the same job."""
    started = []

    def start():
        with Path(os.devnull).open("w") as nowhere:
            started.append(WarmRanks(warm, list(RANK), 2, ROOT, nowhere, nowhere))

    yield start
    for ranks in started:
        ranks.terminate()
        ranks.wait(PATIENCE_S)


@pytest.fixture
def session(job):
    session = JobSession()
    yield session
    session.close()


async def until(pilot, holds):
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s, screen_text(pilot.app)
        await pilot.pause(0.05)
    return found


def known(app, rank):
    return app.dashboard.latest.ranks[rank]


def overlap(app, rank):
    """Of this rank's newest measured step. None where there is none yet."""
    ranks = app.dashboard.latest.ranks
    return ranks[rank].measured.overlap if len(ranks) > rank and ranks[rank].measured else None


async def test_dashboard_gets_each_ranks_history_and_all_timelines(session):
    earlier_session = JobSession()
    eventually(
        lambda: (
            (ranks := earlier_session.tick().ranks)
            and all(view.last and view.last.step >= 20 for view in ranks)
        )
    )
    opened_ns = time.time_ns()
    earlier_session.watch([1])
    first, *_ = eventually(lambda: earlier_session.tick().ranks[1].details)
    # A hub gives away the newest detail that it has: none is older than the question.
    assert first.start_ns + first.step_ns >= opened_ns
    assert first.collectives
    earlier_session.close()
    app = OverlaptopApp(session)
    async with app.run_test(size=SIZE) as pilot:
        for rank in (0, 1):
            assert 0 < await until(pilot, lambda rank=rank: overlap(app, rank)) <= 1
        await until(pilot, lambda: re.search(r"rank 0 +step [\d,]+ .* forward .* ms", screen_text(app)))
        for view in app.dashboard.latest.ranks:
            earlier = [step for step in view.history if step.start_ns + step.step_ns < opened_ns]
            assert len(earlier) >= 10
            assert any(step.overlap is not None for step in earlier)
        # In one step or another they have room for their names.
        await until(pilot, lambda: "│allreduce" in screen_text(app) and " backward " in screen_text(app))
        text = screen_text(app)
        for words in ("workloads/ddp.py", "2 ranks", "gloo · host", "● live"):
            assert words in text

        # What the screen shows may be older than the latest Snapshot.
        shown = await until(pilot, lambda: (of := app.dashboard.state.snapshot).wait_window and of)
        said = who_is_late(shown)
        assert said is not None
        assert not said.words.startswith("who waits")
        await pilot.press("down")
        await until(pilot, lambda: re.search(r"rank 1 +step [\d,]+", screen_text(app)))


async def test_ended_job_is_reported_and_followed_after_a_restart(job, start_again, session):
    app = OverlaptopApp(session)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: overlap(app, 0) is not None)
        first_key = session.job_key
        job.end()
        # torchrun ends them by a signal, which an older kernel tells no more once it has waited for them.
        both = re.compile(r"■ (?:killed by SIGTERM|died).*■ (?:killed by SIGTERM|died)", re.DOTALL)
        words = (" ended at ", "all ranks ", ".py is started again, it is shown here")
        await until(
            pilot,
            lambda: both.search(text := screen_text(app)) and all(each in text for each in words),
        )
        ended = known(app, 0).last

        start_again()
        await until(pilot, lambda: app.dashboard.latest.job.job != first_key and known(app, 0).last)
        assert app.dashboard.latest.job.job == session.job_key
        assert known(app, 0).history[0].start_ns > ended.start_ns
        await until(pilot, lambda: "● live" in screen_text(app) and overlap(app, 1) is not None)
