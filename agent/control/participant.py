"""Finds this rank's number and key-value store for a two-phase commit: the job's own store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from overlaptop.agent.control.two_phase_commit import RESOLVE_S, RESOLVE_TOGETHER_S, KeyValueStore
from overlaptop.agent.hooks.process_groups import shortest_timeout_s

STORE_TIMEOUT = timedelta(seconds=5)
SHARE_OF_TIMEOUT = 0.25
"""Others may have waited for this rank before, and will again: well below their timeout."""


@dataclass(frozen=True, slots=True)
class Participant:
    """The rank as a participant of a two-phase commit."""

    store: KeyValueStore | None
    """None where there are no other ranks."""
    rank: int
    world_size: int
    max_stall_s: float
    """The longest that this rank may stand still at a step without another one's collective timing out:
    NCCL's do after 10 minutes, unless the job says otherwise, and end the job."""


def find_participant(key: str) -> Participant:
    """The rank as a participant of the commit named ``key``, on a connection of its own. May block.

    Raises RuntimeError where there are other ranks and no store that can be shared with the job.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Participant(None, 0, 1, RESOLVE_S)
    try:
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no public way
        # A connection of its own: what blocks here holds no lock that the job's own calls need.
        own = store.clone()  # type: ignore[attr-defined]  # since torch 2.8; its stubs do not know
        # The clone of a HashStore (ranks that are threads of one process) is the very store itself.
        base = getattr(own, "_underlying_non_prefix_store", own)
        if not isinstance(base, dist.HashStore):  # type: ignore[attr-defined]  # public, torch forgot to say
            own.set_timeout(STORE_TIMEOUT)
    except (AttributeError, NotImplementedError, RuntimeError) as fault:
        raise RuntimeError(f"the job's store cannot be shared: {type(fault).__name__}: {fault}") from fault
    store = dist.PrefixStore(f"overlaptop/{key}", own)  # type: ignore[attr-defined]
    timeout_s = shortest_timeout_s()
    # Where no timeout is known, the longest: to withdraw where others act ends the job for certain.
    max_stall_s = RESOLVE_TOGETHER_S if timeout_s is None else timeout_s * SHARE_OF_TIMEOUT
    return Participant(store, dist.get_rank(), dist.get_world_size(), max_stall_s)
