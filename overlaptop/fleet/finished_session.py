"""FinishedSession: a Session for a finished job that was read from files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from overlaptop.fleet.job_state import RECENT_DETAILS, JobState
from overlaptop.fleet.session import ReadSession
from overlaptop.fleet.snapshot import WHOLE_TRACE, HubState, Snapshot
from overlaptop.fleet.totals import total
from overlaptop.fleet.wait_breakdown import show_step
from overlaptop.fleet.waits import StepWaits
from overlaptop.fleet.window import HISTORY_STEPS
from overlaptop.wire.bounds import MAX_RANKS
from overlaptop.wire.messages import Notice, RankInfo, StepDetail, StepTotals, Welcome
from overlaptop.wire.schema import Message


@dataclass(frozen=True, slots=True)
class FinishedRank:
    """The files' data of one rank."""

    info: RankInfo
    whole: StepTotals
    """The whole trace, as step WHOLE_TRACE."""
    steps: tuple[StepTotals, ...]
    details: tuple[StepDetail, ...] = ()
    """Timelines of some of these steps."""

    @property
    def newest_details(self) -> tuple[StepDetail, ...]:
        """Return as many timelines as a running job's rank has, oldest first."""
        return tuple(each for each in self.details if each.step != WHOLE_TRACE)[-RECENT_DETAILS:]


class FinishedSession(ReadSession):
    """Constant Snapshots of the whole trace and of each step, all at the same time."""

    def __init__(
        self,
        welcome: Welcome,
        ranks: Sequence[FinishedRank],
        waits: Mapping[int, StepWaits],
        notices: Sequence[Notice],
        now_ns: int,
    ) -> None:
        """``now_ns``: Unix time of the Snapshots. ``waits``: by step number.
        The whole trace is shown first.

        Raises:
            ValueError: a rank's number is higher than a JobState accepts.
        """
        highest = max(each.info.rank for each in ranks)
        if highest >= MAX_RANKS:
            raise ValueError(f"rank {highest}: only ranks below {MAX_RANKS:,} can be shown, use --json")
        self._welcome, self._ranks, self._notices, self._now_ns = welcome, ranks, notices, now_ns
        self._waits = waits
        self._steps: dict[int, list[StepTotals]] = {}
        for each in ranks:
            for step in (each.whole, *each.steps):
                self._steps.setdefault(step.step, []).append(step)
        self._numbers = sorted(self._steps)
        self._step_waits = tuple(waits[number] for number in self._numbers[1:][-HISTORY_STEPS:] if waits)
        self._at = 0
        self._snapshot = self._snapshot_of(WHOLE_TRACE)

    def _snapshot_of(self, number: int) -> Snapshot:
        fleet = JobState(lambda: self._now_ns)
        fleet.apply(self._welcome)
        for each in self._ranks:
            found: list[Message] = [step for step in (each.whole, *each.steps) if step.step == number]
            found += [detail for detail in each.details if detail.step == number]
            for message in (each.info, *found):
                fleet.apply(message)
        for notice in self._notices:
            fleet.apply(notice)
        fleet.set_hub_state(HubState.TRACE)
        whole = fleet.snapshot()
        shown = show_step(whole, self._waits.get(number))
        known = {each.info.rank: each for each in self._ranks}
        # In a live job, ranks that were announced and never seen may still come. In a trace they cannot.
        ranks = tuple(
            structs.replace(
                view,
                history=known[view.rank].steps[-HISTORY_STEPS:],
                details=(*view.details, *known[view.rank].newest_details),
            )
            for view in shown.ranks
            if view.info is not None
        )
        return replace(
            shown,
            ranks=ranks,
            totals=total(shown.ranks, whole.totals.dropped),
            step_waits=self._step_waits,
        )

    def turn(self, steps: int) -> None:
        """Show the step this many steps later, or earlier if negative.
        The whole trace precedes the first.
        """
        self.choose(self._numbers[min(max(self._at + steps, 0), len(self._numbers) - 1)])

    @property
    def steps(self) -> Sequence[int]:
        """Return the numbers that `choose` accepts: the whole trace, then each step."""
        return self._numbers

    def choose(self, number: int) -> None:
        at = self._numbers.index(number)
        if at != self._at:
            self._at, self._snapshot = at, self._snapshot_of(self._numbers[at])

    @property
    def job_key(self) -> str:
        return self._welcome.job

    def tick(self) -> Snapshot:
        return self._snapshot
