"""Who waited for whom in a step and in the last seconds, and which ranks are called late."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import comb, log
from statistics import fmean
from typing import NamedTuple

from overlaptop.timeline.arrivals import (
    Collective,
    Lateness,
    PassedOnWait,
    RankLateness,
    WaitTimes,
    lateness,
    passed_on_waits,
)

MOST = 0.6  # Minimum share of a step's waiting caused by its late rank. Others may be last by a little.
LATE_SHARE = 0.6  # A rank is late if it is last in at least this share of steps or collectives
SHARED_SHARE = 0.9
"""A few alternating ranks are late if together they are last in at least this share of collectives."""
WORTH_SHARE = 0.04
"""Minimum share of the step spent waiting before a rank is called late.
Ranks of healthy jobs differ by a few hundredths."""
HOST_WORTH_SHARE = 0.1
"""The same minimum for ranks whose GPUs have no work ahead, or that have none. A busy machine disturbs them
more."""
ALWAYS = 0.95  # A rank that is late in this share of its collectives is no victim of a busy machine
RECEIVES_SHARE = 0.25  # From this share of waiting in receives on, the cause may be a pipeline's schedule
COSTLY_SHARE = 0.02
"""Minimum share of the step for a warning. A smaller share that is not attributed leaves no doubt."""
FIRST_STEPS = 2  # First steps of a running job: they compile, allocate and fill caches
TRANSFERS_EACH_NS, KEPT_TRANSFERS = 250_000_000, 2400
"""Minimum time between kept steps, and steps kept: ten minutes of short ones."""
NOT_ATTRIBUTED_SHARE = 0.1
"""Maximum share of a step that is not attributed. Beyond it, the step says nothing about its transfers."""
CHANCE = 0.05
"""Maximum probability that identical ranks look like this by chance. Of two ranks the last one is a coin
toss, and of 20 tosses, 60 % are heads every fourth time."""


class SharedGpu(NamedTuple):
    """A rank's time in a step in which another rank computes on its GPU."""

    wait_ns: int  # Exposed waiting
    idle_ns: int  # Time without work of its own; it may be ready and wait for the other's kernels


@dataclass(frozen=True, slots=True)
class StepWaits:
    """One step of all ranks, or a whole trace."""

    step: int
    start_ns: int  # Unix time when the first rank began it
    step_ns: int  # Mean over ranks
    collectives: tuple[Collective, ...]
    """Collectives that began in it on any rank, in order of their first start. A running job has them only
    for the newest step."""
    times: Mapping[int, WaitTimes]
    """By rank with a timeline of the step. Parts missing from a shortened timeline are not attributed."""
    lateness: Lateness | None
    """None if none of its collectives is attributed. A passed-on wait counts against its root."""
    passed_on_wait: PassedOnWait | None  # The passed-on wait with the most waiting. None if there is none.
    shared: Mapping[int, SharedGpu] = field(default_factory=dict)  # By rank that shares its GPU

    @classmethod
    def of(
        cls,
        step: int,
        start_ns: int,
        step_ns: int,
        collectives: tuple[Collective, ...],
        times: Mapping[int, WaitTimes],
        shared: Mapping[int, SharedGpu] = {},
    ) -> "StepWaits":
        found = passed_on_waits(collectives)
        most = max(found, key=lambda at: collectives[at].caused_wait_ns, default=None)
        late = lateness(collectives, {at: passed_on_wait.root for at, passed_on_wait in found.items()})
        passed_on_wait = None if most is None else found[most]
        return cls(step, start_ns, step_ns, collectives, times, late, passed_on_wait, shared)

    @property
    def main_late_rank(self) -> int | None:
        """The rank that caused by far most of the step's waiting. None if several did, or nobody."""
        late = self.lateness
        if late is None or (awaited := late.awaited).caused_wait_ns < MOST * late.wait_ns:
            return None
        return awaited.rank if awaited.caused_wait_ns else None

    def late_rank(self, rank: int) -> int | None:
        """Return the rank that caused most waiting in collectives with this one. None: nobody, or not
        known.
        """
        found = lateness(each for each in self.collectives if rank in each.spans)
        return found.late_rank if found is not None else None


class StepTransfer(NamedTuple):
    """Transfer time of one step."""

    step: int
    start_ns: int  # Unix time when the first rank began it
    collectives: int
    bytes: int  # Bytes of all collectives
    transfer_ns: float  # Mean over ranks


class TransferHistory:
    """Transfer times since the last change of a setting: the baseline for a link that became slow."""

    def __init__(self) -> None:
        self._kept: deque[StepTransfer] = deque(maxlen=KEPT_TRANSFERS)

    @property
    def kept(self) -> tuple[StepTransfer, ...]:
        return tuple(self._kept)

    def add(self, waits: StepWaits) -> None:
        last = self._kept[-1] if self._kept else None
        if last is not None and waits.step <= last.step:  # restarted ranks count from 0 again
            self._kept.clear()
        elif last is not None and 0 <= waits.start_ns - last.start_ns < TRANSFERS_EACH_NS:
            return  # a clock may be set back
        times = waits.times.values()
        if waits.step < FIRST_STEPS or any(
            each.not_attributed_ns > NOT_ATTRIBUTED_SHARE * each.transfer_ns for each in times
        ):
            return
        sizes = [each.bytes for each in waits.collectives if each.bytes is not None]
        if len(sizes) == len(waits.collectives):
            took_ns = fmean(each.transfer_ns for each in times)
            self._kept.append(StepTransfer(waits.step, waits.start_ns, len(sizes), sum(sizes), took_ns))

    def forget(self, step: int) -> None:
        """Drop all steps up to and including this one."""
        while self._kept and self._kept[0].step <= step:
            self._kept.popleft()


@dataclass(frozen=True, slots=True)
class WaitWindow:
    """The newest broken-down steps of a running job since it changed, summarised."""

    lateness: Lateness
    steps: int
    exposed_wait_ns: int
    """Waiting of a rank without compute beside it, as the mean over steps and over all ranks but the late
    one. If there is no late rank, the rank that caused most of the waiting is left out."""
    share: float  # `exposed_wait_ns` as a share of the steps' time
    not_attributed_share: float
    """Exposed time of the same ranks that is not attributed, as a share. It may be waiting, too."""
    late_rank: int | None = None
    """Rank that caused most of the waiting in most steps. None if several did in most steps, or nobody."""
    late_steps: int = 0  # Number of steps that `late_rank` was late in
    passed_on_wait: PassedOnWait | None = None
    """Of the newest step: through which ranks of other groups wait. None if there is none."""
    waits_ns: Mapping[int, float] = field(default_factory=dict)
    """Waiting of each rank without compute beside it, as the mean over steps."""
    worth_share: float = WORTH_SHARE
    """Minimum share of the step spent waiting before a rank is called late; WORTH_SHARE if it is late
    ALWAYS."""
    bared_share: float = 0.0
    """As a share of the step, what a late rank may also cost: transfer that hides on that rank alone. Waits
    may all hide behind backward, and end with transfers that nothing hides.
    """
    chances: int | None = None
    """Independent samples for the test against chance: the steps, or for a whole trace, which has few
    steps, the collectives. None for one chosen step: statements then hold for that step only."""

    @property
    def is_attributed(self) -> bool:
        """Whether the part that is not attributed is so small that waiting is known, and no lower bound."""
        return self.not_attributed_share < COSTLY_SHARE

    @property
    def late(self) -> tuple[RankLateness, ...]:
        """The late rank, or the few that alternate, by number. First line and findings both use this. Empty
        if waiting costs little, or may be chance.

        Candidates in order: the rank that causes most of the waiting in most steps; the costliest of the
        ranks that are late in most of their collectives, since each group may have one, and some ranks may
        always be a little late; at most half of the ranks that together are late in nearly all collectives.

        If ranks wait in receives, a candidate must itself wait at most half as long as the others. All
        ranks' steps are equally long, so it spends the difference on other work. Equal waiting on all ranks
        is a pipeline's schedule.
        """
        if self.share + self.bared_share < WORTH_SHARE:
            return ()
        found = self._latest()
        is_always = all(each.share >= ALWAYS for each in found)
        if self.share + self.bared_share * is_always < WORTH_SHARE:
            return ()
        if self.share < self.worth_share and not is_always:
            return ()
        late = {each.rank for each in found}
        own_ns = [ns for rank, ns in self.waits_ns.items() if rank in late]
        others_ns = [ns for rank, ns in self.waits_ns.items() if rank not in late]
        if self.in_receives and own_ns and others_ns and 2 * fmean(own_ns) > fmean(others_ns):
            return ()
        return found

    @property
    def in_receives(self) -> bool:
        """Whether so much waiting is in receives that a pipeline's schedule may explain all of it."""
        return self.lateness.receive_wait_ns > RECEIVES_SHARE * self.lateness.wait_ns

    def _latest(self) -> tuple[RankLateness, ...]:
        ranks = self.lateness.ranks
        most = self.lateness.of(self.late_rank) if self.late_rank is not None else None
        if most is not None and self.late_steps >= LATE_SHARE * self.steps:
            share = self.late_steps / self.steps if self.chances == self.steps else most.share
            if not self._may_be_chance(share, 1 / len(ranks), len(ranks)):
                return (most,)
        often_late = [
            each
            for each in ranks
            if each.share >= LATE_SHARE
            and each.caused_wait_ns * len(ranks) >= 2 * self.lateness.wait_ns
            and not self._may_be_chance(each.share, 1 / 2, len(ranks))  # groups have two ranks or more
        ]
        if often_late:
            return (max(often_late, key=lambda each: each.caused_wait_ns),)
        few = self.lateness.fewest(SHARED_SHARE)
        if len(few) < 2 or 2 * len(few) > len(ranks):
            return ()
        share = sum(each.late_count for each in few) / self.lateness.collectives
        if self._may_be_chance(share, len(few) / len(ranks), comb(len(ranks), len(few))):
            return ()
        return tuple(sorted(few, key=lambda each: each.rank))

    @property
    def is_enough(self) -> bool:
        """Whether there are enough samples to name a rank that was always late."""
        ranks = len(self.lateness.ranks)
        return not self._may_be_chance(1.0, 1 / ranks, ranks)

    def _may_be_chance(self, share: float, expected: float, choices: int) -> bool:
        """Whether one of `choices` ranks would be late in this share by chance, with a probability of
        CHANCE or more, if each were late in the expected share. Uses Hoeffding's bound (1963, theorem 1),
        which also holds if the collectives of a step depend on each other.
        """
        if self.chances is None:
            return False
        if share <= expected:
            return True
        surprise = share * log(share / expected)
        if share < 1:
            surprise += (1 - share) * log((1 - share) / (1 - expected))
        return log(choices) - self.chances * surprise >= log(CHANCE)
