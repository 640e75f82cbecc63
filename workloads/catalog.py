"""The bundled workloads, for those who list or start them. Imports none of them, and no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Workload:
    """A script that torchrun can start."""

    name: str
    path: Path
    """Absolute."""
    summary: str
    """One line for a list."""


def _bundled(name: str, summary: str) -> Workload:
    return Workload(name, Path(__file__).absolute().with_name(f"{name}.py"), summary)


WORKLOADS: tuple[Workload, ...] = (
    _bundled("ddp", "a transformer under DDP: gradient buckets reduced during backward, or after it"),
    _bundled("fsdp", "a transformer under FSDP2: weights gathered as each block needs them, or ahead"),
    _bundled("allreduce_matmul", "an all-reduce beside matrix products and host-to-device copies"),
)


def find(name_or_path: str) -> Workload | None:
    """The workload of that name (``ddp``, ``ddp.py``) or at that path; None where it is not bundled."""
    for workload in WORKLOADS:
        if name_or_path in (workload.name, workload.path.name):
            return workload
    path = Path(name_or_path)
    return next((each for each in WORKLOADS if path.exists() and path.samefile(each.path)), None)
