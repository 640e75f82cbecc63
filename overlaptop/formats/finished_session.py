"""FinishedSession: a Session for a finished job that was read from traces."""

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.rank_state import RECENT_DETAILS
from overlaptop.fleet.session import ReadSession
from overlaptop.fleet.snapshot import WHOLE_TRACE, HubState, Snapshot
from overlaptop.fleet.totals import total
from overlaptop.fleet.wait_breakdown import show_step
from overlaptop.fleet.window import HISTORY_STEPS
from overlaptop.wire.bounds import MAX_RANKS
from overlaptop.wire.messages import Notice, StepDetail, StepTotals, Welcome
from overlaptop.wire.protocol import PROTOCOL_VERSION

if TYPE_CHECKING:
    from overlaptop.formats.job import TracedJob


class FinishedSession(ReadSession):
    """Constant Snapshots of the whole trace and of each step, all at the end of the job."""

    def __init__(self, job: "TracedJob") -> None:
        """The whole trace is shown first.

        Raises:
            ValueError: a rank's number is higher than a JobState accepts.
        """
        highest = max(summary.info.rank for summary in job.ranks)
        if highest >= MAX_RANKS:
            raise ValueError(f"rank {highest}: only ranks below {MAX_RANKS:,} can be shown, use --json")
        self._job = job
        self._end_ns = max(whole.start_ns + whole.step_ns for whole in job.whole)
        self._numbers = [WHOLE_TRACE, *job.step_numbers]
        kept = self._numbers[1:][-HISTORY_STEPS:]
        self._step_waits = tuple(job.waits[number] for number in kept if job.waits)
        self._at = 0
        self._snapshot = self._snapshot_of(WHOLE_TRACE)

    def _snapshot_of(self, number: int) -> Snapshot:
        job = self._job
        fleet = JobState(lambda: self._end_ns)
        fleet.apply(
            Welcome(
                protocol=PROTOCOL_VERSION,
                job=job.name,
                host="",
                script=str(job.path),
                world_size=job.world_size,
                started_ns=min(whole.start_ns for whole in job.whole),
            )
        )
        for summary, whole in zip(job.ranks, job.whole, strict=True):
            fleet.apply(summary.info)
            of_rank: tuple[StepTotals | StepDetail, ...] = (whole, *summary.steps, *summary.details)
            for message in of_rank:
                if message.step == number:
                    fleet.apply(message)
        first = job.ranks[0].info.rank
        said = [(first, remark) for remark in (job.missing_text, *job.remarks) if remark]
        said += [(summary.info.rank, remark) for summary in job.ranks for remark in summary.remarks]
        for rank, remark in said:
            fleet.apply(Notice(rank, self._end_ns, "warning", remark))
        fleet.set_hub_state(HubState.TRACE)
        bare = fleet.snapshot()
        shown = show_step(bare, job.waits.get(number))
        known = {summary.info.rank: summary for summary in job.ranks}
        # In a live job, ranks that were announced and never seen may still come. In a trace they cannot.
        ranks = tuple(
            structs.replace(
                view,
                history=known[view.rank].steps[-HISTORY_STEPS:],
                # As many timelines as a running job's rank has.
                details=(*view.details, *known[view.rank].details[1:][-RECENT_DETAILS:]),
            )
            for view in shown.ranks
            if view.info is not None
        )
        return replace(
            shown,
            ranks=ranks,
            totals=total(shown.ranks, bare.totals.dropped),
            step_waits=self._step_waits,
        )

    def turn(self, steps: int) -> None:
        """Show the step this many steps later, or earlier. The whole trace precedes the first."""
        self.choose(self._numbers[min(max(self._at + steps, 0), len(self._numbers) - 1)])

    def choose(self, number: int) -> None:
        at = self._numbers.index(number)
        if at != self._at:
            self._at, self._snapshot = at, self._snapshot_of(self._numbers[at])

    @property
    def job_key(self) -> str:
        return self._job.name

    def tick(self) -> Snapshot:
        return self._snapshot
