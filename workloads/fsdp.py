"""A small GPT under FSDP2: each block's weights are gathered before use and freed afterwards.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/fsdp.py

It is the model of ddp.py, with the same weights and batches. ``--prefetch-forward`` and
``--prefetch-backward`` set how many blocks ahead weights are gathered. The numbers are the same for every
depth. A greater depth hides more of the gathering behind compute, and takes more memory.

With 0 a pass uses FSDP2's default. In forward, a block's weights are requested when the block is reached:
on a GPU this overlaps if the CPU runs ahead, with gloo it does not overlap at all. In backward, weights are
requested one block ahead. ``--limit-gathers`` limits how many blocks' weights exist at a time, and so the
memory: the CPU waits until the GPU has finished an earlier block before it requests the next weights. With
1 nothing overlaps.

On the screen, gathers move away from the block that needs them as the depth grows, and exposed time falls.
With ``--no-reshard-after-forward`` there are no gathers below backward.
"""

import argparse
import gc
from collections import deque

import torch
import torch.distributed.tensor.debug
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from overlaptop.workloads import gpt, job


def shard(model: gpt.Gpt, place: job.Place, *, reshard_after_forward: bool) -> None:
    """Shard each block by itself over all ranks, and the rest of the model as one more unit.

    ``reshard_after_forward``: free a block's weights after its forward pass and gather them again for its
    backward pass. The model's own weights are kept in either case: backward begins with them.
    """
    mesh = init_device_mesh(place.device.type, (place.world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard_after_forward)
    root = fully_shard(model, mesh=mesh)
    if place.device.type == "cpu":
        # On a GPU a gather overlaps compute because it has its own stream. gloo has none, so only a gather
        # that does not block its caller can overlap.
        root._set_unshard_async_op(True)  # noqa: SLF001 - torch has no public way for all units at once


def set_prefetch(model: gpt.Gpt, forward: int, backward: int, limit: int | None = None) -> None:
    """Have each unit of a sharded model prefetch the weights of this many units after it in each pass (0:
    FSDP2's default, none in forward, one in backward), with at most ``limit`` units' weights at a time.

    It can be called between any two steps, on all ranks alike: gathers are collectives.
    """
    if limit is not None:
        forward, backward = min(forward, limit - 1), min(backward, limit - 1)
    units = [module for module in (model, *model.blocks) if isinstance(module, FSDPModule)]
    root, blocks = units[0], units[1:]
    # Both passes begin with the root: in forward it has the embedding, in backward the head.
    for order, depth, choose in (
        ([root, *blocks], forward, FSDPModule.set_modules_to_forward_prefetch),
        ([root, *reversed(blocks)], backward, FSDPModule.set_modules_to_backward_prefetch),
    ):
        for at, unit in enumerate(order, 1):
            choose(unit, order[at : at + depth])
            if limit == 1:
                choose(unit, [unit])  # its weights exist already; FSDP2's default would be one ahead


class GatherLimit:
    """Makes the CPU wait while `limit` blocks' weights may still be in use, before it requests more.

    On a CPU nothing is to be done: it requests no weights while it computes, except prefetched ones.
    """

    def __init__(self, model: gpt.Gpt, limit: int) -> None:
        self._computed: deque[torch.cuda.Event] = deque(maxlen=limit)
        """Events at the beginnings of the last `limit` blocks, oldest first."""
        for block in model.blocks:
            # Before FSDP2's own hooks, which request the weights.
            block.register_forward_pre_hook(self._before_block, prepend=True)
            block.register_full_backward_pre_hook(self._before_block, prepend=True)

    def _before_block(self, *_: object) -> None:
        if self._computed.maxlen == 1:
            torch.cuda.synchronize()  # reductions, too
            return
        event = torch.cuda.Event()
        event.record()
        self._computed.append(event)
        if len(self._computed) == self._computed.maxlen:
            self._computed[0].synchronize()


def run(options: argparse.Namespace, place: job.Place) -> None:
    with gpt.arithmetic(options):
        train(options, place)
    forget_group()


def train(options: argparse.Namespace, place: job.Place) -> None:
    model = gpt.build(options, place)
    shard(model, place, reshard_after_forward=options.reshard_after_forward)
    set_prefetch(model, options.prefetch_forward, options.prefetch_backward, options.limit_gathers)
    if options.limit_gathers and place.device.type == "cuda":
        GatherLimit(model, options.limit_gathers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=gpt.LEARNING_RATE, fused=True)
    batches = gpt.Batches(options, place)
    report = job.Report(options, place, marks=False)

    for _ in report.steps():
        loss = model(batches.next())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        report.add(loss)


def forget_group() -> None:
    """Release all that still holds the process group after the model's last use.

    These are the model itself, which is full of reference cycles, and the mesh, which DTensor keeps with
    its cached sharding rules. gloo's threads would live as long, and could abort the process at exit.
    """
    gc.collect()
    # Its name has changed between torch versions. Without it, only this exit is less clean.
    clear_rules = getattr(torch.distributed.tensor.debug, "_clear_sharding_prop_cache", None)
    if clear_rules is not None:
        clear_rules()


if __name__ == "__main__":
    job.main(__file__, run)
