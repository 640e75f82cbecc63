"""What one rank does with a command: refuse it, or agree, act and report; and never harm the job."""

import threading

import pytest
from msgspec.structs import replace

from overlaptop.agent.control import executor
from overlaptop.wire import commands
from overlaptop.wire.knobs import Knob, KnobFacts
from tests.agent.control.conftest import ENDED, LIMIT_S, Changing, Recording
from tests.processes import eventually


def capture(**changes):
    return replace(commands.make(commands.CAPTURE, {"steps": 2}), **changes)


def test_command_acts_once_and_is_reported_step_by_step(make_job):
    job = make_job()
    command = capture()
    job.receive(command, command)
    job.train_until(*ENDED)
    # 300 ms a step and a second's notice: four steps, and two for safety.
    first = job.action.seen[0]
    assert first - 6 in job.paces
    order = ("accepted", "agreed", "recording", "writing", "written")
    assert sorted(job.reported, key=lambda said: order.index(said[0])) == [
        ("accepted", None, ""),
        *((state, first, "") for state in order[1:4]),
        ("written", first, "/there/rank0.json.gz"),
    ]
    assert {(report.rank, report.command) for report in job.reports} == {(3, command.id)}
    job.receive(command)
    assert job.action.seen == [first, first + 1]
    assert job.action.threads == {threading.current_thread()}
    assert job.executor.armed is None
    assert job.notices == [("info", f"capture (steps 2), asked by {command.by}")]


@pytest.mark.parametrize(
    ("job", "command", "words"),
    [
        ({"allowed": False}, {}, "start the job with --control"),
        ({"measured": False}, {}, "no step has been measured yet"),
        ({"action": Recording(refuses="its profiler runs")}, {}, "its profiler runs"),
        ({}, {"at_ns": 1}, "s late"),
    ],
    ids=["not allowed", "not measured", "the action", "late"],
)
def test_what_cannot_be_done_is_refused_with_the_reason(make_job, job, command, words):
    job = make_job(**job)
    job.receive(capture(**command))
    ((state, _, text),) = job.reported
    assert state == "refused"
    assert words in text
    assert job.notices == [("warning", f"no capture: {text}")]
    assert job.action.seen == []


KNOB = Knob("depth", 2, "2", "1", 0, 4)
WIDTH = replace(KNOB, name="width")
FIXED = replace(KNOB, name="fixed", refusal="it shards nothing")


class Provided:
    def __init__(self, *knobs):
        self.knobs = lambda: knobs

    def action(self, knob, value):
        return Changing(result=f"{knob} {value}")


@pytest.mark.parametrize(
    ("name", "arguments", "knob", "state", "text"),
    [
        (commands.SET, {"value": 3}, "width", "changed", "width 3"),
        (commands.RESTORE, {}, "depth", "changed", "depth None"),
        (commands.SET, {"value": 5}, "depth", "refused", "depth must be from 0 to 4, not 5"),
        (commands.SET, {"value": 5}, "fixed", "refused", "it shards nothing"),
        (commands.RESTORE, {}, "no", "refused", "there is no knob no; there is: depth, fixed, width"),
    ],
)
def test_knob_is_set_by_its_provider_if_its_bounds_allow(make_job, name, arguments, knob, state, text):
    job = make_job(knobs=(Provided(KNOB, FIXED), Provided(WIDTH)))
    job.receive()
    assert job.states == [KnobFacts(3, (KNOB, FIXED, WIDTH))]
    job.receive(commands.make(name, arguments, knob=knob))
    job.train_until(*ENDED)
    assert job.last[::2] == (state, text)


def test_a_second_command_is_answered_busy_and_the_first_goes_on(make_job):
    job = make_job()
    first, second = capture(), capture()
    job.receive(first)
    job.train_until("accepted", "agreed")
    job.receive(second)
    assert [(r.state, r.text) for r in job.reports if r.command == second.id] == [
        ("busy", "another command is under way: capture (steps 2)")
    ]
    job.train_until("written")


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Recording(fails_at=1), "OSError: no space left on device"),
        (Recording(result=RuntimeError("torch could not write")), "RuntimeError: torch could not write"),
    ],
    ids=["on the training thread", "while it finishes"],
)
def test_failed_action_is_reported_and_abandoned(make_job, action, words):
    job = make_job(action)
    job.receive(capture())
    job.train_until(*ENDED)
    assert job.last == ("failed", None, words)
    assert action.abandoned == (action.fails_at is not None)
    job.train()
    assert len(action.seen) == (action.fails_at or action.steps)


@pytest.mark.parametrize("state", ["accepted", "recording", "writing"])
def test_ending_job_waits_only_for_a_trace_being_written(make_job, state):
    job = make_job(Recording(steps=2 if state == "writing" else 1000))
    job.action.may_finish.clear()
    job.receive(capture())
    if state != "accepted":
        job.train_until(state)
    threading.Timer(0.1, job.action.may_finish.set).start()
    job.executor.close()
    assert job.executor.armed is None
    assert job.action.abandoned == (state == "recording")
    assert bool(job.action.seen) == (state != "accepted")
    if state == "writing":
        assert job.last[0] == "written"
    else:
        assert job.last == ("failed", None, "the job ended first")


def test_disabled_agent_does_not_act_before_all_have_agreed(make_job, monkeypatch):
    job, thaw = make_job(Changing()), threading.Event()
    join_commit = executor.join_commit
    monkeypatch.setattr(executor, "join_commit", lambda *args: thaw.wait(LIMIT_S) and join_commit(*args))
    job.receive(capture())
    assert not job.executor.disable("the agent disabled itself")
    thaw.set()
    while job.executor.pending:
        job.train()
    assert job.executor.disable("the agent disabled itself")
    assert job.action.seen == []
    assert job.last == ("failed", None, "the agent disabled itself")


class Undecided:
    """A commit whose decision never arrives."""

    voted, resolve_limit_s = True, 0.2

    def __init__(self, _key, _pace, arm, *_):
        arm(11)
        self.decided = threading.Event()
        self.run = self.decided.wait
        self.resolve = lambda: None
        self.abandon = self.clean_up = lambda *_, **__: self.decided.set()


def test_rank_does_not_act_without_a_decision(make_job, monkeypatch):
    monkeypatch.setattr(executor, "join_commit", Undecided)
    job = make_job(Changing(steps=1))
    job.receive(capture())
    eventually(lambda: job.executor.armed)
    job.train()
    assert job.last == ("unknown", None, "the job's store gave no decision within 0.2 s")
    assert (job.action.seen, job.executor.armed) == ([], None)
