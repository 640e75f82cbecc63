"""Makes this rank a participant of a two-phase commit, through the job's own store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from overlaptop.agent.control.two_phase_commit import (
    RESOLVE_S,
    RESOLVE_TOGETHER_S,
    Position,
    StepProgress,
    TwoPhaseCommit,
)
from overlaptop.agent.hooks.process_groups import shortest_timeout_s

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

STORE_TIMEOUT = timedelta(seconds=5)
SHARE_OF_TIMEOUT = 0.25
"""Others may have waited for this rank before, and will again: well below their timeout."""


def join_commit(
    key: str,
    pace: Callable[[], StepProgress],
    arm: Callable[[int], None],
    position: Callable[[int], Position],
    resolve_limit_s: float,
) -> TwoPhaseCommit:
    """Join the commit named ``key``; see TwoPhaseCommit. On the command's thread: it may block.

    ``resolve_limit_s``: how long to look for the decision should the store fail, if no collective of the
    other ranks times out in so long: NCCL's do after 10 minutes, unless the job says otherwise, and end the
    job. Raises RuntimeError where there are other ranks and no store that can be shared with the job.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        limit_s = min(resolve_limit_s, RESOLVE_S)
        return TwoPhaseCommit(None, 0, 1, pace, arm, position, resolve_limit_s=limit_s)
    store, timeout_s = job_store(key), shortest_timeout_s()
    # Where no timeout is known, the longest: to withdraw where others act ends the job for certain.
    max_stall_s = RESOLVE_TOGETHER_S if timeout_s is None else timeout_s * SHARE_OF_TIMEOUT
    return TwoPhaseCommit(
        store, dist.get_rank(), dist.get_world_size(), pace, arm, position,
        reconnect=partial(job_store, key), resolve_limit_s=min(resolve_limit_s, max_stall_s),
    )  # fmt: skip


def job_store(key: str) -> Store:
    """The job's store, for this commit alone, on a connection of its own. Raises RuntimeError."""
    import torch.distributed as dist

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
    return dist.PrefixStore(f"overlaptop/{key}", own)  # type: ignore[attr-defined]
