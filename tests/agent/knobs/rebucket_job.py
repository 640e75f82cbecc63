"""Trains small DDP models side by side, with other bucket sizes at random steps and without, and compares.

One rank of several: ``rebucket_job.py BACKEND STEPS SWITCHES [VARIANT...]``. Each one trains twice from
the same seed, once with its buckets changed at seeded steps by the agent's own action, called at the
boundaries at which the agent would call it. Fails where that is seen in what is trained.
"""

import random
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: else it would hold it, with gloo's threads
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from twice import DEVICE, begin, check_alike, check_same, end

from overlaptop.agent.control.action import KnobTrial
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.knobs.change_bucket_size import BucketCaps, BucketKnob, RebucketAction

WIDTH = 128
LAYERS = 4
LAYER_BYTES = 4 * WIDTH * WIDTH  # of its weight
FIRST_SIZE = 2
SIZES = (1, 2, 3, 4, 400)  # Of buckets, in layers
TRIAL_STEPS = 6
ROUNDING = 1e-5 if DEVICE.type == "cpu" else 1e-4
"""Of the weights: the order of a sum over more than two ranks follows the layout of buckets."""


class Model(nn.Module):
    """Layers one after the other, the last of which is used in some steps only where ``skips``."""

    def __init__(self, skips: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.skips = skips
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        used = len(self.layers) - (self.skips and self.passes % 3 == 0)
        for layer in self.layers[:used]:
            x = torch.tanh(layer(x))
        return x


VARIANTS = {
    "plain": {},
    "static_graph": {"static_graph": True},
    "bucket views": {"gradient_as_bucket_view": True},
    "bucket views, zeroed": {"gradient_as_bucket_view": True},
    "unused parameters": {"find_unused_parameters": True},
    "hook": {},
    "accumulation": {},
    "accumulation, bucket views": {"gradient_as_bucket_view": True},
    "accumulation, static_graph": {"static_graph": True},
    "several reductions": {},
    "one batch ahead": {},
}
"""What DistributedDataParallel is told, by name."""


def in_mib(layers: int) -> float:
    return layers * LAYER_BYTES / (1 << 20)


def train(name: str, steps: int, switch_at: dict[int, int], knob: BucketKnob, trial_steps: int = 0) -> dict:
    """Train one variant; ``switch_at``: at which steps to ask for which size. ``trial_steps``: steps after
    which each is to be taken back; 0: never.
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(
        Model(name == "unused parameters").to(DEVICE), bucket_cap_mb=in_mib(FIRST_SIZE), **VARIANTS[name]
    )
    if name == "hook":
        model.register_comm_hook(None, allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = torch.Generator().manual_seed(dist.get_rank())

    def loss_of_next():
        return model(torch.randn(4, WIDTH, generator=batches).to(DEVICE)).square().mean()

    caps = BucketCaps.of(model)
    action, said, losses = None, [], []
    ahead = loss_of_next() if name == "one batch ahead" else None
    for step in range(steps):
        knob.note_step(step)
        if step in switch_at:
            assert action is None, "a change takes a few steps only"
            action = RebucketAction(switch_at[step] * LAYER_BYTES, knob)
            action = KnobTrial(action, trial_steps) if trial_steps else action
            assert action.refusal() == ""
        if action is not None and not action.boundary(step):
            said.append(action.finish().text)
            action = None
        # torch itself cannot bear a static graph whose first backward pass is not reduced.
        accumulates = name.startswith("accumulation") and not (step == 0 and model.static_graph)
        for _ in range(2 if accumulates or name == "several reductions" else 0):
            with model.no_sync() if accumulates else nullcontext():
                loss_of_next().backward()
        loss = ahead if ahead is not None else loss_of_next()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if ahead is not None:
            optimizer.zero_grad()
            ahead = loss_of_next()
        else:
            optimizer.zero_grad(set_to_none=name != "bucket views, zeroed")
    if action is not None:
        said.append(action.finish().text)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    theirs = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, weights)
    assert all(torch.equal(weights, each) for each in theirs)
    return {"losses": losses, "weights": weights, "said": said, "same caps": BucketCaps.of(model) == caps}


def main() -> None:
    steps, switches, variants = begin(VARIANTS)
    knob = BucketKnob(FaultBarrier(lambda level, text: print(text, flush=True)))
    knob.install()
    for name in variants:
        dice = random.Random(name)
        asked = sorted(dice.sample(range(3, steps - 4, 4), switches))
        sizes = [FIRST_SIZE]
        for _ in asked:
            sizes.append(dice.choice([size for size in SIZES if size != sizes[-1]]))
        plain = train(name, steps, {}, knob)
        tried = train(name, steps, {3: dice.choice(SIZES), 16: dice.choice(SIZES)}, knob, TRIAL_STEPS)
        switched = train(name, steps, dict(zip(asked, sizes[1:], strict=True)), knob)
        assert switched["said"] == [
            f"bucket_cap_mb {in_mib(before):g} → {in_mib(after):g} at step {step:,}"
            for before, after, step in zip(sizes, sizes[1:], asked, strict=False)
        ]
        assert tried["same caps"]
        assert len(tried["said"]) == 2
        check_alike(switched["said"], tried["said"])
        for changed in (switched, tried):
            if dist.get_world_size() == 2:
                check_same(plain, changed)
            else:
                apart = (changed["weights"] - plain["weights"]).abs().max()
                assert apart <= ROUNDING * plain["weights"].abs().max()
    end()


if __name__ == "__main__":
    main()
