"""Other users of CUPTI: torch.profiler pauses the kernels source, and tools that hold CUPTI are known."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import profiler

from overlaptop.agent.sources.cupti.holders import tool_in
from overlaptop.agent.sources.profilers import KinetoWatch


@dataclass
class Kineto:
    """A watch, and what it says in order."""

    said: list[str] = field(default_factory=list)
    watch: KinetoWatch = field(init=False)

    def __post_init__(self):
        self.watch = KinetoWatch(lambda: self.said.append("pause"), lambda: self.said.append("resume"))

    def phases(self):
        """Without repetitions."""
        return [word for at, word in enumerate(self.said) if at == 0 or self.said[at - 1] != word]


@pytest.fixture
def kineto(monkeypatch) -> Kineto:
    """Torch's own functions are put back afterwards."""
    module = torch.autograd.profiler
    for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler"):
        monkeypatch.setattr(module, name, getattr(module, name))
    kineto = Kineto()
    kineto.watch.install()
    return kineto


CPU = [profiler.ProfilerActivity.CPU]


def test_a_profiled_block_pauses_before_and_resumes_after(kineto):
    with profiler.profile(activities=CPU) as profiled:
        assert kineto.phases() == ["pause"]
        torch.ones(4).sum()
        assert kineto.watch.running
    assert kineto.phases() == ["pause", "resume"]
    assert not kineto.watch.running
    assert any("sum" in event.key for event in profiled.key_averages())


def test_a_block_that_raises_still_resumes(kineto):
    with pytest.raises(ArithmeticError), profiler.profile(activities=CPU):
        raise ArithmeticError
    assert kineto.phases() == ["pause", "resume"]


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
            states.append(kineto.phases()[-1] if kineto.said else "")
    assert kineto.phases() == ["pause", "resume"] * 2
    assert states == ["pause", "pause", "pause", "resume"] * 2 + ["resume"] * 2
    assert len(ready) == 2


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_profiler_that_is_left_in_the_middle_of_a_cycle_resumes(kineto, steps):
    with profiler.profile(
        activities=CPU, schedule=profiler.schedule(wait=1, warmup=1, active=5)
    ) as profiled:
        for _ in range(steps):
            profiled.step()
    assert kineto.phases() == ["pause", "resume"]


def test_the_older_interface_is_watched_too(kineto):
    with torch.autograd.profiler.profile():
        assert kineto.phases() == ["pause"]
    assert kineto.phases() == ["pause", "resume"]


@pytest.mark.parametrize("name", ["_prepare_profiler", "_enable_profiler"])
def test_a_profiler_that_fails_to_start_leaves_nothing_paused(monkeypatch, name):
    def fails(*args, **kwargs):
        raise RuntimeError("no profiler today")

    module = torch.autograd.profiler
    for each in ("_prepare_profiler", "_enable_profiler", "_disable_profiler"):
        monkeypatch.setattr(module, each, fails if each == name else getattr(module, each))
    kineto = Kineto()
    kineto.watch.install()
    with pytest.raises(RuntimeError, match="no profiler today"):
        profiler.profile(activities=CPU).start()
    assert kineto.phases() == ["pause", "resume"]
    assert not kineto.watch.running


@pytest.mark.parametrize(
    ("environ", "tool"),
    [
        ({}, None),
        ({"NSYS_PROFILING_SESSION_ID": "12"}, "Nsight Systems"),
        ({"NV_COMPUTE_PROFILER_PERFWORKS_DIR": "/opt"}, "Nsight Compute"),
        ({"CUDA_INJECTION64_PATH": "/opt/lib.so"}, "a CUDA profiler"),
        ({"CUDA_INJECTION64_PATH": ""}, None),
        ({"KINETO_USE_DAEMON": "1"}, "Kineto's daemon"),
        ({"CUDA_INJECTION64_PATH": "x", "NSYS_PROFILING_SESSION_ID": "1"}, "Nsight Systems"),
    ],
)
def test_a_tool_that_holds_cupti_is_known_by_its_environment(environ, tool):
    assert tool_in(environ) == tool
