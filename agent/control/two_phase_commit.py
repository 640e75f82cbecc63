"""Agrees on one step boundary for all ranks or for none, through the job's own store.

    every rank   posts that it is ready, with its current step
    rank 0       publishes a plan: the newest of those steps plus a margin
    every rank   arms itself for the planned step if that step still lies ahead, and posts its position: the
                 number of collectives it had begun at the beginning of the oldest of those steps
    rank 0       compares the positions, so that none acts if ranks count steps differently
    decision     one key, written once by compare_set: rank 0 tries `commit` when all are armed; any rank
                 tries `abort` (a refusal, a timeout, the job's end); the first one counts, and all ranks
                 obey the key

So no rank acts alone, even if one stops or dies on the way. A rank that reaches the planned step without
knowing the decision tries to abort, and thereby learns the decision.

A store's calls may block while its server does not answer. So they run on a separate thread and a separate
connection (`store.clone()`), where they delay nothing.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from overlaptop.agent.hooks.process_groups import shortest_timeout_s

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

ANSWER_TIMEOUT_S = 10.0
PERIOD_S = 0.1  # Between two reads of the store
RANKS_A_PERIOD = 256  # With more ranks each reads less often, so that the store's load stays the same
NOTICE_S = 1.0  # Least time from plan to planned step, by the ranks' shortest recent step
LEAST_NOTICE_STEPS = 2
RESOLVE_S = 5.0  # Longest wait of a training thread at the planned step for the decision
RESOLVE_TOGETHER_S = 240.0
"""The same, for actions that hang the job if one rank does not act. A long wait is better, though always
shorter than the timeout of the others' collectives (see `join_commit`)."""

COMMIT = "commit"
_ABORT = "abort"


@dataclass(frozen=True, slots=True)
class StepProgress:
    """A rank's current step, and the length of a recent one."""

    step: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class Position:
    """A rank's progress in its joint work with other ranks, when some step began."""

    group: str  # The group of these ranks; positions are compared within a group
    text: str  # Must be equal on all of them: ``after 1,050 collectives``


ANY_POSITION = Position("", "")  # For actions that need no common position


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision that all ranks obey."""

    step: int | None  # The step at whose beginning all ranks act; None: no rank acts
    reason: str = ""  # Why no rank acts, with the number of the rank concerned


@dataclass
class TwoPhaseCommit:
    """One rank's part in one commit. `run` runs on a separate thread."""

    store: "Store"  # Used by this commit alone. No call waits for a key to appear.
    rank: int
    world_size: int
    pace: Callable[[], StepProgress]
    arm: Callable[[int], None]
    """``arm(step)`` makes the training thread call `resolve` at the beginning of ``step``; it stays armed
    until the caller learns the decision."""
    position: Callable[[int], Position] = lambda _step: ANY_POSITION
    reconnect: "Callable[[], Store] | None" = None
    resolve_limit_s: float = 0.0
    """How long to look for a decision through another connection, and to wait for one at the step."""
    timeout_s: float = ANSWER_TIMEOUT_S
    period_s: float = PERIOD_S
    notice_s: float = NOTICE_S

    def __post_init__(self) -> None:
        self.period_s *= max(1.0, self.world_size / RANKS_A_PERIOD)
        self.notice_s = max(self.notice_s, 5 * self.period_s)
        self.voted = False
        """True once the others may commit."""
        self._wake = threading.Event()
        self._job_ends = threading.Event()
        self._abandoned = ""
        self._waits_at_step = False
        self._decided = threading.Event()
        self._decision = Decision(None, "nothing was decided")
        self._plan: int | None = None

    def run(self) -> Decision:
        """Agree with all ranks on a step, or learn that there is none. Raises the store's exceptions."""
        try:
            try:
                decision = self._agree()
            except Exception as fault:
                if not self.voted:
                    raise  # no rank acts without this one
                decision = self._look_again(fault)
        except BaseException as fault:
            self._decide(Decision(None, f"rank {self.rank}: the job's store failed: {fault}"[:300]))
            raise
        return self._decide(decision)

    def refuse(self, reason: str) -> Decision:
        return self._decide(self._abort(reason))

    def resolve(self) -> Decision | None:
        """Return the decision now: the training thread waits at the planned step. Any thread.

        If it is not known yet, this tries to abort. None: the store did not answer within
        `resolve_limit_s`, and this rank must not act.
        """
        if not self._decided.is_set():
            self._waits_at_step = True
            self._wake.set()
            if not self._decided.wait(self.resolve_limit_s):
                return None
        return self._decision

    def abandon(self, reason: str, *, job_ends: bool = False) -> None:
        """Withdraw as soon as possible, unless all have agreed already. Any thread; does not wait.

        A rank that has not `voted` by then never will, and no rank acts.
        """
        self._abandoned = self._abandoned or reason
        if job_ends:
            self._job_ends.set()
        self._wake.set()

    def clean_up(self) -> None:
        """Delete the keys that only rank 0 reads. The plan and the decision stay in the store: a rank that
        finds none would believe that there is none.
        """
        if self.rank == 0:
            for key in (*self._of_all("ready"), *self._of_all("armed")):
                self.store.delete_key(key)

    def _decide(self, decision: Decision) -> Decision:
        self._decision = decision
        self._decided.set()
        return decision

    def _agree(self) -> Decision:
        began_s = monotonic()
        pace = self.pace()
        self.store.set(f"ready/{self.rank}", f"{pace.step} {pace.step_ns}")
        if self.rank == 0:
            if decision := self._await(self._of_all("ready"), began_s + self.timeout_s, "does not answer"):
                return decision
            self.store.set("plan", self._make_plan())
        # Wait longer than rank 0: it knows better which rank is missing.
        elif decision := self._await(["plan"], began_s + 2 * self.timeout_s, "makes no plan"):
            return decision
        plan, since = map(int, self.store.get("plan").split())
        try:
            position = self.position(since)
        except LookupError as fault:
            return self._abort(str(fault))
        self._plan = plan
        self.arm(plan)
        # Arm first, check the step afterwards: a step that begins in between finds itself armed.
        if self.pace().step >= plan:
            return self._abort(f"was past step {plan} already: steps are too quick to agree")
        self.voted = True  # set before reading what `abandon` wrote; its caller reads `voted` afterwards
        if self._abandoned:
            self.voted = False
            return self._abort(self._abandoned)
        self.store.set(f"armed/{self.rank}", f"{position.group}\n{position.text}")
        if self.rank == 0:
            decision = self._await(self._of_all("armed"), monotonic() + self.timeout_s, "does not answer")
            decision = decision or self._compare_positions(since)
            return decision or self._read(self.store.compare_set("decision", "", COMMIT))
        decision = self._await([], monotonic() + 2 * self.timeout_s, "decides nothing")
        assert decision is not None, "waiting for the decision ends with one"
        return decision

    def _make_plan(self) -> str:
        paces = [self.store.get(key).split() for key in self._of_all("ready")]
        steps, lengths_ns = ([int(pace[at]) for pace in paces] for at in (0, 1))
        notice = math.ceil(self.notice_s * 1e9 / max(1, min(lengths_ns)))
        return f"{max(steps) + LEAST_NOTICE_STEPS + notice} {min(steps)}"

    def _look_again(self, fault: Exception) -> Decision:
        """The store failed when all may have agreed: learn the decision through another connection.

        Raises the fault if that fails within `resolve_limit_s`.
        """
        give_up_s = monotonic() + self.resolve_limit_s
        while self.reconnect is not None and not self._job_ends.is_set() and monotonic() < give_up_s:
            try:
                self.store = self.reconnect()
                return self._abort(f"lost the job's store for a moment: {fault}"[:300])
            except Exception:  # noqa: BLE001 - the store may come back
                self._job_ends.wait(10 * self.period_s)
        raise fault

    def _compare_positions(self, since: int) -> Decision | None:
        first: dict[str, tuple[int, str]] = {}
        for rank, key in enumerate(self._of_all("armed")):
            among, _, words = self.store.get(key).decode(errors="replace").partition("\n")
            other, expected = first.setdefault(among, (rank, words))
            if words != expected:
                return self._abort(f"began step {since} {words}, but rank {other} {expected}", rank)
        return None

    def _of_all(self, kind: str) -> list[str]:
        return [f"{kind}/{rank}" for rank in range(self.world_size)]

    def _await(self, keys: list[str], deadline_s: float, complaint: str) -> Decision | None:
        """Wait for all these keys (returns None) or for a decision; without keys, for the decision.

        At the deadline this rank tries to abort; the ``complaint`` names the first missing rank.
        """
        while True:
            if self.store.check(["decision"]):
                return self._read(self.store.get("decision"))
            if self._abandoned:
                return self._abort(self._abandoned)
            if self._waits_at_step:
                return self._abort_for(self._of_all("armed"), f"was not ready for step {self._plan}")
            if keys and self.store.check(keys):
                return None
            if monotonic() >= deadline_s:
                return self._abort_for(keys, complaint)
            self._wake.wait(self.period_s)

    def _abort_for(self, keys: list[str], complaint: str) -> Decision:
        missing = [int(key.partition("/")[2]) for key in keys if "/" in key and not self.store.check([key])]
        more = f", nor do {len(missing) - 1} more" if len(missing) > 1 else ""
        return self._abort(complaint + more, missing[0] if missing else 0)

    def _abort(self, reason: str, rank: int | None = None) -> Decision:
        blamed = self.rank if rank is None else rank
        return self._read(self.store.compare_set("decision", "", f"{_ABORT} {blamed} {reason}"))

    def _read(self, value: bytes) -> Decision:
        text = value.decode(errors="replace")
        if text == COMMIT:
            # Only a step that all have armed for is committed, so the plan is known here.
            return Decision(self._plan)
        _, rank, reason = text.split(" ", 2)
        return Decision(None, f"rank {rank} {reason}")


STORE_TIMEOUT = timedelta(seconds=5)
SHARE_OF_TIMEOUT = 0.25
"""Part of the collectives' timeout that a rank may wait: others may have waited before, and will again."""


def join_commit(
    key: str,
    pace: Callable[[], StepProgress],
    arm: Callable[[int], None],
    position: Callable[[int], Position],
    resolve_limit_s: float,
) -> TwoPhaseCommit:
    """Join the commit named ``key``; see TwoPhaseCommit. On the command's thread: it may block.

    ``resolve_limit_s``: how long to look for the decision if the store fails. It is shortened if the other
    ranks' collectives could time out meanwhile and end the job (NCCL: after 10 minutes by default). Raises
    RuntimeError if there are other ranks and the job's store cannot be shared.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore  # ImportError: this torch has no torch.distributed

    if not dist.is_initialized() or dist.get_world_size() == 1:
        limit_s = min(resolve_limit_s, RESOLVE_S)
        return TwoPhaseCommit(HashStore(), 0, 1, pace, arm, position, resolve_limit_s=limit_s)
    reconnect, timeout_s = partial(job_store, key), shortest_timeout_s()
    # Without a known timeout take the longest wait: to withdraw while others act surely ends the job.
    max_stall_s = RESOLVE_TOGETHER_S if timeout_s is None else timeout_s * SHARE_OF_TIMEOUT
    limit_s = min(resolve_limit_s, max_stall_s)
    return TwoPhaseCommit(
        reconnect(), dist.get_rank(), dist.get_world_size(), pace, arm, position, reconnect, limit_s
    )


def job_store(key: str) -> "Store":
    """Return the job's store for this commit, on a new connection. Raises RuntimeError."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore, PrefixStore

    try:
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no public way
        # A new connection: a blocked call holds no lock that the job's own calls need.
        own = store.clone()  # type: ignore[attr-defined]  # since torch 2.8; its stubs do not know
        # Cloning a HashStore (ranks that are threads of one process) returns the same store.
        if not isinstance(getattr(own, "_underlying_non_prefix_store", own), HashStore):
            own.set_timeout(STORE_TIMEOUT)
    except (AttributeError, NotImplementedError, RuntimeError) as fault:
        raise RuntimeError(f"the job's store cannot be shared: {type(fault).__name__}: {fault}") from fault
    return PrefixStore(f"overlaptop/{key}", own)
