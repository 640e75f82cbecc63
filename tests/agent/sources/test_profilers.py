"""torch.profiler pauses the kernels source and lets it resume, whatever becomes of it."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from torch import profiler

from overlaptop.agent.sources.profilers import KinetoWatch

CPU = [profiler.ProfilerActivity.CPU]
FUNCTIONS = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")


class Kineto:
    """A watch, and what it says in order."""

    def __init__(self, patch, failing=""):
        """Torch's own functions, of which one may fail, are put back afterwards."""

        def fails(*args, **kwargs):
            raise RuntimeError("no profiler today")

        module = torch.autograd.profiler
        for name in FUNCTIONS:
            patch.setattr(module, name, fails if name == failing else getattr(module, name))
        self.said = []
        self.watch = KinetoWatch(self.said.append)
        self.watch.install()

    def changes(self):
        """Whether it ran, without repetitions."""
        return [running for running, _ in groupby(self.said)]


@pytest.fixture
def kineto(monkeypatch):
    return Kineto(monkeypatch)


@pytest.mark.parametrize(
    "profile", [lambda: profiler.profile(activities=CPU), torch.autograd.profiler.profile]
)
@pytest.mark.parametrize("raises", [False, True])
def test_a_profiled_block_pauses_before_and_resumes_after_also_where_it_raises(kineto, profile, raises):
    try:
        with profile() as profiled:
            assert kineto.changes() == [True]
            torch.ones(4).sum()
            assert kineto.watch.running
            if raises:
                raise ArithmeticError
    except ArithmeticError:
        assert raises
    assert kineto.changes() == [True, False]
    assert not kineto.watch.running
    assert any("sum" in event.key for event in profiled.key_averages())


def test_a_profiler_by_schedule_pauses_for_each_of_its_cycles(kineto):
    ready = []
    with profiler.profile(
        activities=CPU,
        schedule=profiler.schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=ready.append,
        acc_events=True,
    ) as profiled:
        assert kineto.said == []
        states = []
        for _ in range(10):
            torch.ones(4).sum()
            profiled.step()
            states.append(kineto.watch.running)
    assert kineto.changes() == [True, False] * 2
    assert states == [True, True, True, False] * 2 + [False] * 2
    assert len(ready) == 2


@pytest.mark.parametrize("failing", FUNCTIONS[:2])
def test_a_profiler_that_fails_to_start_leaves_nothing_paused(monkeypatch, failing):
    kineto = Kineto(monkeypatch, failing)
    with pytest.raises(RuntimeError, match="no profiler today"):
        profiler.profile(activities=CPU).start()
    assert kineto.changes() == [True, False]
    assert not kineto.watch.running
