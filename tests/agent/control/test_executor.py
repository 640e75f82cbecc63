"""What one rank does with a command: refuse it, or agree, act and report; and never harm the job."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from overlaptop.agent.control import executor
from overlaptop.agent.control.action import Lifecycle, Outcome
from overlaptop.agent.control.executor import CommandExecutor
from overlaptop.agent.control.participant import Participant
from overlaptop.agent.control.two_phase_commit import ANY_POSITION, StepProgress
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.script.runner import is_bundled
from overlaptop.wire import commands
from overlaptop.wire.commands import Argument
from overlaptop.workloads.catalog import WORKLOADS

ENDED = ("written", "failed", "refused", "busy")


class Fake:
    """An action that acts for some steps."""

    def __init__(self, steps=2, refuses="", fails_at=None, result="/there/rank0.json.gz", lifecycle=None):
        self.lifecycle = lifecycle or Lifecycle("recording", "written", finishes="writing")
        self.steps = steps
        self.refuses = refuses
        self.fails_at = fails_at
        self.result = result
        self.seen = []
        self.threads = set()
        self.abandoned = False
        self.may_finish = threading.Event()
        self.may_finish.set()

    def position(self, step):
        return ANY_POSITION

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
        return Outcome(self.result)

    def abandon(self):
        self.abandoned = True


class CommandedRank:
    """A rank without a process group, whose training is the test's own thread."""

    def __init__(self, action=None, *, allowed=True, step=10, measured=True):
        self.step = step
        self.action = action or Fake()
        self.executor = CommandExecutor(
            3,
            allowed,
            lambda: StepProgress(self.step, 300_000_000) if measured else None,
            {commands.CAPTURE: lambda command: self.action},
        )

    def receive(self, *waiting):
        return self.executor.serve(deque(waiting))

    def train(self):
        """One step; as the agent does at its boundary."""
        self.step += 1
        if (armed := self.executor.armed) is not None:
            armed.on_boundary(self.step)
        time.sleep(0.001)

    def train_until(self, *states):
        give_up_s = time.monotonic() + 20
        while not self.reported or self.reported[-1][0] not in states:
            assert time.monotonic() < give_up_s, self.reported
            self.train()

    @property
    def reported(self):
        return [(report.state, report.step, report.text) for report in self.executor.reports]

    def close(self):
        self.executor.close()


@pytest.fixture
def make_job():
    jobs = []

    def make(*args, **kwargs):
        jobs.append(CommandedRank(*args, **kwargs))
        return jobs[-1]

    yield make
    for job in jobs:
        job.action.may_finish.set()
        job.close()


def capture(steps=2, **changes):
    return replace(commands.make(commands.CAPTURE, {"steps": steps}), **changes)


def test_a_command_is_accepted_agreed_done_and_reported_step_by_step(make_job):
    job = make_job()
    command = capture()
    assert job.receive(command) == [command]
    job.train_until(*ENDED)
    # 300 ms a step and a second's notice: four steps, and two for safety.
    first = job.action.seen[0]
    assert 10 + 6 <= first <= 10 + 6 + 100  # steps passed until its thread looked
    assert job.action.seen == [first, first + 1]
    order = ("accepted", "agreed", "recording", "writing", "written")
    assert sorted(job.reported, key=lambda said: order.index(said[0])) == [
        ("accepted", None, ""),
        ("agreed", first, ""),
        ("recording", first, ""),
        ("writing", first, ""),
        ("written", first, "/there/rank0.json.gz"),
    ]
    assert {report.command for report in job.executor.reports} == {command.id}
    assert {report.rank for report in job.executor.reports} == {3}


def test_it_acts_on_the_training_thread_only_and_nothing_stays_armed(make_job):
    job = make_job()
    job.receive(capture())
    job.train_until(*ENDED)
    assert job.action.threads == {threading.current_thread()}
    assert job.executor.armed is None


@pytest.mark.parametrize(
    ("job", "command", "state", "words"),
    [
        ({"allowed": False}, {}, "refused", "start the job with --control"),
        ({"measured": False}, {}, "refused", "no step has been measured yet"),
        ({"action": Fake(refuses="its profiler runs")}, {}, "refused", "its profiler runs"),
        ({}, {"at_ns": 1}, "refused", "s late"),
        ({}, {"name": "rm"}, "refused", "there is no such command"),
        ({}, {"arguments": ()}, "refused", "capture takes exactly: steps"),
        ({}, {"arguments": (Argument("steps", 101),)}, "refused", "from 1 to 100, not 101"),
        ({}, {"arguments": (Argument("steps", 1), Argument("steps", 2))}, "refused", "takes exactly"),
        ({}, {"arguments": (Argument("folder", 1),)}, "refused", "takes exactly: steps"),
    ],
)
def test_what_is_not_allowed_is_refused_here_too_whoever_passed_it_on(make_job, job, command, state, words):
    job = make_job(**job)
    assert job.receive(capture(**command)) == []
    (report,) = job.executor.reports
    assert report.state == state
    assert words in report.text
    assert job.action.seen == []


def test_what_there_is_nothing_to_act_on_for_is_refused_with_the_makers_words(make_job):
    def make(command):
        raise ValueError("there is no knob depth; there is: none")

    job = make_job()
    job.executor._makers = {commands.SET: make}
    assert job.receive(commands.make(commands.SET, {"value": 1}, knob="depth")) == []
    (report,) = job.executor.reports
    assert (report.state, report.text) == ("refused", "there is no knob depth; there is: none")


def test_a_change_says_what_the_value_was_and_what_it_becomes(make_job):
    job = make_job(Fake(lifecycle=Lifecycle("changing", "changed", together=True), result="depth 1 -> 2"))
    job.action.finish = lambda: Outcome("depth 1 -> 2", "1", "2")
    job.receive(capture())
    job.train_until("changed")
    report = job.executor.reports[-1]
    assert (report.state, report.was, report.becomes) == ("changed", "1", "2")


def test_a_second_command_is_answered_busy_and_the_first_goes_on(make_job):
    job = make_job()
    first, second = capture(), capture()
    job.receive(first)
    job.train_until("accepted", "agreed")
    job.receive(second)
    assert [(r.state, r.text) for r in job.executor.reports if r.command == second.id] == [
        ("busy", "another command is under way: capture (steps 2)")
    ]
    job.train_until("written")
    third = capture()
    assert job.receive(third) == [third]


def test_the_same_command_heard_twice_is_obeyed_once(make_job):
    job = make_job()
    command = capture()
    assert job.receive(command, command) == [command]
    job.train_until(*ENDED)
    assert job.receive(command) == []
    assert len(job.action.seen) == 2


def test_an_action_that_fails_on_the_training_thread_is_reported_and_let_go(make_job):
    job = make_job(Fake(fails_at=1))
    job.receive(capture())
    job.train_until(*ENDED)
    assert job.reported[-1] == ("failed", None, "OSError: no space left on device")
    assert job.action.abandoned
    job.train()
    assert len(job.action.seen) == 1


def test_an_action_that_comes_to_nothing_is_reported_with_the_reason(make_job):
    job = make_job(Fake(result=RuntimeError("torch could not write its trace")))
    job.receive(capture())
    job.train_until(*ENDED)
    assert job.reported[-1] == ("failed", None, "RuntimeError: torch could not write its trace")


def test_steps_are_known_to_be_disturbed_from_the_agreed_one_until_all_is_written(make_job):
    job = make_job()
    job.action.may_finish.clear()
    job.receive(capture())
    job.train_until("writing")
    first, now = job.action.seen[0], job.step
    assert [job.executor.disturbed_by(step) for step in (first - 1, first, now, now + 50)] == [
        "", "capture", "capture", "capture",
    ]  # fmt: skip
    job.action.may_finish.set()
    job.train_until("written")
    while job.executor.disturbed_by(job.step + 1):  # until its thread has put that down
        time.sleep(0.001)
    assert job.executor.disturbed_by(now)
    assert not job.executor.disturbed_by(first - 1)


def test_what_finishes_in_no_time_disturbs_no_step_after_its_last_boundary(make_job):
    job = make_job(Fake(steps=3, lifecycle=Lifecycle("changing", "changed"), result="1 -> 2"))
    command = capture()
    job.receive(command)
    job.train_until("changed")
    first = job.action.seen[0]
    assert [said for said in job.reported if said[0] in ("changing", "changed", "writing")] == [
        ("changing", first, ""), ("changed", first, "1 -> 2"),
    ]  # fmt: skip
    # The third boundary began a step that is the job's own again.
    assert [bool(job.executor.disturbed_by(first + n)) for n in range(-1, 4)] == [
        False, True, True, False, False,
    ]  # fmt: skip


def test_a_job_that_ends_in_the_middle_lets_go_on_the_thread_that_ends_it(make_job):
    job = make_job(Fake(steps=1000))
    job.receive(capture())
    job.train_until("recording")
    job.train()
    job.close()
    assert job.action.abandoned
    assert job.reported[-1] == ("failed", None, "the job ended first")
    assert job.executor.armed is None


def test_an_agent_that_disables_itself_in_the_middle_lets_go_on_the_jobs_next_call(make_job):
    job = make_job(Fake(steps=1000))
    job.receive(capture())
    job.train_until("recording")
    barrier = FaultBarrier(lambda level, text: None)
    hook = barrier.guarded("a hook", lambda: None)
    barrier.on_disabled = lambda: job.executor.disable("the agent disabled itself")
    hook()
    assert not job.action.abandoned
    barrier.disable("elsewhere", RuntimeError("a fault"))
    hook()
    hook()
    assert job.action.abandoned
    assert barrier.on_disabled is None


def test_an_agent_that_disables_itself_once_all_have_agreed_still_acts_with_the_others(make_job):
    job = make_job(
        Fake(steps=2, lifecycle=Lifecycle("changing", "changed", together=True), result="1 -> 2")
    )
    barrier = FaultBarrier(lambda level, text: None)
    barrier.on_disabled = lambda: job.executor.disable("the agent disabled itself")
    barrier.pending = lambda: job.executor.pending
    measured = []
    measure = barrier.guarded("measuring", lambda: measured.append(job.step))
    boundary = barrier.guarded("the boundary", job.train, at_boundaries=True)
    job.receive(capture())
    while "agreed" not in [state for state, _, _ in job.reported]:
        boundary()
    assert job.action.seen == []
    barrier.disable("elsewhere", RuntimeError("a fault"))
    give_up_s = time.monotonic() + 20
    while barrier.on_disabled is not None and time.monotonic() < give_up_s:
        boundary()
        measure()
    first = job.action.seen[0]
    assert job.action.seen == [first, first + 1]
    while job.reported[-1][0] == "changing" and time.monotonic() < give_up_s:
        time.sleep(0.01)  # the command's own thread reports it
    assert job.reported[-1] == ("changed", first, "1 -> 2")
    assert measured == []
    stood = job.step
    boundary()
    assert job.step == stood  # nothing is owed any more


def test_an_agent_that_disables_itself_before_all_have_agreed_does_not_act(make_job, monkeypatch):
    thaw = threading.Event()
    find_participant = executor.find_participant
    monkeypatch.setattr(executor, "find_participant", lambda key: thaw.wait() and find_participant(key))
    job = make_job(Fake(lifecycle=Lifecycle("changing", "changed", together=True)))
    job.receive(capture())
    assert not job.executor.disable("the agent disabled itself")
    thaw.set()
    while job.executor.pending:
        job.train()
    assert job.executor.disable("the agent disabled itself")
    assert job.action.seen == []
    assert job.reported[-1] == ("failed", None, "the agent disabled itself")


def test_a_command_that_its_rank_gave_up_is_not_obeyed_when_the_store_comes_back(make_job, monkeypatch):
    job = make_job()
    thaw = threading.Event()
    find_participant = executor.find_participant
    monkeypatch.setattr(executor, "find_participant", lambda key: thaw.wait() and find_participant(key))
    monkeypatch.setattr(executor, "STORE_SILENT_S", 0.0)
    job.receive(capture())
    while job.reported[-1][0] != "failed":
        job.receive()
    thaw.set()
    for thread in job.executor._threads:
        thread.join(30.0)
    for _ in range(30):
        job.train()
    assert job.action.seen == []
    assert job.reported[-1] == ("failed", None, executor.STORE_SILENT)


def test_a_store_that_is_silent_is_said_though_another_command_was_refused_meanwhile(make_job, monkeypatch):
    job = make_job()
    thaw = threading.Event()
    find_participant = executor.find_participant
    monkeypatch.setattr(executor, "find_participant", lambda key: thaw.wait() and find_participant(key))
    command = capture()
    job.receive(command)
    job.train_until("accepted")
    job.receive(capture())
    assert job.reported[-1][0] == "busy"
    job.executor._silent_at_s = 0.0
    job.receive()
    assert job.executor.reports[-1].command == command.id
    assert job.reported[-1] == ("failed", None, executor.STORE_SILENT)
    thaw.set()


def test_a_job_that_ends_before_the_agreed_step_does_not_act(make_job):
    job = make_job()
    job.receive(capture())
    job.close()
    assert job.reported[-1] == ("failed", None, "the job ended first")
    assert not job.action.abandoned
    assert job.action.seen == []


def test_a_trace_that_is_being_written_when_the_job_ends_is_waited_for(make_job):
    job = make_job()
    job.action.may_finish.clear()
    job.receive(capture())
    job.train_until("writing")
    threading.Timer(0.1, job.action.may_finish.set).start()
    job.close()
    assert job.reported[-1][0] == "written"


def test_a_store_that_stands_still_is_said_and_ever_more_threads_are_not_started(make_job, monkeypatch):
    job = make_job()
    thaw = threading.Event()

    def stuck(key):
        thaw.wait()
        raise RuntimeError("the store has gone")

    monkeypatch.setattr(executor, "find_participant", stuck)
    monkeypatch.setattr(executor, "STORE_SILENT_S", 0.0)
    job.receive(capture())
    while job.reported[-1][0] != "failed":
        job.receive()
    assert job.reported[-1] == ("failed", None, "the job's store does not answer")
    before = threading.active_count()
    for _ in range(20):
        job.receive(capture())
    assert threading.active_count() <= before + executor.MAX_THREADS
    assert job.reported[-1][2].startswith("the job's store does not answer: earlier commands")
    thaw.set()


class SilentStore:
    """A store that says nothing from this rank's vote on, until it is thawed."""

    def __init__(self):
        self.store = dist.HashStore()
        self.store.set("plan", "30 0")
        self.gone = False
        self.voted = threading.Event()
        self.thaw = threading.Event()

    def __getattr__(self, name):
        def call(*args):
            if self.voted.is_set():
                self.thaw.wait()
                if self.gone:
                    raise RuntimeError("Connection reset by peer")
            answer = getattr(self.store, name)(*args)
            if name == "set" and args[0].startswith("armed"):
                self.voted.set()
            return answer

        return call


@pytest.fixture
def voted(make_job, monkeypatch):
    """A job that has voted for a change, whose store then falls silent; and that store."""
    silent = SilentStore()
    monkeypatch.setattr(executor, "find_participant", lambda key: Participant(silent, 1, 2, 0.2))
    job = make_job(
        Fake(steps=1, lifecycle=Lifecycle("changing", "changed", together=True), result="1 -> 2")
    )
    job.receive(capture())
    assert silent.voted.wait(20)
    yield job, silent
    silent.thaw.set()


@pytest.mark.parametrize(("decided", "end"), [("commit", "changed"), ("abort 0 does not answer", "failed")])
def test_a_rank_that_has_voted_does_not_say_that_it_failed_before_it_knows(voted, decided, end):
    job, silent = voted
    job.executor._silent_at_s = 0.0
    job.receive()
    assert job.reported[-1] == ("unknown", None, executor.STORE_SILENT)
    silent.store.set("decision", decided)
    silent.thaw.set()
    job.train_until(*ENDED, "changed")
    assert job.reported[-1][0] == end
    assert len(job.action.seen) == (end == "changed")


def test_a_rank_whose_store_is_gone_once_it_has_voted_does_not_say_that_it_failed(voted):
    job, silent = voted
    silent.gone = True
    silent.thaw.set()
    give_up_s = time.monotonic() + 20
    while job.reported[-1][0] not in (*ENDED, "unknown") and time.monotonic() < give_up_s:
        time.sleep(0.001)
    assert job.reported[-1] == ("unknown", None, "RuntimeError: Connection reset by peer")
    for _ in range(40):
        job.train()
    assert job.action.seen == []


def test_a_rank_that_never_learns_the_decision_stands_no_longer_than_the_others_wait(voted):
    job, _silent = voted
    job.step = 29
    job.train()  # stands at the planned step
    words = "the job's store did not say within 0.2 s what was decided"
    assert job.reported[-1] == ("unknown", None, words)
    job.train()
    assert job.action.seen == []
    assert job.executor.armed is None


def test_bundled_workloads_are_known_by_where_they_lie(tmp_path, monkeypatch):
    for workload in WORKLOADS:
        assert is_bundled(str(workload.path), module=False)
    assert is_bundled("overlaptop.workloads.ddp", module=True)
    monkeypatch.chdir(Path(__file__).parents[3])
    assert is_bundled("workloads/ddp.py", module=False)
    assert is_bundled("overlaptop/workloads/../workloads/ddp.py", module=False)


def test_nothing_else_passes_for_a_bundled_workload(tmp_path):
    copy = tmp_path / "workloads" / "ddp.py"
    copy.parent.mkdir()
    copy.write_text("")
    for target, module in (
        (str(copy), False), ("ddp.py", False), ("overlaptop.workloads.ddp", False),
        ("overlaptop.workloadsx", True), ("train", True), ("", False), (str(tmp_path), False),
    ):  # fmt: skip
        assert not is_bundled(target, module=module)


def test_a_link_into_the_bundled_folder_is_what_it_points_to(tmp_path):
    (tmp_path / "mine.py").symlink_to(WORKLOADS[0].path)
    assert is_bundled(str(tmp_path / "mine.py"), module=False)


def test_the_modules_of_control_import_no_torch():
    code = (
        "import sys, overlaptop.agent.control.executor, overlaptop.agent.control.capture;"
        "import overlaptop.agent.knobs.change_bucket_size;"
        "sys.exit('torch' in sys.modules or 'zmq' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
