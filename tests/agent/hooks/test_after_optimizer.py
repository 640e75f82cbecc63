"""What is to be done between two steps is done once the optimizer's own annotation has ended."""

import pytest
import torch
from torch.autograd.profiler import record_function

from overlaptop.agent.hooks.after_optimizer import AfterOptimizer


class Loop:
    def __init__(self):
        self.log = []
        self.after = AfterOptimizer()
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        self.optimizer.register_step_post_hook(lambda *_: self.hook())

    def hook(self):
        self.log.append("hook")
        self.after.call(lambda: self.log.append("called"))
        self.log.append("hook ends")


AT_ONCE = ["hook", "called", "hook ends"]


@pytest.fixture
def loop():
    before = (record_function.__enter__, record_function.__exit__)
    made = Loop()
    made.after.start()
    yield made
    made.after.stop()
    assert (record_function.__enter__, record_function.__exit__) == before


def test_call_waits_for_the_end_of_its_optimizer_step(loop):
    def annotate():
        with record_function("the job's own"):
            loop.log.append("inside")

    loop.optimizer.register_step_post_hook(lambda *_: annotate())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        loop.optimizer.step()
        loop.log.append("returned")
    assert loop.log == ["hook", "hook ends", "inside", "called", "returned"]
    assert any(event.name.startswith("Optimizer.step#") for event in profiler.events())


def test_call_runs_at_once_outside_of_an_optimizer_step(loop):
    loop.hook()
    assert loop.log == AT_ONCE
    loop.after.stop()
    unseen = Loop()
    unseen.optimizer.register_step_pre_hook(lambda *_: unseen.after.start())
    unseen.optimizer.step()
    unseen.after.stop()
    assert unseen.log == AT_ONCE
