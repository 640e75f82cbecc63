"""torch.profiler pauses the kernels source and lets it resume, whatever becomes of it."""

from itertools import groupby

import pytest
import torch
from torch import profiler
from torch.autograd.profiler import record_function

from overlaptop.agent.hooks.after_optimizer import AfterOptimizer
from overlaptop.agent.hooks.profilers import ProfilerWatch

CPU = [profiler.ProfilerActivity.CPU]


class Watched:
    def __init__(self, patch, failing=""):
        """Torch's own functions, of which one may fail, are put back afterwards."""

        def fails(*args, **kwargs):
            raise RuntimeError("no profiler today")

        module = torch.autograd.profiler
        for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler"):
            patch.setattr(module, name, fails if name == failing else getattr(module, name))
        self.said = []
        self.watch = ProfilerWatch(self.said.append)
        self.watch.install()

    def changes(self):
        return [running for running, _ in groupby(self.said)]


@pytest.mark.parametrize(
    "profile", [lambda: profiler.profile(activities=CPU), torch.autograd.profiler.profile]
)
def test_profiler_pauses_before_and_resumes_even_after_a_fault(monkeypatch, profile):
    watched = Watched(monkeypatch)

    def profiled():
        with profile():
            assert watched.changes() == [True]
            assert watched.watch.job_profiles
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        profiled()
    assert watched.changes() == [True, False]
    assert (watched.watch.running, watched.watch.job_profiles) == (False, False)


def test_profiler_with_a_schedule_pauses_for_each_of_its_cycles(monkeypatch):
    watched, states = Watched(monkeypatch), []
    schedule = profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    with profiler.profile(activities=CPU, schedule=schedule, acc_events=True) as profiled:
        assert watched.said == []
        for _ in range(10):
            torch.ones(4).sum()
            profiled.step()
            states.append(watched.watch.running)
    assert watched.changes() == [True, False] * 2
    assert states == [True, True, True, False] * 2 + [False] * 2


@pytest.mark.parametrize("failing", ["_prepare_profiler", "_enable_profiler"])
def test_profiler_that_fails_to_start_leaves_nothing_paused(monkeypatch, failing):
    watched = Watched(monkeypatch, failing)
    with pytest.raises(RuntimeError, match="no profiler today"):
        profiler.profile(activities=CPU).start()
    assert watched.changes() == [True, False]
    assert not watched.watch.running


# Work that waits for the end of an optimizer's annotation.


def test_call_waits_for_the_end_of_its_optimizer_step():
    before = (record_function.__enter__, record_function.__exit__)
    log, after = [], AfterOptimizer()
    after.start()

    def hook():
        after.call(lambda: log.append("called"))
        with record_function("the job's own"):
            log.append("inside")

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.register_step_post_hook(lambda *_: hook())
    with profiler.profile(activities=CPU) as profiled:
        optimizer.step()
    assert log == ["inside", "called"]
    assert any(event.name.startswith("Optimizer.step#") for event in profiled.events())
    hook()
    assert log[2:] == ["called", "inside"], "at once, outside of a step"
    after.stop()
    assert (record_function.__enter__, record_function.__exit__) == before
