"""A trial on one rank: what is tried is in force for its steps, and is taken back whatever happens."""

from types import SimpleNamespace

import pytest
import torch

from overlaptop.agent.control import delay
from overlaptop.agent.control.action import SettingAction
from overlaptop.agent.control.delay import DelayTrial, HostDelay, make_delay
from overlaptop.wire import commands
from overlaptop.wire.knobs import Knob
from tests.agent.control.conftest import ENDED
from tests.processes import eventually

STEPS = 5
SWITCH = "trial, transitional"
DEPTH = Knob("depth", 1, "1", "1", 0, 9)


class Setting(SettingAction):
    def __init__(self, values, value, *, fails="", undo_fails=""):
        self.values, self.value, self.fails, self.undo_fails = values, value, fails, undo_fails
        self.abandoned = False

    def refusal(self):
        return ""

    def boundary(self, step):
        if self.fails:
            raise RuntimeError(self.fails)
        self.before = self.values[-1]
        self.changes("depth", str(self.before), str(self.value), step)
        self.values.append(self.value)
        return False

    def undoing(self):
        return Setting(self.values, self.before, fails=self.undo_fails)

    def abandon(self):
        self.abandoned = True


def trained(job):
    """The value in each step from before the agreed one to behind the trial, and how the step is marked."""
    seen, values = {}, job.action.values

    def train():
        job.train()
        seen[job.step] = values[-1]

    eventually(lambda: (job.reported and job.last[0] in ENDED) or train())
    job.join()
    for _ in range(STEPS):
        train()
    first = job.reports[-1].step
    return [(seen[step], job.executor.marks.of(step)) for step in range(first - 1, first + STEPS + 4)]


@pytest.fixture
def try_3(make_job):
    def start(**options):
        setting = Setting([1], 3, **options)
        job = make_job(setting, [SimpleNamespace(knobs=lambda: [DEPTH], action=lambda *_: setting)])
        job.receive(commands.make_trial(DEPTH, 3, STEPS))  # made now: a rank refuses what comes late
        return job

    return start


def test_value_is_in_force_from_the_agreed_step_for_its_steps(try_3):
    job = try_3()
    assert trained(job) == [
        (1, ""), (3, SWITCH), *[(3, "trial")] * (STEPS - 1), (1, SWITCH), *[(1, "")] * 3,
    ]  # fmt: skip
    first = job.reports[-1].step
    assert [state for state, step, _ in job.reported if step == first] == ["agreed", "trying", "tried"]
    report = job.reports[-1]
    assert report.text == f"depth 1 → 3 at step {first}, back at step {first + STEPS}"
    assert (report.old, report.new) == ("1", "3")


@pytest.mark.parametrize(
    ("fails", "said", "values"),
    [("fails", "", [1]), ("undo_fails", "the tried value 3 stays: ", [1, 3])],
    ids=["to be set", "to be taken back"],
)
def test_value_that_cannot_be_set_or_taken_back_is_reported(try_3, fails, said, values):
    job = try_3(**{fails: "the model is gone"})
    job.train_until(*ENDED)
    assert job.last == ("failed", None, f"RuntimeError: {said}the model is gone")
    assert job.action.values == values
    assert job.action.abandoned == (fails == "fails")


def test_disabled_agent_takes_the_value_back_at_the_same_step(try_3):
    job = try_3()
    barrier = job.barrier()
    boundary = barrier.guarded("the boundary", job.train, at_boundaries=True)
    job.train_until("trying")
    barrier.disable("elsewhere", RuntimeError("a fault"))
    first, values = job.step, job.action.values
    eventually(lambda: boundary() or values == [1, 3, 1])
    assert job.step == first + STEPS
    job.wait_for("tried")
    eventually(lambda: barrier.on_disabled is None or boundary())


class Noted(HostDelay):
    def __call__(self):
        self._timed_ns.append(2_000_000)


def test_one_rank_is_delayed_and_all_ranks_mark_the_steps(make_job):
    capture = commands.make(commands.CAPTURE, {"steps": 2})  # whose action is the trial here
    delayed, other = (
        make_job(DelayTrial(delay, "its host", 2_000_000, STEPS)) for delay in (Noted(2_000_000), None)
    )
    for job in (delayed, other):
        job.receive(capture)
        job.train_until("tried")
        for _ in range(STEPS):
            job.train()
        first = job.reports[-1].step
        assert [job.executor.marks.of(first + n) for n in range(-1, STEPS + 1)] == [
            "", *["trial"] * STEPS, "",
        ]  # fmt: skip
    assert len(delayed.action._delay._timed_ns) == STEPS
    assert delayed.last[2] == "its host was delayed by 2 ms a step, in 5 steps"
    assert (delayed.reports[-1].old, delayed.reports[-1].new) == ("0", "2000000")
    assert other.last[2] == ""


def test_delay_is_of_the_named_rank_and_refused_near_a_timeout(monkeypatch):
    monkeypatch.setattr(delay, "shortest_timeout_s", lambda: 8.0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    late, gpu, host = (
        commands.make_delay(1, *delay, 2)
        for delay in ((2_000_000_001, commands.HOST), (1, commands.GPU), (2_000_000_000, commands.HOST))
    )
    assert [make_delay(gpu, rank, 3).refusal() for rank in range(3)] == ["", "it computes on no GPU", ""]
    assert make_delay(host, 1, 3).refusal() == ""
    said = "its collectives time out after 8 s: a delay may take 2 s at most"
    assert {make_delay(late, rank, 3).refusal() for rank in range(3)} == {said}
    with pytest.raises(ValueError, match="there is no rank 1: the job has 1"):
        make_delay(host, 0, 1)
