"""Requirements of modes on the ranks and the machine."""

from __future__ import annotations

import argparse
import importlib.util

from overlaptop.workloads.options import Defaults, OptionsError


def require_multiple(option: str, value: int, unit: int, of: str = "") -> None:
    """Raise OptionsError if the value of `option` is no multiple of `unit`, the number of ``of``."""
    if value % unit:
        raise OptionsError(f"{option}: must be a multiple of {unit}{of and f', the {of}'}")


def ranks_a_replica(options: argparse.Namespace, ranks: int) -> int:
    """Return the number of ranks that share the weights. Raises OptionsError if groups do not divide."""
    if ranks % options.replicas:
        raise OptionsError(f"--replicas: {ranks} ranks do not make {options.replicas} groups")
    return int(ranks // options.replicas)


def is_installed(package: str) -> bool:
    """Whether a top-level package is installed; does not import it."""
    return importlib.util.find_spec(package) is not None


def why_no_gpu_each(ranks: int, where: Defaults) -> str:
    """Why ranks cannot access each other's GPU; empty if they can."""
    return "" if where == "cuda" else f"needs {ranks} GPUs, one for each rank"


def why_no_transformer_engine(ranks: int, where: Defaults, *, overlaps: bool) -> str:
    """Why TransformerEngine, or its overlap, cannot be used here; empty if it can."""
    if not is_installed("transformer_engine"):
        return "TransformerEngine is not installed here (pip install transformer-engine[pytorch])"
    if where == "cpu":
        return f"needs {ranks} GPUs"
    return why_no_gpu_each(ranks, where) if overlaps else ""
