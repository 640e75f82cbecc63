"""Which physical GPU a rank will compute on, found out before CUDA is initialised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from overlaptop.agent.telemetry.files import UnavailableError
from overlaptop.wire.devices import GpuSite

MAX_ENTRIES = 256


def visible_gpus(gpus: Sequence[GpuSite], environ: Mapping[str, str]) -> tuple[GpuSite, ...]:
    """Return the GPUs that CUDA will show to this process, in CUDA's order.

    ``gpus``: all that NVML knows. Raises UnavailableError where the environment says none, or too little.
    """
    in_order = tuple(sorted(gpus, key=lambda gpu: gpu.index))
    if not in_order:
        raise UnavailableError("NVML knows no GPU here")
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    by_number = wanted is None or wanted.strip()[:1].isdigit()
    same = len({gpu.name for gpu in in_order}) == 1
    if by_number and not same and environ.get("CUDA_DEVICE_ORDER", "") != "PCI_BUS_ID":
        raise UnavailableError(
            "CUDA numbers GPUs of different kinds by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    if wanted is None:
        return in_order
    shown: list[GpuSite] = []
    for entry in map(str.strip, wanted.split(",")[:MAX_ENTRIES]):
        gpu = _named(entry, in_order) if entry[:1].isdigit() == by_number else None
        if gpu is None:
            break  # as CUDA does: the list ends at the first that names no GPU, or names it otherwise
        if gpu in shown:
            raise UnavailableError(f"CUDA_VISIBLE_DEVICES names GPU {gpu.index} twice")
        shown.append(gpu)
    if not shown:
        raise UnavailableError(f"CUDA_VISIBLE_DEVICES={wanted[:40]} shows no GPU")
    return tuple(shown)


def _named(entry: str, gpus: Sequence[GpuSite]) -> GpuSite | None:
    """The GPU that an entry of CUDA_VISIBLE_DEVICES names: its number, its UUID or the UUID's beginning."""
    if entry.startswith("MIG-"):
        raise UnavailableError("CUDA_VISIBLE_DEVICES names a MIG slice, which does not tell its GPU")
    if entry.isascii() and entry.isdecimal() and len(entry) < 10:
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    if entry.startswith("GPU-"):
        matches = [gpu for gpu in gpus if gpu.uuid.lower().startswith(entry.lower())]
        return matches[0] if len(matches) == 1 else None
    return None


def gpus_of_rank(
    local_rank: int | None, gpus: Sequence[GpuSite], environ: Mapping[str, str]
) -> tuple[GpuSite, ...]:
    """Return the GPU that a rank will use, or all that it may, where nobody says which rank it is.

    Training scripts take the visible GPU with the number of their local rank; a launcher that shows each
    rank one GPU only leaves them no choice. Raises UnavailableError, also where a rank has no GPU.
    """
    shown = visible_gpus(gpus, environ)
    if len(shown) == 1 or local_rank is None:
        return shown
    if local_rank >= len(shown):
        raise UnavailableError(f"local rank {local_rank} has none of the {len(shown)} visible GPUs")
    return (shown[local_rank],)
