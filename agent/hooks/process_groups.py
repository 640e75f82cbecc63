"""Reads torch's process groups: ranks, collectives begun, timeouts."""

import sys
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.wire.bounds import MAX_RANKS


def group_of_all() -> Any:
    """Return the group of all ranks; None if the job has none."""
    dist = sys.modules.get("torch.distributed")
    return dist.group.WORLD if dist is not None and dist.is_available() else None


def collectives_begun(group: Any) -> tuple[int, ...] | None:
    """Count the collectives that this rank has begun in a group, by backend; None if one does not count.

    A group may have a backend for each device type (``cpu:gloo,cuda:nccl``). Torch itself returns the count
    of only one of them, possibly the unused one.
    """
    try:
        begun = [backend._get_sequence_number_for_group() for backend in _backends(group)]  # noqa: SLF001 - there is no public way
    except (AttributeError, RuntimeError) as fault:
        if raised_by_job(fault):
            raise
        return None
    return tuple(begun) or None


def shortest_timeout_s() -> float | None:
    """Return the shortest timeout of this process's groups; None if none is known.

    Torch ends a job if not all ranks join a collective within the timeout.
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
                # With TORCH_DISTRIBUTED_DEBUG=DETAIL a wrapper without options hides the group.
                options = getattr(backend, "wrapped_pg", backend).options
                timeouts_s.append(options._timeout.total_seconds())  # noqa: SLF001 - there is no public way
    return min(timeouts_s, default=None)


def _backends(group: Any) -> list[Any]:
    """Return a group's backends, each once. Raises AttributeError or RuntimeError if torch hides them."""
    found: list[Any] = []
    for device in group._device_types:  # noqa: SLF001 - there is no public way
        backend = group._get_backend(device)  # noqa: SLF001
        if not any(backend is each for each in found):
            found.append(backend)
    return found


REMEMBERED_STEPS = 4096  # Several seconds of very short steps


class SequenceNumbers:
    """One group's counts on this rank. Noted on the training thread, read on any."""

    def __init__(self) -> None:
        self._noted: list[tuple[int, tuple[int, ...]] | None] = [None] * REMEMBERED_STEPS
        """Step and counts, at index step modulo REMEMBERED_STEPS."""

    def note(self, step: int, group: Any) -> None:
        begun = collectives_begun(group)
        self._noted[step % REMEMBERED_STEPS] = None if begun is None else (step, begun)

    def at(self, step: int) -> str:
        """Return ``after 1050 collectives``: the count when ``step`` began, one count for each backend.

        Raises LookupError if it is unknown.
        """
        noted = self._noted[step % REMEMBERED_STEPS]
        if noted is None or noted[0] != step:
            raise LookupError(f"does not know its position when step {step} began")
        return f"after {' + '.join(map(str, noted[1]))} collectives"


def why_uncounted(group: Any) -> str:
    """Why ranks cannot compare positions by this group's counts; empty: they can."""
    if collectives_begun(group) is not None:
        return ""
    return "its backend does not count collectives, so ranks could not compare their positions"


def members_of(titles: Collection[str], most: int = MAX_RANKS) -> dict[str, tuple[int, ...]]:
    """Return the ranks of the groups with these titles, without groups of more than ``most`` ranks."""
    import torch.distributed as dist

    from overlaptop.timeline.collectives import group_title

    if not dist.is_available() or not titles:
        return {}
    world = dist.distributed_c10d._world  # noqa: SLF001 - there is no public way
    return {
        title: tuple(sorted(ranks))
        for group, ranks in tuple(world.pg_group_ranks.items())
        if hasattr(group, "group_name") and len(ranks) <= most  # a plain number: a group of other ranks
        if (title := group_title(group.group_name, group.group_desc)) in titles
    }
