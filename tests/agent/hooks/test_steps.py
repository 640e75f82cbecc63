"""Steps and phases are found without a change to the loop."""

import pytest
import torch
from torch.utils.hooks import RemovableHandle

from overlaptop.agent.hooks import steps
from overlaptop.agent.hooks.steps import BACKWARD_SIGN, LEAST_PASSES, PROFILER_SIGN, StepHooks
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.sources.base import Edge

B, E = [Edge.BACKWARD_BEGIN, Edge.BACKWARD_END], [Edge.OPTIMIZER_BEGIN, Edge.OPTIMIZER_END]
S = ["step"]


class Recorder:
    def __init__(self):
        self.seen, faults = [], []
        self.faults = faults
        self.barrier = FaultBarrier(lambda level, text: faults.append(text))
        self.hooks = StepHooks(self.barrier, lambda optimizer: self.seen.append("step"), self.seen.append)
        self.hooks.install()


@pytest.fixture
def recorder():
    """Hooks stay in for the life of the process, so each test silences its own at the end."""
    number = RemovableHandle.next_id
    record = Recorder()
    assert RemovableHandle.next_id == number  # a model that is saved whole contains its hooks' numbers
    yield record
    record.barrier.active = False
    assert record.faults == []


@pytest.fixture
def weight():
    return torch.ones(4, requires_grad=True)


def sgd(*parameters, kind=torch.optim.SGD):
    return kind(parameters, lr=0.1)


def test_accumulated_gradients_are_several_backwards_in_one_step(recorder, weight):
    optimizer = torch.optim.AdamW([weight])
    for backwards in (1, 3, 3):
        for _ in range(backwards):
            torch.autograd.backward(weight.sum())
        optimizer.step()
    assert recorder.seen == [*B, *E, *S] + [*B, *B, *B, *E, *S] * 2


def test_optimizers_after_one_backward_make_one_step(recorder, weight):
    other = torch.ones(2, requires_grad=True)
    first, second = sgd(weight), sgd(other)
    for _ in range(4):
        (weight.sum() + other.sum()).backward()
        first.step()
        second.step()
    # The first iteration does not know yet that a second optimizer follows.
    assert recorder.seen == [*B, *E, *S, *E, *S] + [*B, *E, *E, *S] * 3


def test_a_wrapping_optimizer_counts_once(recorder, weight):
    class Wrapper(torch.optim.SGD):
        def step(self, closure=None):
            return inner.step(closure)

    inner, optimizer = sgd(weight), sgd(weight, kind=Wrapper)
    for _ in range(3):
        weight.sum().backward()
        optimizer.step()
    assert recorder.seen == [*B, *E, *S] * 3


def test_a_step_that_grad_scaler_skips_is_still_a_step(recorder, weight):
    optimizer = sgd(weight)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert recorder.seen == [*B, *E, *S] * 3


def test_a_mark_by_hand_takes_over_from_optimizers(recorder, weight):
    optimizer = sgd(weight)
    optimizer.step()
    for _ in range(3):
        weight.sum().backward()
        optimizer.step()
        recorder.hooks.end_step()
    assert recorder.seen == [*E, *S, *B, *E, *S, *S] + [*B, *E, *S] * 2


def test_a_backward_or_a_step_that_raises_does_not_hide_the_next(recorder, weight):
    class Breaks(torch.optim.SGD):
        broken = True

        def step(self, closure=None):
            if self.broken:
                raise MemoryError
            return super().step(closure)

    loss = (weight * weight).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert recorder.seen == B * 2
    optimizer = sgd(weight, kind=Breaks)
    with pytest.raises(MemoryError):
        optimizer.step()
    Breaks.broken = False
    optimizer.step()
    assert recorder.seen[-1:] == S
    assert recorder.seen.count("step") == 1


# A job without an optimizer. Those of other tests may still be about, and do not count.


@pytest.fixture
def alone(recorder, monkeypatch):
    monkeypatch.setattr(steps.gc, "get_objects", list)
    return recorder


def test_without_an_optimizer_a_step_is_a_backward_pass(alone, weight):
    for _ in range(LEAST_PASSES + 3):
        weight.sum().backward()
    assert alone.seen.count("step") == 4
    assert alone.hooks.sign == BACKWARD_SIGN


def test_an_optimizer_made_before_the_hooks_is_found(recorder, weight):
    recorder.barrier.active = False
    optimizer = sgd(weight)
    late = Recorder()
    for _ in range(2 * LEAST_PASSES):
        weight.sum().backward()
    optimizer.step()
    assert late.seen.count("step") == 1
    late.barrier.active = False


def test_the_profilers_step_is_one_and_an_optimizer_or_mark_wins(alone, weight):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        profiler.step()
        assert alone.seen == S
        assert alone.hooks.sign == PROFILER_SIGN
        for _ in range(LEAST_PASSES + 3):
            weight.sum().backward()
        assert alone.seen.count("step") == 1
        alone.hooks.end_step()
        profiler.step()
        assert alone.seen.count("step") == 2
        assert not alone.hooks.sign
