"""A small GPT under FSDP2: each block's weights are gathered before its use and freed behind it.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/fsdp.py

It is the model of ddp.py, with the same weights and batches. ``--prefetch-forward`` and
``--prefetch-backward`` say how many blocks ahead the weights are gathered. The numbers are the same for
every depth; what changes is how much of the gathering hides behind compute, and how much memory it takes.

With 0 a pass is left to FSDP2's own ways. Forward, a block's weights are asked for when the block is
reached: on a GPU that overlaps as far as the CPU runs ahead of it, with gloo it does not overlap at all.
Backward, they are asked for one block ahead.

``--limit-gathers`` bounds how many blocks' weights are there at a time, and so the memory: the CPU waits
until the GPU has finished with an earlier block before it asks for the next one's. With 1 nothing overlaps.
"""

from __future__ import annotations

import argparse
import gc
from collections import deque

import torch
import torch.distributed.tensor.debug
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from overlaptop.workloads import catalog, gpt, job


def shard(model: gpt.Gpt, place: job.Place, *, reshard_after_forward: bool) -> None:
    """Shard each block by itself over all ranks, and what is left of the model as one more unit.

    Args:
        model: becomes, like each of its blocks, an FSDPModule.
        place: this process's place in the job.
        reshard_after_forward: free a block's weights behind its forward pass and gather them again for
            its backward pass. The model's own are kept in either case: backward begins with them.
    """
    mesh = init_device_mesh(place.device.type, (place.world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard_after_forward)
    root = fully_shard(model, mesh=mesh)
    if place.device.type == "cpu":
        # On a GPU a gather runs beside compute because it has a stream of its own. gloo has none: there
        # only a gather that does not block its caller can.
        root._set_unshard_async_op(True)  # noqa: SLF001 - for all units at once torch has no public way


def set_prefetch(model: gpt.Gpt, forward: int, backward: int, limit: int | None = None) -> None:
    """Have each unit of a sharded model ask for the weights of so many units after it.

    Can be called between any two steps, and must then be called on all ranks: gathers are collectives.

    Args:
        model: sharded by `shard`.
        forward: units ahead in the forward pass; 0: FSDP2's own, which asks for none.
        backward: units ahead in the backward pass; 0: FSDP2's own, which asks for one.
        limit: units whose weights may be there at a time; None: any number.
    """
    if limit is not None:
        forward, backward = min(forward, limit - 1), min(backward, limit - 1)
    units = [module for module in (model, *model.blocks) if isinstance(module, FSDPModule)]
    root, blocks = units[0], units[1:]
    # Either pass meets the root first: forward the embedding is its own, backward the head.
    for order, depth, choose in (
        ([root, *blocks], forward, FSDPModule.set_modules_to_forward_prefetch),
        ([root, *reversed(blocks)], backward, FSDPModule.set_modules_to_backward_prefetch),
    ):
        for at, unit in enumerate(order, 1):
            choose(unit, order[at : at + depth])
            if limit == 1:
                choose(unit, [unit])  # which it has already: FSDP2's own would be one ahead


class GatherLimit:
    """Keeps the CPU from asking for a block's weights while so many blocks' may still be in use.

    On a CPU there is nothing to do: it asks for no weights while it computes, but for those prefetched.

    Args:
        model: sharded by `shard`; its blocks' passes are hooked.
        limit: blocks whose weights may be there at a time.
    """

    def __init__(self, model: gpt.Gpt, limit: int) -> None:
        self._computed: deque[torch.cuda.Event] = deque(maxlen=limit)
        """Up to the beginnings of as many blocks, the oldest first."""
        for block in model.blocks:
            # In front of FSDP2's own hooks, which ask for the weights.
            block.register_forward_pre_hook(self._before_block, prepend=True)
            block.register_full_backward_pre_hook(self._before_block, prepend=True)

    def _before_block(self, *_: object) -> None:
        if self._computed.maxlen == 1:
            torch.cuda.synchronize()  # what is being reduced, too
            return
        event = torch.cuda.Event()
        event.record()
        self._computed.append(event)
        if len(self._computed) == self._computed.maxlen:
            self._computed[0].synchronize()


def run(options: argparse.Namespace, place: job.Place) -> None:
    """Train until the steps or the time are over."""
    with gpt.arithmetic(options):
        train(options, place)
    forget_group()


def train(options: argparse.Namespace, place: job.Place) -> None:
    """Train with the numbers as the process has them."""
    model = gpt.build(options, place)
    shard(model, place, reshard_after_forward=options.reshard_after_forward)
    set_prefetch(model, options.prefetch_forward, options.prefetch_backward, options.limit_gathers)
    if options.limit_gathers and place.device.type == "cuda":
        GatherLimit(model, options.limit_gathers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=gpt.LEARNING_RATE, fused=True)
    batches = gpt.Batches(options, place)
    report = job.Report(place, "loss", options.results)

    for _ in job.step_numbers(options, place):
        loss = model(batches.next())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        report.add(loss)
    report.close()


def forget_group() -> None:
    """Let go of what still holds the process group when the model is no longer used.

    That is the model itself, being full of reference cycles, and the mesh, which DTensor keeps with its
    cached sharding rules. gloo's threads would live as long, and could abort the process at its exit.
    """
    gc.collect()
    # Its name has changed with torch, and without it only this exit is less tidy.
    clear_rules = getattr(torch.distributed.tensor.debug, "_clear_sharding_prop_cache", None)
    if clear_rules is not None:
        clear_rules()


if __name__ == "__main__":
    job.main(catalog.FSDP, run)
