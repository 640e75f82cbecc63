"""Trains one model twice, with knobs changed at random steps and without. Both jobs beside it do.

One rank of several: ``NAME_job.py BACKEND STEPS CHANGES [VARIANT...]``. The changes are made by the agent's
own actions, called at the boundaries at which the agent would call them.
"""

import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: else it would hold it, with gloo's threads
from torch import Tensor, nn

from overlaptop.agent.control.action import KnobProvider, KnobTrial
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.workloads.shared_gpu import own_gpu

BACKEND = sys.argv[1]
DEVICE = (
    torch.device("cuda", own_gpu(torch.cuda.device_count())) if BACKEND == "nccl" else torch.device("cpu")
)
CHANGE_STEPS = 4  # Most boundaries that a change takes
BARRIER = FaultBarrier(lambda level, text: print(text, flush=True))  # nothing is to be said

Changes = Mapping[int, tuple[str, int | None, int]]
"""By step: knob, its new value (None: the script's own), and the steps of a trial (0: it stays)."""


def each_variant(
    variants: Iterable[str], check: Callable[[str, int, list[int], random.Random], None]
) -> None:
    """Check each of the wanted variants, given the number of steps, those of the changes, and its dice."""
    torch.set_num_threads(1)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(BACKEND)
    steps, changes = map(int, sys.argv[2:4])
    for name in sys.argv[4:] or variants:
        dice = random.Random(name)
        check(name, steps, sorted(dice.sample(range(3, steps - CHANGE_STEPS, CHANGE_STEPS), changes)), dice)
    print(dist.get_backend(), flush=True)
    dist.destroy_process_group()


def train(
    model: nn.Module,
    width: int,
    knobs: KnobProvider,
    steps: int,
    changes: Changes,
    backward: Callable[[int, Callable[[], Tensor]], Tensor],
    after: Callable[[], None],
    *,
    ahead: bool,
    to_none: bool = True,
) -> dict[str, Any]:
    """Return losses and outcomes. ``backward(step, next_loss)``: makes the backward passes of a step.
    ``after``: called after each. ``ahead``: each forward pass is made in the step before.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = torch.Generator().manual_seed(dist.get_rank())

    def loss_of_next() -> Tensor:
        return model(torch.randn(4, width, generator=batches).to(DEVICE)).square().mean()

    action, said, losses = None, [], []
    coming = loss_of_next() if ahead else None
    for step in range(steps):
        knobs.note_step(step)
        if step in changes:
            assert action is None, "a change takes a few steps only"
            knob, value, trial_steps = changes[step]
            action = knobs.action(knob, value)
            action = KnobTrial(action, trial_steps) if trial_steps else action
            assert action.refusal() == ""
        if action is not None and not action.boundary(step):
            said.append(action.finish())
            action = None
        loss = backward(step, loss_of_next if coming is None else lambda loss=coming: loss)
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        coming = loss_of_next() if ahead else None
        after()
    assert action is None
    assert len(said) == len(changes)
    return {"losses": losses, "said": said}


def check_alike(*facts: object) -> None:
    theirs: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(theirs, facts)
    assert all(each == facts for each in theirs), theirs
