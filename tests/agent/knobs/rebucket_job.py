"""Small DDP models with other bucket sizes: see twice.py. Sizes are in layers."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from twice import BARRIER, DEVICE, check_alike, each_variant, train

from overlaptop.agent.knobs import change_bucket_size
from overlaptop.agent.knobs.change_bucket_size import BucketCaps, BucketKnob

WIDTH = 128
LAYERS = 4
LAYER_BYTES = 4 * WIDTH * WIDTH  # of its weight
FIRST_SIZE = 2
SIZES = (1, 2, 3, 4, 400)
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


def run(name, steps, changes):
    torch.manual_seed(0)
    model = DistributedDataParallel(
        Model(name == "unused parameters").to(DEVICE),
        bucket_cap_mb=FIRST_SIZE * LAYER_BYTES / (1 << 20),
        **VARIANTS[name],
    )
    if name == "hook":
        model.register_comm_hook(None, allreduce_hook)
    caps = BucketCaps.of(model)

    def backward(step, next_loss):
        # torch itself cannot bear a static graph whose first backward pass is not reduced.
        accumulates = name.startswith("accumulation") and not (step == 0 and model.static_graph)
        for _ in range(2 if accumulates or name == "several reductions" else 0):
            with model.no_sync() if accumulates else nullcontext():
                next_loss().backward()
        loss = next_loss()
        loss.backward()
        return loss

    done = train(
        model, WIDTH, KNOB, steps, changes, backward, lambda: None,
        ahead=name == "one batch ahead", to_none=name != "bucket views, zeroed",
    )  # fmt: skip
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    theirs = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, weights)
    assert all(torch.equal(weights, each) for each in theirs)
    return {**done, "weights": weights, "same caps": BucketCaps.of(model) == caps}


def check(name, steps, asked, dice):
    sizes = [FIRST_SIZE]
    for _ in asked:
        sizes.append(dice.choice([size for size in SIZES if size != sizes[-1]]))
    plain = run(name, steps, {})
    trials = {at: ("bucket_cap_mb", dice.choice(SIZES), TRIAL_STEPS) for at in (3, 16)}
    tried = run(name, steps, trials)
    changes = zip(asked, sizes[1:], strict=True)
    switched = run(name, steps, {at: ("bucket_cap_mb", size, 0) for at, size in changes})
    assert [outcome.text for outcome in switched["said"]] == [
        f"bucket_cap_mb {before:g} → {after:g} at step {step:,}"
        for before, after, step in zip(sizes, sizes[1:], asked, strict=False)
    ]
    assert tried["same caps"]
    check_alike(switched["said"], tried["said"])
    for changed in (switched, tried):
        if dist.get_world_size() == 2:
            assert plain["losses"] == changed["losses"]
        rounding = 0.0 if dist.get_world_size() == 2 else ROUNDING
        apart = (changed["weights"] - plain["weights"]).abs().max()
        assert apart <= rounding * plain["weights"].abs().max()


if __name__ == "__main__":
    change_bucket_size.MIB = LAYER_BYTES
    KNOB = BucketKnob(BARRIER)
    KNOB.install()
    each_variant(VARIANTS, check)
