"""Runs `workloads/faults.py`, and each rank writes down what its steps have lost.

    torchrun --nproc-per-node=2 -m overlaptop.agent benchmarks/jobs/recorded_faults.py FOLDER --by gc

``FOLDER/rank-1.jsonl`` has a line for each step: its loss (null: time is lost continuously), and the time
when the rank came to communicate. On a GPU that is the first collective. On a CPU, where the agent hooks
collectives, it is the end of the first forward pass, or without one the step's beginning or the loss's end.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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

Moment = int | torch.cuda.Event  # Unix time in ns, or a moment on the GPU's timeline


@dataclass(slots=True)
class Record:
    """One step of this rank."""

    step: int
    began: Moment | None = None  # Start of the loss; None: nothing was lost, or time is lost continuously
    ended: Moment | None = None
    arrived: Moment | None = None


class RecordingInjector(faults.Injector):
    """Also writes a line for each step."""

    def __init__(self, folder: Path, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"rank-{self._rank}.jsonl").open("w", buffering=1)
        self._record: Record | None = None  # This step's record, until the rank has arrived
        self._unwritten: deque[Record] = deque()
        self._anchor: tuple[torch.cuda.Event, int] | None = None
        """A moment on the GPU's timeline, and its Unix time in ns."""

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
        self._record = Record(self._step + 1)
        super()._boundary()
        if not self._has_modules and not self._on_gpu:
            self._arrive()

    def _lose_now(self, lose_ns: int) -> None:
        began = self._now()
        super()._lose_now(lose_ns)
        if self._record is not None and not isinstance(self._cause, faults.Cpus):
            self._record.began, self._record.ended = began, self._now()

    def _arrive(self) -> None:
        if self._record is None:
            return
        self._record.arrived = self._now()
        self._unwritten.append(self._record)
        self._record = None
        while self._unwritten:
            record = self._unwritten[0]
            if isinstance(record.arrived, torch.cuda.Event) and not record.arrived.query():
                break
            self._unwritten.popleft()
            lost_ns: int | None = None if isinstance(self._cause, faults.Cpus) and self._lose_ns else 0
            if record.began is not None:
                lost_ns = self._unix_ns(record.ended) - self._unix_ns(record.began)
            line = {"step": record.step, "lost_ns": lost_ns, "arrived_ns": self._unix_ns(record.arrived)}
            self._file.write(json.dumps(line) + "\n")

    def _now(self) -> Moment:
        if not self._on_gpu:
            return time.time_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        if self._anchor is None:
            event.synchronize()
            self._anchor = event, time.time_ns()
        return event

    def _unix_ns(self, moment: Moment | None) -> int:
        if isinstance(moment, int):
            return moment
        assert moment is not None
        assert self._anchor is not None
        event, at_ns = self._anchor
        return at_ns + round(float(event.elapsed_time(moment)) * 1e6)


if __name__ == "__main__":
    faults.main(partial(RecordingInjector, Path(sys.argv.pop(1))))
