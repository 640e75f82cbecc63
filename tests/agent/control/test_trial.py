"""A trial on one rank is taken back whatever happens. What it does to a job: test_trial_in_job."""

from types import SimpleNamespace

import pytest
import torch

from overlaptop.agent.control import delay
from overlaptop.agent.control.action import SettingAction
from overlaptop.agent.control.delay import make_delay
from overlaptop.wire import commands
from overlaptop.wire.knobs import Knob
from tests.agent.control.conftest import ENDED
from tests.processes import eventually

STEPS = 5
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


@pytest.fixture
def try_3(make_job):
    def start(**options):
        setting = Setting([1], 3, **options)
        job = make_job(setting, [SimpleNamespace(knobs=lambda: [DEPTH], action=lambda *_: setting)])
        job.receive(commands.make_trial(DEPTH, 3, STEPS))  # made now: a rank refuses what comes late
        return job

    return start


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
