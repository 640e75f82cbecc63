"""Runs `workloads/faults.py`, and each rank writes down when it comes to communicate.

    torchrun --nproc-per-node=2 -m overlaptop.agent benchmarks/jobs/recorded_faults.py FOLDER --by gc

``FOLDER/rank-1.jsonl`` has a line for each step: whether the rank has the fault, how long its host lost
before it came to communicate (0 with ``cpus``, which loses time all along), and when it came to that. On a
GPU that is the first collective. On a CPU, where the agent hooks collectives, it is the end of the first
forward pass, or without one the step's beginning or the loss's end.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from overlaptop.workloads import faults

COLLECTIVES = (
    "allreduce_", "allreduce_coalesced_", "alltoall_base_", "broadcast_", "_allgather_base_",
    "_reduce_scatter_base_",
)  # fmt: skip
"""c10d operations that begin a step's communication in the bundled workloads."""


class RecordingInjector(faults.Injector):
    """Also writes a line for each step."""

    def __init__(self, folder: Path, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"rank-{self._rank}.jsonl").open("w", buffering=1)
        self._arrived_step = -1
        self._lost_ns = 0  # Since the last arrival
        self._anchor: tuple[torch.cuda.Event, int] | None = None
        """The first arrival at the GPU, and its Unix time in ns."""
        self._unwritten: deque[tuple[torch.cuda.Event, dict[str, int | bool]]] = deque()

    def install(self) -> None:
        super().install()
        if self._on_gpu:
            self._hook_collectives()

    def _hook_collectives(self) -> None:
        # No public function sees the collectives of DDP's reducer.
        key = torch._C.DispatchKey.BackendSelect
        after = torch._C._dispatch_keyset_full_after(key)
        self._library = torch.library.Library("c10d", "IMPL")

        def noting(op: Any) -> Callable[..., Any]:
            def kernel(keys: Any, *args: Any) -> Any:
                self._arrive()
                return op._handle.redispatch_boxed(keys & after, *args)

            return kernel

        for name in COLLECTIVES:
            op = getattr(torch.ops.c10d, name).default
            self._library.impl(name, noting(op), "BackendSelect", with_keyset=True)

    def _forwarded(self, module: object, inputs: object, output: object) -> None:
        super()._forwarded(module, inputs, output)
        if not self._depth and not self._on_gpu:
            self._arrive()

    def _boundary(self) -> None:
        super()._boundary()
        if not self._has_modules and not self._on_gpu:
            self._arrive()

    def _lose_now(self, lose_ns: int) -> None:
        began_ns = time.time_ns()
        super()._lose_now(lose_ns)
        if not isinstance(self._cause, faults.Cpus):
            self._lost_ns += time.time_ns() - began_ns

    def _arrive(self) -> None:
        """Record the first arrival of a step; on a GPU it is written once the GPU has come to it."""
        if self._arrived_step == self._step:
            return
        self._arrived_step = self._step
        line = {"step": self._step, "is_faulty": self._lose_ns > 0, "lost_ns": self._lost_ns}
        self._lost_ns = 0
        if not self._on_gpu:
            self._write(line, time.time_ns())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        if self._anchor is None:
            event.synchronize()
            self._anchor = event, time.time_ns()
        anchor, anchor_ns = self._anchor
        self._unwritten.append((event, line))
        while self._unwritten and self._unwritten[0][0].query():
            event, line = self._unwritten.popleft()
            self._write(line, anchor_ns + round(anchor.elapsed_time(event) * 1e6))

    def _write(self, line: dict[str, int | bool], arrived_ns: int) -> None:
        self._file.write(json.dumps({**line, "arrived_ns": arrived_ns}) + "\n")


if __name__ == "__main__":
    faults.main(partial(RecordingInjector, Path(sys.argv.pop(1))))
