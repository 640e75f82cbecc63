"""Chooses a rank's source: kernels if CUPTI is free, events on other GPUs, else the host's clock."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.options import AgentOptions
from overlaptop.agent.sources.base import Source
from overlaptop.agent.sources.events import EventsSource
from overlaptop.agent.sources.host import HostSource
from overlaptop.agent.sources.kernels import KernelsSource
from overlaptop.agent.telemetry.telemetry import JobGpu
from overlaptop.timeline.lanes import LaneRules


def choose(options: AgentOptions, optimizer: Any, instead_of: Source | None = None) -> Source:
    """Start and return a source for a job whose step has just ended. ``optimizer``: None if marked by hand.

    An earlier choice could initialize CUDA before the script sets CUDA_VISIBLE_DEVICES. ``instead_of``: a
    source that gave up.
    """
    on_cuda = computes_on_cuda(optimizer)
    refusal = "" if on_cuda else "no CUDA device in use"
    for source in _candidates(options, cuda_device_of(optimizer), on_cuda=on_cuda):
        if instead_of is not None and isinstance(source, type(instead_of)):
            refusal = instead_of.gave_up
            continue
        try:
            source.start()
        except RuntimeError as reason:
            if raised_by_job(reason):
                raise
            refusal = str(reason)
            continue
        if refusal:
            source.reason = f"{refusal}; {source.reason}" if source.reason else refusal
        return source
    raise AssertionError("the host's clock is always there")


def _candidates(options: AgentOptions, device: int | None, *, on_cuda: bool) -> Iterator[Source]:
    asked = options.source
    if on_cuda and (asked == "kernels" or (asked == "auto" and not options.phases_only)):
        yield KernelsSource(options.every, device, LaneRules(options.lane_rules), options.budget)
    if asked in ("kernels", "events") or (asked == "auto" and on_cuda):
        yield EventsSource(options.phases_only, options.every, device, options.budget)
    yield HostSource(
        options.phases_only, options.every, "asked for" if asked == "host" else "", options.budget
    )


def computes_on_cuda(optimizer: Any) -> bool:
    """Whether the job's steps run on a GPU, even if its parameters are offloaded to the host."""
    if not torch.cuda.is_initialized():
        return False
    devices = {parameter.device.type for parameter in _parameters(optimizer)}
    return not devices or "cuda" in devices or backend_name().startswith("nccl")


def cuda_device_of(optimizer: Any) -> int | None:
    """Return the GPU of this optimizer's parameters; None if unknown."""
    return next((p.device.index for p in _parameters(optimizer) if p.is_cuda), None)


def device_name(optimizer: Any) -> str:
    """Return the job's device: ``NVIDIA H200``, ``cpu``."""
    return torch.cuda.get_device_name(cuda_device_of(optimizer)) if computes_on_cuda(optimizer) else "cpu"


def job_gpu(optimizer: Any) -> JobGpu | None:
    """Return the job's GPU by the names that NVML and sysfs use; None without a GPU."""
    if not computes_on_cuda(optimizer):
        return None
    properties = torch.cuda.get_device_properties(cuda_device_of(optimizer))
    uuid = str(getattr(properties, "uuid", ""))
    address = [getattr(properties, f"pci_{part}_id", -1) for part in ("domain", "bus", "device")]
    return JobGpu(
        uuid=uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",
        pci_bus_id="" if -1 in address else "{:04x}:{:02x}:{:02x}.0".format(*address),
        name=properties.name,
    )


def backend_name() -> str:
    """Return the backend: ``nccl 2.28.9``, ``gloo``; empty before the process group exists."""
    if not dist.is_available() or not dist.is_initialized():
        return ""
    name = dist.get_backend()
    if name == "nccl" and torch.cuda.is_available():
        return f"nccl {'.'.join(map(str, torch.cuda.nccl.version()))}"
    return str(name)


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]
