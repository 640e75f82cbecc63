"""What torch knows of process groups: how many collectives were begun, and how long others wait for one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from overlaptop.agent.isolation.job_exceptions import raised_by_job


def collectives_begun(group: Any) -> tuple[int, ...] | None:
    """How many collectives this rank has begun in a group, by backend; None where one does not count them.

    A group may have a backend for each kind of device (``cpu:gloo,cuda:nccl``), and torch itself gives the
    count of one of them only, which may be the unused one.
    """
    try:
        begun = [backend._get_sequence_number_for_group() for backend in _backends(group)]  # noqa: SLF001 - there is no public way
    except (AttributeError, RuntimeError) as fault:
        if raised_by_job(fault):
            raise
        return None
    return tuple(begun) or None


def shortest_timeout_s() -> float | None:
    """The shortest timeout of this process's groups: torch ends a job whose ranks do not all join a
    collective in time. None where no group has a known one.
    """
    import torch.distributed as dist

    try:
        groups = list(dist.distributed_c10d._world.pg_map)  # noqa: SLF001 - there is no public way
    except AttributeError:
        return None
    timeouts_s: list[float] = []
    for group in groups:
        with suppress(AttributeError, RuntimeError):
            for backend in _backends(group):
                # With TORCH_DISTRIBUTED_DEBUG=DETAIL there is a wrapper that has no options.
                options = getattr(backend, "wrapped_pg", backend).options
                timeouts_s.append(options._timeout.total_seconds())  # noqa: SLF001 - there is no public way
    return min(timeouts_s, default=None)


def _backends(group: Any) -> list[Any]:
    """A group's backends, each once. Raises AttributeError or RuntimeError where torch hides them."""
    found: list[Any] = []
    for device in group._device_types:  # noqa: SLF001 - there is no public way
        backend = group._get_backend(device)  # noqa: SLF001
        if not any(backend is each for each in found):
            found.append(backend)
    return found
