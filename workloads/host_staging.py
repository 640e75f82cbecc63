"""Sums over the ranks of one host through system memory, as on GPUs without links between them.

NCCL's shared-memory transport moves the same bytes. A GPU writes the parts that other ranks add up into
memory mapped by all ranks. It adds up its own part of all ranks' tensors and writes the sum for the others.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor

from overlaptop.workloads.job import Place


def is_one_host(world_size: int) -> bool:
    """Whether all ranks run on this host, by torchrun's environment; true without it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) == world_size


class HostStaging:
    """Sums tensors of the shape of this one, (n,), between the ranks of one host; on a GPU the copies run
    on a separate stream.
    """

    def __init__(self, tensor: Tensor, place: Place, stream: torch.cuda.Stream | None) -> None:
        self._rank, self._stream = place.rank, stream
        self._group = dist.new_group(backend="gloo")
        self._bounds = [tensor.numel() * rank // place.world_size for rank in range(place.world_size + 1)]
        self._shared = self._map(tensor, place)
        """Shape (ranks, n): parts that each rank offers the others, and the sum of its own part."""
        if stream is not None:
            address, size_bytes = self._shared.data_ptr(), self._shared.nbytes
            torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(address, size_bytes, 0)))
        self._written: torch.cuda.Event | None = None
        """Recorded after this rank's last write that the others wait for."""
        self._own = self._part(self._rank)
        self._addend = torch.empty_like(tensor[self._own])

    def close(self) -> None:
        dist.barrier(self._group)
        if self._stream is not None:
            torch.cuda.check_error(int(torch.cuda.cudart().cudaHostUnregister(self._shared.data_ptr())))
        dist.destroy_process_group(self._group)

    def begin(self, tensor: Tensor) -> None:
        """Copy the parts that other ranks add up to the host, as soon as `tensor` is computed."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for peer in self._peers:
                part = self._part(peer)
                self._shared[self._rank, part].copy_(tensor[part], non_blocking=True)
        self._note_written()

    def finish(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over all ranks. The CPU waits for copies and for other ranks."""
        self._meet()
        with torch.cuda.stream(self._stream):
            for peer in self._peers:
                self._addend.copy_(self._shared[peer, self._own], non_blocking=True)
                tensor[self._own].add_(self._addend)
            self._shared[self._rank, self._own].copy_(tensor[self._own], non_blocking=True)
        self._note_written()
        self._meet()
        with torch.cuda.stream(self._stream):
            for peer in self._peers:
                part = self._part(peer)
                tensor[part].copy_(self._shared[peer, part], non_blocking=True)
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    @property
    def _peers(self) -> list[int]:
        return [rank for rank in range(len(self._bounds) - 1) if rank != self._rank]

    def _part(self, rank: int) -> slice:
        return slice(self._bounds[rank], self._bounds[rank + 1])

    def _note_written(self) -> None:
        self._written = self._stream.record_event() if self._stream is not None else None

    def _meet(self) -> None:
        """Wait until all ranks have written their parts.

        They have then also read everything written before the last meeting: a rank's reads and writes are
        on one stream.
        """
        if self._written is not None:
            self._written.synchronize()
        dist.barrier(self._group)

    def _map(self, tensor: Tensor, place: Place) -> Tensor:
        """Map memory of rank 0 into all ranks. It has no name, so nothing is left behind."""
        # A file in /dev/shm would not do: it is small in containers.
        memory = os.memfd_create("overlaptop-host-staged") if place.rank == 0 else -1
        path = [f"/proc/{os.getpid()}/fd/{memory}"]
        dist.broadcast_object_list(path, src=0, group=self._group)
        size = place.world_size * tensor.numel()
        shared = torch.from_file(path[0], shared=True, size=size, dtype=tensor.dtype)
        dist.barrier(self._group)
        if place.rank == 0:
            os.close(memory)
        return shared.view(place.world_size, tensor.numel())
