"""Trains small FSDP2 models, with other prefetch depths at random steps and without, and compares.

One rank of several: ``prefetch_job.py BACKEND STEPS CHANGES [VARIANT...]``. Each one trains twice from
the same seed, once with its depths changed at seeded steps by the agent's own action, called at the
boundaries at which the agent would call it. Fails where that is seen in what is trained, or not in what is
gathered.
"""

import random

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: else it would hold it, with gloo's threads
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.utils.checkpoint import checkpoint
from twice import DEVICE, begin, check_alike, check_same, end

from overlaptop.agent.control.action import KnobTrial
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.knobs.prefetch import OWN_LISTS, PrefetchAction, PrefetchKnobs

WIDTH = 32
BLOCKS = 4
UNITS = BLOCKS + 1
CHANGE_STEPS = 3  # Boundaries that a change takes
TRIAL_STEPS = 3
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


class Prefetches:
    def __init__(self) -> None:
        self.counts = {"forward": 0, "backward": 0}
        ask = FSDPParamGroup._prefetch_unshard

        def counted(group, which):
            self.counts[which] += 1
            ask(group, which)

        FSDPParamGroup._prefetch_unshard = staticmethod(counted)

    def take(self) -> dict[str, int]:
        taken, self.counts = self.counts, dict.fromkeys(self.counts, 0)
        return taken


def train(name, steps, change_at, prefetches, trial_steps=0):
    """Train one variant; ``change_at``: at which steps to give which knob which value, None: its own.
    ``trial_steps``: steps after which the last of them is to be taken back; 0: never.
    """
    knobs = PrefetchKnobs(FaultBarrier(lambda level, text: print(text, flush=True)))
    knobs.install()
    model = make(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = torch.Generator().manual_seed(dist.get_rank())

    def loss_of_next():
        return model(torch.randn(4, WIDTH, generator=batches).to(DEVICE)).square().mean()

    action, said, losses, asked, values = None, [], [], [], []
    ahead = loss_of_next() if name == "one batch ahead" else None
    for step in range(steps):
        knobs.note_step(step)
        if step in change_at:
            assert action is None, "a change takes a few steps only"
            action = knobs.action(*change_at[step])
            before = lists_of(knobs)
            if trial_steps and step == max(change_at):
                action = KnobTrial(action, trial_steps)
            assert action.refusal() == ""
        if action is not None and not action.boundary(step):
            outcome = action.finish()
            said.append((outcome.old, outcome.new, outcome.text))
            assert isinstance(action, PrefetchAction) or lists_of(knobs) == before
            action = None
        prefetches.take()
        for last in (False, True) if name == "accumulation" else (True,):
            model.set_requires_gradient_sync(last)
            loss = ahead if ahead is not None else loss_of_next()
            loss.backward()
        losses.append(loss.item())
        if name == "half of it without gradients":
            with torch.no_grad():
                model.half(torch.ones(4, WIDTH, device=DEVICE))
        optimizer.step()
        optimizer.zero_grad()
        if ahead is not None:
            ahead = loss_of_next()
        asked.append(list(prefetches.take().values()))
        values.append([knob.value_text for knob in knobs.knobs()])
    model.reshard()  # it may be in the middle of a pass
    weights = torch.cat([parameter.detach().full_tensor().flatten() for parameter in model.parameters()])
    return {
        "losses": losses,
        "weights": weights.cpu(),
        "said": said,
        "asked": asked,
        "values": values,
        "original": [knob.original_text for knob in knobs.knobs()],
    }


def lists_of(knobs: PrefetchKnobs) -> list[list[int]]:
    lists = ("_states_to_forward_prefetch", "_states_to_backward_prefetch")
    return [[id(each) for each in getattr(state, name)[:]] for name in lists for state in knobs.alive()]


def gathered_ahead(depth: int) -> int:
    return sum(min(depth, UNITS - 1 - at) for at in range(UNITS))


def check_gathers(name: str, plain: dict, changed: dict) -> None:
    own = plain["asked"][0]
    if name == "given":
        assert changed["original"] == [OWN_LISTS, OWN_LISTS]
        assert own != [gathered_ahead(0), gathered_ahead(1)]
    for values, asked in zip(changed["values"], changed["asked"], strict=True):
        for which, words in enumerate(values):
            if words == OWN_LISTS:
                assert asked[which] == own[which]
        if name in COUNTED:
            # By itself FSDP2 asks for one ahead in backward.
            assert asked == [gathered_ahead(int(values[0])), gathered_ahead(int(values[1]) or 1)]


def main() -> None:
    steps, changes, variants = begin(VARIANTS)
    prefetches = Prefetches()
    seen = set()
    for name in variants:
        dice = random.Random(name)
        asked = sorted(dice.sample(range(2, steps - CHANGE_STEPS, CHANGE_STEPS + 1), changes))
        change_at = {step: (dice.choice(KNOBS), dice.choice([None, *range(UNITS)])) for step in asked}
        plain = train(name, steps, {}, prefetches)
        changed = train(name, steps, change_at, prefetches)
        trial_at = {2: (KNOBS[0], 2), 6: dice.choice([(KNOBS[0], 1), (KNOBS[1], 3)])}
        tried = train(name, steps + 2, trial_at, prefetches, TRIAL_STEPS)
        assert len(tried["said"]) == 2, tried["said"]
        assert tried["values"][-1] == tried["values"][5]
        check_gathers(name, plain, tried)
        check_same(train(name, steps + 2, {}, prefetches), tried)
        check_same(plain, changed)
        check_alike(*(changed[key] for key in ("said", "asked", "values", "original")))
        assert len(changed["said"]) == changes
        last = dict(zip(KNOBS, changed["original"], strict=True))
        for knob, value in change_at.values():
            last[knob] = changed["original"][KNOBS.index(knob)] if value is None else str(value)
        assert changed["values"][0] == changed["original"]
        assert changed["values"][-1] == list(last.values())
        check_gathers(name, plain, changed)
        seen |= set(map(tuple, changed["values"]))
    assert len(seen) > 1, "the changes change nothing"
    end()


if __name__ == "__main__":
    main()
