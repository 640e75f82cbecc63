"""Trains small models twice, with knobs changed at random steps and without, and compares.

One rank of several: ``changed_job.py ddp|fsdp BACKEND STEPS CHANGES [VARIANT...]``. The changes are made by
the agent's own actions, called at the boundaries at which the agent would call them.
"""

import os
import random
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: else it would hold it, with gloo's threads
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from overlaptop.agent.control.action import KnobTrial
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.knobs import change_bucket_size
from overlaptop.agent.knobs.change_bucket_size import BucketCaps, BucketKnob
from overlaptop.agent.knobs.prefetch import OWN_LISTS, PrefetchKnobs
from overlaptop.workloads.shared_gpu import own_gpu

WHICH, BACKEND = sys.argv[1:3]
STEPS, CHANGES = map(int, sys.argv[3:5])
DEVICE = (
    torch.device("cuda", own_gpu(torch.cuda.device_count())) if BACKEND == "nccl" else torch.device("cpu")
)
BARRIER = FaultBarrier(lambda level, text: print(text, flush=True))  # nothing is to be said
CHANGE_STEPS = 4  # Most boundaries that a change takes
WIDTH = 64
BLOCKS = 4
UNITS = BLOCKS + 1


class Block(nn.Module):
    """Two layers and a shortcut; the inner one may be a unit of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.outer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(x)))


class Model(nn.Module):
    """Blocks that run in another order than they were made in, between two layers of the root's own. Where
    it ``skips``, one block is used in some steps only.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.leave = nn.Linear(WIDTH, 1)
        self.checkpoints, self.skips = name == "checkpoints", name == "unused parameters"
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        blocks = [*self.blocks[2:], *self.blocks[: 1 if self.skips and self.passes % 3 == 0 else 2]]
        x = self.enter(x)
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return self.leave(x)

    def half(self, x):
        x = self.enter(x)
        for block in self.blocks[2:]:
            x = block(x)
        return x


def train(model, name, knobs, changes, after=lambda: None):
    """Losses and outcomes. ``changes``: by step a knob, its new value (None: the script's own), and the
    steps of a trial (0: it stays). ``after``: called after each step.
    """
    is_ddp = isinstance(model, DistributedDataParallel)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = torch.Generator().manual_seed(dist.get_rank())

    def loss_of_next():
        return model(torch.randn(4, WIDTH, generator=batches).to(DEVICE)).square().mean()

    action, said, losses = None, [], []
    ahead = loss_of_next() if name == "one batch ahead" else None
    for step in range(STEPS):
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
        # torch itself cannot bear a static graph whose first backward pass is not reduced.
        accumulates = name.startswith("accumulation") and not (is_ddp and step == 0 and model.static_graph)
        for _ in range(2 if accumulates or name == "several reductions" else 0):
            if not is_ddp:
                model.set_requires_gradient_sync(False)
            with model.no_sync() if is_ddp and accumulates else nullcontext():
                loss_of_next().backward()
        if not is_ddp:
            model.set_requires_gradient_sync(True)
        loss = ahead if ahead is not None else loss_of_next()
        loss.backward()
        losses.append(loss.item())
        if name == "half of it without gradients":
            with torch.no_grad():
                model.half(torch.ones(4, WIDTH, device=DEVICE))
        optimizer.step()
        optimizer.zero_grad(set_to_none=name != "bucket views, zeroed")
        ahead = loss_of_next() if ahead is not None else None
        after()
    assert action is None
    assert len(said) == len(changes)
    return {"losses": losses, "said": said}


def check_alike(*facts: object) -> None:
    theirs: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(theirs, facts)
    assert all(each == facts for each in theirs), theirs


# Other bucket sizes, in layers.

BUCKETS = BucketKnob(BARRIER)
LAYER_BYTES = 4 * WIDTH * WIDTH  # of its weight
FIRST_SIZE = 2
SIZES = (1, 2, 3, 4, 400)
TRIAL_STEPS = 6
ROUNDING = 1e-5 if DEVICE.type == "cpu" else 1e-4
"""Of the weights: the order of a sum over more than two ranks follows the layout of buckets."""
DDP_VARIANTS = {
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


def run_ddp(name, changes):
    torch.manual_seed(0)
    size_mb = FIRST_SIZE * LAYER_BYTES / (1 << 20)
    model = DistributedDataParallel(Model(name).to(DEVICE), bucket_cap_mb=size_mb, **DDP_VARIANTS[name])
    if name == "hook":
        model.register_comm_hook(None, allreduce_hook)
    caps = BucketCaps.of(model)
    done = train(model, name, BUCKETS, changes)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    theirs = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, weights)
    assert all(torch.equal(weights, each) for each in theirs)
    return {**done, "weights": weights, "same caps": BucketCaps.of(model) == caps}


def check_ddp(name, asked, dice):
    sizes = [FIRST_SIZE]
    for _ in asked:
        sizes.append(dice.choice([size for size in SIZES if size != sizes[-1]]))
    plain = run_ddp(name, {})
    tried = run_ddp(name, {at: ("bucket_cap_mb", dice.choice(SIZES), TRIAL_STEPS) for at in (3, 16)})
    changes = zip(asked, sizes[1:], strict=True)
    switched = run_ddp(name, {at: ("bucket_cap_mb", size, 0) for at, size in changes})
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


# Other prefetch depths.

PASSES = ("forward", "backward")
KNOBS = [f"prefetch_{way}" for way in PASSES]
FSDP_VARIANTS = (
    "plain", "kept", "accumulation", "checkpoints", "nested", "given", "compiled", "one batch ahead",
    "half of it without gradients",
)  # fmt: skip
COUNTED = ("plain", "kept", "checkpoints", "compiled")
"""The variants each pass of which goes over all units once."""
prefetched = dict.fromkeys(PASSES, 0)
"""The units gathered ahead in the present step."""


def count_prefetches() -> None:
    ask = FSDPParamGroup._prefetch_unshard

    def counted(group, which):
        prefetched[which] += 1
        ask(group, which)

    FSDPParamGroup._prefetch_unshard = staticmethod(counted)


def shard(name: str) -> Model:
    torch.manual_seed(0)
    model = Model(name).to(DEVICE)
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    for block in model.blocks:
        if name == "compiled":
            block.compile(backend="eager")
        if name == "nested":
            fully_shard(block.inner, mesh=mesh)
        fully_shard(block, mesh=mesh, reshard_after_forward=name != "kept")
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "half")
    if name == "given":  # the script's own, of no depth
        model.blocks[2].set_modules_to_forward_prefetch([model.blocks[3], model.blocks[1]])
        model.blocks[1].set_modules_to_backward_prefetch([model.blocks[0], model.blocks[3]])
    return model


def run_fsdp(name, changes):
    """What ``train`` returns, and of each step the units gathered ahead, the knobs and the lists."""
    knobs = PrefetchKnobs(BARRIER)
    knobs.install()
    model = shard(name)
    seen = {"asked": [], "values": [], "lists": []}

    def after():
        seen["asked"].append(list(prefetched.values()))
        prefetched.update(dict.fromkeys(PASSES, 0))
        seen["values"].append([knob.value_text for knob in knobs.knobs()])
        lists = [getattr(each, f"_states_to_{way}_prefetch")[:] for each in knobs.alive() for way in PASSES]
        seen["lists"].append([list(map(id, each)) for each in lists])

    done = train(model, name, knobs, changes, after)
    model.reshard()  # it may be in the middle of a pass
    weights = torch.cat([parameter.detach().full_tensor().flatten() for parameter in model.parameters()])
    original = [knob.original_text for knob in knobs.knobs()]
    return {**done, **seen, "weights": weights.cpu(), "original": original}


def gathered_ahead(depth: int) -> int:
    return sum(min(depth, UNITS - 1 - at) for at in range(UNITS))


def check_fsdp(name, at_steps, dice):
    changes = {step: (dice.choice(KNOBS), dice.choice([None, *range(UNITS)]), 0) for step in at_steps}
    trials = {2: (KNOBS[0], 2, 0), 6: dice.choice([(KNOBS[0], 1, 3), (KNOBS[1], 3, 3)])}
    plain, changed, tried = (run_fsdp(name, each) for each in ({}, changes, trials))
    for each in (changed, tried):
        assert plain["losses"] == each["losses"]
        assert torch.equal(plain["weights"], each["weights"])
        check_alike(*(each[key] for key in ("said", "asked", "values", "original")))
        for values, counts in zip(each["values"], each["asked"], strict=True):
            assert all(counts[at] == plain["asked"][0][at] for at in (0, 1) if values[at] == OWN_LISTS)
            if name in COUNTED:
                # By itself FSDP2 asks for one ahead in backward.
                assert counts == [gathered_ahead(int(values[0])), gathered_ahead(int(values[1]) or 1)]
    if name == "given":
        assert changed["original"] == [OWN_LISTS, OWN_LISTS]
        assert plain["asked"][0] != [gathered_ahead(0), gathered_ahead(1)]
    assert tried["lists"][-1] == tried["lists"][5]
    last = dict(zip(KNOBS, changed["original"], strict=True))
    for knob, value, _ in changes.values():
        last[knob] = changed["original"][KNOBS.index(knob)] if value is None else str(value)
    assert changed["values"][0] == changed["original"]
    assert changed["values"][-1] == list(last.values())


def main() -> None:
    torch.set_num_threads(1)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(BACKEND)
    change_bucket_size.MIB = LAYER_BYTES
    count_prefetches()
    check, variants = (check_ddp, DDP_VARIANTS) if WHICH == "ddp" else (check_fsdp, FSDP_VARIANTS)
    BUCKETS.install()
    for name in sys.argv[5:] or variants:
        dice = random.Random(name)
        at_steps = dice.sample(range(3, STEPS - CHANGE_STEPS, CHANGE_STEPS), CHANGES)
        check(name, sorted(at_steps), dice)
    print(dist.get_backend(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
