"""A rank without a process group that is given commands, and actions that note what is asked of them."""

import threading
import time
from collections import deque

import pytest

from overlaptop.agent.control.action import CAPTURED, TRANSITIONAL, Action, Outcome
from overlaptop.agent.control.executor import CommandExecutor
from overlaptop.agent.control.two_phase_commit import StepProgress
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.placement import RankPlacement
from overlaptop.wire.commands import ENDED_BADLY, ENDED_WELL, CommandReport
from tests.processes import eventually

ENDED = (*ENDED_WELL, *ENDED_BADLY)
LIMIT_S = 60.0


class Recording(Action):
    acts = "recording"
    finishes = "writing"
    done = "written"
    mark = CAPTURED

    def __init__(self, steps=2, *, refuses="", fails_at=None, result="/there/rank0.json.gz"):
        self.steps, self.refuses, self.fails_at, self.result = steps, refuses, fails_at, result
        self.seen, self.threads, self.abandoned = [], set(), False
        self.may_finish = threading.Event()
        self.may_finish.set()

    def refusal(self):
        return self.refuses

    def boundary(self, step):
        self.seen.append(step)
        self.threads.add(threading.current_thread())
        if len(self.seen) == self.fails_at:
            raise OSError("no space left on device")
        return len(self.seen) < self.steps

    def finish(self):
        self.may_finish.wait()
        if isinstance(self.result, Exception):
            raise self.result
        return Outcome(self.result, "1", "2")

    def abandon(self):
        self.abandoned = True


class Changing(Recording):
    acts = "changing"
    finishes = ""
    done = "changed"
    mark = TRANSITIONAL
    together = True


class CommandedRank:
    """A rank without a process group, whose training is the test's own thread. A command to capture, or
    about its knobs, is its action.
    """

    def __init__(self, action=None, knobs=(), *, allowed=True, measured=True):
        self.step, self.action = 10, action or Recording()
        self.notices, self.states = [], []
        self.paces = set()  # The steps at which it was asked how far it is
        self.executor = CommandExecutor(
            RankPlacement("job-1", 3, 3, 4, "here", starts_hub=True),
            knobs,
            allowed=allowed,
            pace=self.pace if measured else lambda: None,
            capture=lambda _command: self.action,
            notice=lambda level, text: self.notices.append((level, text)),
        )

    def pace(self):
        self.paces.add(self.step)
        return StepProgress(self.step, 300_000_000)

    def receive(self, *waiting):
        self.executor.serve(deque(waiting), self.states.append)

    def train(self):
        self.step += 1
        if (armed := self.executor.armed) is not None:
            armed.on_boundary(self.step)
        time.sleep(0.001)

    def train_until(self, *states):
        eventually(lambda: (self.reported and self.last[0] in states) or self.train())
        if self.last[0] in ENDED:
            self.join()  # it notices once it has reported

    def wait_for(self, state):
        eventually(lambda: self.reported and self.last[0] == state)

    def join(self):
        for thread in self.executor._threads:
            thread.join(LIMIT_S)

    @property
    def reports(self):
        self.executor.send_reports(self.states.append)
        return [each for each in self.states if isinstance(each, CommandReport)]

    @property
    def reported(self):
        return [(report.state, report.step, report.text) for report in self.reports]

    @property
    def last(self):
        return self.reported[-1]

    def barrier(self):
        barrier = FaultBarrier(lambda level, text: None)
        barrier.on_disabled = lambda: self.executor.disable("the agent disabled itself")
        barrier.pending = lambda: self.executor.pending
        return barrier


@pytest.fixture
def make_job():
    jobs = []

    def make(*args, **kwargs):
        jobs.append(CommandedRank(*args, **kwargs))
        return jobs[-1]

    yield make
    for job in jobs:
        if isinstance(job.action, Recording):
            job.action.may_finish.set()
        job.executor.close()
