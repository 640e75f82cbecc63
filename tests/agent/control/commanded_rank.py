"""A rank without a process group that is given commands, and actions that note what is asked of them."""

import threading
import time
from collections import deque

from overlaptop.agent.control.action import CAPTURED, TRANSITIONAL, Action, Outcome
from overlaptop.agent.control.executor import CommandExecutor
from overlaptop.agent.control.two_phase_commit import StepProgress
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.wire.commands import ENDED_BADLY, ENDED_WELL
from tests.processes import eventually

ENDED = (*ENDED_WELL, *ENDED_BADLY)
LIMIT_S = 60.0


class Recording(Action):
    acts = "recording"
    finishes = "writing"
    done = "written"
    mark = CAPTURED

    def __init__(self, steps=2, *, refuses="", fails_at=None, result="/there/rank0.json.gz"):
        self.steps = steps
        self.refuses = refuses
        self.fails_at = fails_at
        self.result = result
        self.seen = []
        self.threads = set()
        self.abandoned = False
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
    """A rank without a process group, whose training is the test's own thread."""

    def __init__(self, action=None, *, allowed=True, measured=True, speaks=True):
        self.step = 10
        self.action = action or Recording()
        self.notices = []
        self.ends = 0
        self.paces = set()
        """The steps at which it was asked how far it is."""
        self.executor = CommandExecutor(
            3,
            allowed=allowed,
            pace=self.pace if measured else lambda: None,
            make_action=self.make_action,
            notice=lambda level, text: self.notices.append((level, text)),
            on_end=self.on_end,
            speaks_for_node=speaks,
        )

    def pace(self):
        self.paces.add(self.step)
        return StepProgress(self.step, 300_000_000)

    def make_action(self, command):
        if isinstance(self.action, Exception):
            raise self.action
        return self.action

    def on_end(self):
        self.ends += 1

    def receive(self, *waiting):
        self.executor.serve(deque(waiting))

    def train(self):
        self.step += 1
        if (armed := self.executor.armed) is not None:
            armed.on_boundary(self.step)
        time.sleep(0.001)

    def train_until(self, *states):
        eventually(lambda: (self.reported and self.last[0] in states) or self.train())
        if self.last[0] in ENDED:
            self.join()  # it notices and counts once it has reported

    def wait_for(self, state):
        eventually(lambda: self.reported and self.last[0] == state)

    def join(self):
        for thread in self.executor._threads:
            thread.join(LIMIT_S)

    @property
    def reported(self):
        return [(report.state, report.step, report.text) for report in self.executor.reports]

    @property
    def last(self):
        return self.reported[-1]


def barrier_of(job):
    barrier = FaultBarrier(lambda level, text: None)
    barrier.on_disabled = lambda: job.executor.disable("the agent disabled itself")
    barrier.pending = lambda: job.executor.pending
    return barrier
