"""Small FSDP2 models with other prefetch depths, and the units that they gather ahead: see twice.py."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.utils.checkpoint import checkpoint
from twice import BARRIER, DEVICE, check_alike, each_variant, train

from overlaptop.agent.knobs.prefetch import OWN_LISTS, PrefetchKnobs

WIDTH = 32
BLOCKS = 4
UNITS = BLOCKS + 1
KNOBS = ("prefetch_forward", "prefetch_backward")
VARIANTS = (
    "plain", "kept", "accumulation", "checkpoints", "nested", "given", "compiled", "one batch ahead",
    "half of it without gradients",
)  # fmt: skip
COUNTED = ("plain", "kept", "checkpoints", "compiled")
"""The variants each pass of which goes over all units once."""


class Block(nn.Module):
    """Two layers and a shortcut; the inner one may be a unit of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.outer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(x)))


class Model(nn.Module):
    """Blocks that run in another order than they were made in, between two layers of the root's own."""

    def __init__(self, checkpoints: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.leave = nn.Linear(WIDTH, 1)
        self.checkpoints = checkpoints

    def forward(self, x):
        x = self.enter(x)
        for block in (*self.blocks[2:], *self.blocks[:2]):
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return self.leave(x)

    def half(self, x):
        x = self.enter(x)
        for block in self.blocks[2:]:
            x = block(x)
        return x


def make(name: str) -> Model:
    torch.manual_seed(0)
    model = Model(name == "checkpoints").to(DEVICE)
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


asked = {"forward": 0, "backward": 0}
"""The units gathered ahead since the last step."""


def count_prefetches() -> None:
    ask = FSDPParamGroup._prefetch_unshard

    def counted(group, which):
        asked[which] += 1
        ask(group, which)

    FSDPParamGroup._prefetch_unshard = staticmethod(counted)


def run(name, steps, changes):
    """What ``train`` returns, and of each step the units gathered ahead, the knobs and the lists."""
    knobs = PrefetchKnobs(BARRIER)
    knobs.install()
    model = make(name)
    seen = {"asked": [], "values": [], "lists": []}

    def backward(step, next_loss):
        for last in (False, True) if name == "accumulation" else (True,):
            model.set_requires_gradient_sync(last)
            loss = next_loss()
            loss.backward()
        if name == "half of it without gradients":
            with torch.no_grad():
                model.half(torch.ones(4, WIDTH, device=DEVICE))
        return loss

    def after():
        seen["asked"].append(list(asked.values()))
        asked.update(forward=0, backward=0)
        seen["values"].append([knob.value_text for knob in knobs.knobs()])
        lists = ("_states_to_forward_prefetch", "_states_to_backward_prefetch")
        seen["lists"].append(
            [[*map(id, getattr(state, each)[:])] for each in lists for state in knobs.alive()]
        )

    done = train(model, WIDTH, knobs, steps, changes, backward, after, ahead=name == "one batch ahead")
    model.reshard()  # it may be in the middle of a pass
    weights = torch.cat([parameter.detach().full_tensor().flatten() for parameter in model.parameters()])
    original = [knob.original_text for knob in knobs.knobs()]
    return {**done, **seen, "weights": weights.cpu(), "original": original}


def gathered_ahead(depth: int) -> int:
    return sum(min(depth, UNITS - 1 - at) for at in range(UNITS))


def check_gathers(name, plain, changed):
    own = plain["asked"][0]
    if name == "given":
        assert changed["original"] == [OWN_LISTS, OWN_LISTS]
        assert own != [gathered_ahead(0), gathered_ahead(1)]
    for values, counts in zip(changed["values"], changed["asked"], strict=True):
        assert all(counts[at] == own[at] for at in (0, 1) if values[at] == OWN_LISTS)
        if name in COUNTED:
            # By itself FSDP2 asks for one ahead in backward.
            assert counts == [gathered_ahead(int(values[0])), gathered_ahead(int(values[1]) or 1)]


def check(name, steps, at_steps, dice):
    changes = {step: (dice.choice(KNOBS), dice.choice([None, *range(UNITS)]), 0) for step in at_steps}
    trials = {2: (KNOBS[0], 2, 0), 6: dice.choice([(KNOBS[0], 1, 3), (KNOBS[1], 3, 3)])}
    plain, changed, tried = (run(name, steps, each) for each in ({}, changes, trials))
    for each in (changed, tried):
        check_gathers(name, plain, each)
        check_alike(*(each[key] for key in ("said", "asked", "values", "original")))
        assert plain["losses"] == each["losses"]
        assert torch.equal(plain["weights"], each["weights"])
    assert tried["lists"][-1] == tried["lists"][5]
    last = dict(zip(KNOBS, changed["original"], strict=True))
    for knob, value, _ in changes.values():
        last[knob] = changed["original"][KNOBS.index(knob)] if value is None else str(value)
    assert changed["values"][0] == changed["original"]
    assert changed["values"][-1] == list(last.values())


if __name__ == "__main__":
    count_prefetches()
    each_variant(VARIANTS, check)
