"""Steps and phases are found without a change to the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from overlaptop.agent.hooks.steps import StepHooks
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.sources.base import Edge

B, E = [Edge.BACKWARD_BEGIN, Edge.BACKWARD_END], [Edge.OPTIMIZER_BEGIN, Edge.OPTIMIZER_END]


@dataclass
class Recorder:
    """What the hooks saw, in order: edges, and "step" at each boundary."""

    seen: list[object] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    hooks: StepHooks | None = None

    @property
    def boundaries(self) -> int:
        return self.seen.count("step")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Hooks stay in for the life of the process, so each test silences its own at the end."""
    record = Recorder()
    barrier = FaultBarrier(lambda level, text: record.faults.append(text))
    record.hooks = StepHooks(barrier, lambda optimizer: record.seen.append("step"), record.seen.append)
    record.hooks.install()
    yield record
    barrier.active = False
    assert record.faults == []


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.ones(4, requires_grad=True)


def test_an_iteration_is_backward_then_optimizer_then_a_boundary(recorder, weight) -> None:
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(3):
        weight.sum().backward()
        optimizer.step()
    assert recorder.seen == [*B, *E, "step"] * 3


def test_gradient_accumulation_is_several_backwards_in_one_step(recorder, weight) -> None:
    optimizer = torch.optim.AdamW([weight])
    for _ in range(2):
        for _ in range(3):
            torch.autograd.backward(weight.sum())
        optimizer.step()
    assert recorder.seen == [*B, *B, *B, *E, "step"] * 2


def test_optimizers_after_one_backward_make_one_step(recorder, weight) -> None:
    other = torch.ones(2, requires_grad=True)
    first, second = torch.optim.SGD([weight], 0.1), torch.optim.SGD([other], 0.1)
    for _ in range(4):
        (weight.sum() + other.sum()).backward()
        first.step()
        second.step()
    # The first iteration does not know yet that a second optimizer follows.
    assert recorder.seen == [*B, *E, "step", *E, "step"] + [*B, *E, *E, "step"] * 3


def test_two_networks_that_train_in_turn_make_one_step(recorder, weight) -> None:
    other = torch.ones(2, requires_grad=True)
    generator, critic = torch.optim.SGD([weight], 0.1), torch.optim.Adam([other])
    for _ in range(4):
        weight.sum().backward()
        generator.step()
        other.sum().backward()
        critic.step()
    assert recorder.seen == [*B, *E, "step", *B, *E, "step"] + [*B, *E, *B, *E, "step"] * 3


def test_an_optimizer_that_is_replaced_goes_on_marking_steps(recorder, weight) -> None:
    first = torch.optim.SGD([weight], 0.1)
    for _ in range(3):
        first.step()
    second = torch.optim.SGD([weight], 0.1)
    for _ in range(4):
        second.step()
    # `first` still exists: that `second` took its place shows when it steps twice without it.
    assert recorder.boundaries == 3 + 3


def test_a_wrapping_optimizer_counts_once(recorder, weight) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None):
            return self.inner.step(closure)

    optimizer = Wrapper(torch.optim.SGD([weight], 0.1))
    for _ in range(3):
        weight.sum().backward()
        optimizer.step()
    assert recorder.seen == [*B, *E, "step"] * 3


def test_a_step_that_grad_scaler_skips_is_still_a_step(recorder, weight) -> None:
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert recorder.seen == [*B, *E, "step"] * 3


def test_a_mark_by_hand_takes_over_from_optimizers(recorder, weight) -> None:
    optimizer = torch.optim.SGD([weight], 0.1)
    optimizer.step()
    for _ in range(3):
        weight.sum().backward()
        optimizer.step()
        recorder.hooks.end_step()
    assert recorder.boundaries == 2 + 3
    assert recorder.seen[-5:] == [*B, *E, "step"]


def test_a_backward_that_raises_still_ends(recorder, weight) -> None:
    loss = weight.sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.backward((weight * weight).sum() + _used_up(weight))
    assert recorder.seen[-2:] == B


def _used_up(weight: torch.Tensor) -> torch.Tensor:
    loss = (weight * weight).sum()
    loss.backward()
    return loss


def test_a_step_that_raises_does_not_hide_the_next(recorder, weight) -> None:
    class Breaks(torch.optim.SGD):
        broken = True

        def step(self, closure=None):
            if self.broken:
                raise MemoryError
            return super().step(closure)

    optimizer = Breaks([weight], 0.1)
    with pytest.raises(MemoryError):
        optimizer.step()
    Breaks.broken = False
    optimizer.step()
    assert recorder.boundaries == 1


def test_reentrant_backward_is_one_phase(recorder, weight) -> None:
    from torch.utils.checkpoint import checkpoint

    checkpoint(lambda w: (w * w).sum(), weight, use_reentrant=True).backward()
    assert recorder.seen == B


def test_a_compiled_optimizer_step_breaks_no_graph(recorder, weight) -> None:
    optimizer = torch.optim.SGD([weight], torch.tensor(0.5))
    compiled = torch.compile(optimizer.step, backend="eager")
    weight.sum().backward()
    compiled()
    assert torch.equal(weight.detach(), torch.full((4,), 0.5))
