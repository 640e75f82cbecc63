"""RunLog: makes a report from a run's Snapshots. Pure."""

from collections import Counter
from statistics import median, quantiles

from overlaptop.findings.finding import Finding, Key, by_key, late_finding, why_late
from overlaptop.findings.first_line import bound_by, first_line
from overlaptop.findings.watch import LOOK_EVERY_NS, FindingsWatch, Look
from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.fleet.trouble import trouble_of
from overlaptop.fleet.waits import WaitWindow
from overlaptop.records import ChangeRecord, FindingRecord, LateRank, RunRecord, TroubleRecord, shared
from overlaptop.report import troubles
from overlaptop.report.order import all_see_gaps
from overlaptop.runs.samples import Samples
from overlaptop.wire.messages import Welcome


class RunLog:
    """Take each Snapshot of a run, or note each look at it and take the last; then ask for the report."""

    def __init__(self, samples: Samples | None = None, watch: FindingsWatch | None = None) -> None:
        """``samples``: collects the steps; by default those of the whole run."""
        self.samples = samples or Samples()  # Steps that no Snapshot has may be added
        self.watch = watch or FindingsWatch()
        self._job = ""
        self._latest: Snapshot | None = None
        self._forget()

    def _forget(self) -> None:
        self._findings: dict[Key, FindingRecord] = {}
        self._last_step: dict[Key, int] = {}
        """The last step of findings that are shown although the last look did not find them."""
        self._troubles: dict[object, TroubleRecord] = {}
        self._late: dict[int, LateRank] = {}
        self._bounds: Counter[str] = Counter()
        """Looks at measured steps, by what bounded these; empty: nothing did."""
        self._looked_ns: int | None = None
        self._looked_step = -1

    def take(self, snapshot: Snapshot) -> None:
        self._latest = snapshot
        self.samples.add_steps(snapshot.fresh)
        for waits in snapshot.fresh_waits:
            self.samples.add_waits(waits)
        if look := self.watch.look(snapshot):
            self.note(look)

    def report(self) -> RunRecord | None:
        """Return how the run went so far. None if no job was seen."""
        snapshot = self._latest
        if snapshot is None or snapshot.job is None:
            return None
        if snapshot.at_ns != self._looked_ns:
            look = self.watch.look_now(snapshot)
            # A run may be too short for steady findings.
            self._note(look if self._findings else look._replace(shown=look.found, present=look.found))
        for view in snapshot.ranks:
            self.samples.add_steps((*view.older, *view.history))
        for waits in (*snapshot.fresh_waits, *snapshot.step_waits, *snapshot.kept_step_waits):
            self.samples.add_waits(waits)
        lengths_ns, every = self.samples.lengths_ns(), self.samples.steps
        ends_ns = (step.start_ns + step.step_ns for step in every)
        newest = max((view.last.step for view in snapshot.ranks if view.last is not None), default=-1)
        is_trace = snapshot.hub_state is HubState.TRACE
        until_ns = snapshot.hub_since_ns if snapshot.hub_state is HubState.ENDED else snapshot.at_ns
        times, cost = self.samples.exposed_times(), snapshot.totals.own_cost
        known = times is not None and times.exposed_known
        usual = self._bounds.most_common(1)
        return RunRecord(
            job=snapshot.job.job,
            script=snapshot.job.script,
            hosts=sorted({view.info.host for view in snapshot.ranks if view.info is not None}),
            work=self.samples.work(snapshot.job.world_size),
            started_ns=snapshot.job.started_ns,
            from_ns=min((step.start_ns for step in every), default=snapshot.job.started_ns),
            to_ns=max(snapshot.job.started_ns, max(ends_ns, default=0), until_ns),
            ended=snapshot.hub_state in (HubState.ENDED, HubState.TRACE),
            steps=len(lengths_ns) if is_trace else newest + 1,
            step_ns=round(median(lengths_ns)) if lengths_ns else None,
            p99_step_ns=round(_p99(lengths_ns)) if lengths_ns else None,
            overlap=self.samples.overlap(),
            exposed_ns=self.samples.exposed_ns(),
            exposed_wait_ns=times.exposed_wait_ns if times and known else None,
            exposed_transfer_ns=times.exposed_transfer_ns if times and known else None,
            exposed_not_attributed_ns=times.exposed_not_attributed_ns if times else None,
            bound=usual[0][0] or None if usual else None,
            late_ranks=sorted(self._late.values(), key=lambda each: -each.for_ns),
            findings=sorted(
                self._findings.values(),
                key=lambda each: (each.until_step is not None, -(each.gain_ns or 0)),
            ),
            troubles=list(self._troubles.values()),
            changes=[_change(snapshot.job, view) for view in snapshot.changes],
            cost_change=cost.change if cost is not None else None,
            cost_error=cost.error if cost is not None else None,
            figures=self.samples.figures(),
            compute_exact=all_see_gaps(snapshot.ranks),
        )

    def note(self, look: Look) -> None:
        """Note late ranks, findings and troubles, at most once in LOOK_EVERY_NS; keep no steps."""
        job, since_ns = look.snapshot.job, look.snapshot.at_ns - (self._looked_ns or 0)
        if not (job is not None and job.job == self._job and 0 <= since_ns < LOOK_EVERY_NS):
            self._note(look)

    def _note(self, look: Look) -> None:
        snapshot, job = look.snapshot, look.snapshot.job
        if job is None:
            return
        if job.job != self._job:
            self._job = job.job
            self._forget()
        is_trace = snapshot.hub_state is HubState.TRACE
        until_step = max(self._looked_step, snapshot.first_step - 1)
        now = {
            key: each.record(job.job) for key, each in by_key(look.shown).items() if each in look.present
        }
        shown = by_key(look.shown)
        for key, known in self._findings.items():
            if key in now:
                self._last_step.pop(key, None)
            elif known.until_step is None:
                last_step = self._last_step.setdefault(key, until_step)
                # The screen shows it for some seconds, as it may come back while the job is the same.
                if key not in shown or snapshot.first_step > last_step:
                    known.until_step = last_step
        self._findings |= now
        # Of a trace, the Snapshot's own window is the whole of it.
        window = look.evidence.window if is_trace else snapshot.wait_window
        late = {each.rank for each in window.late} if window is not None else ()
        for rank, each in self._late.items():
            if rank not in late and each.until_step is None:
                each.until_step = until_step
        if window is not None:
            self._note_late(snapshot, window, look.shown)
        if snapshot.totals.exposed_ns is not None:
            self._bounds[bound_by(snapshot, look.found, first_line(snapshot, look.found))] += 1
        if (trouble := trouble_of(snapshot)) is not None:
            self._troubles[trouble.kind, trouble.ranks] = troubles.record(job.job, trouble)
        self._looked_ns = snapshot.at_ns
        if snapshot.totals.step is not None:
            self._looked_step = snapshot.totals.step

    def _note_late(self, snapshot: Snapshot, window: WaitWindow, found: tuple[Finding, ...]) -> None:
        since_ns = snapshot.at_ns if self._looked_ns is None else self._looked_ns
        for each in window.late:
            known, finding = self._late.get(each.rank), late_finding(found, each.rank)
            cause, line = (known.cause, known.line) if known is not None else (None, None)
            if finding is not None:
                cause, line = why_late(found, each.rank), finding.line or None
            self._late[each.rank] = LateRank(
                rank=each.rank,
                late_count=each.late_count,
                collectives=each.collectives,
                wait_ns=window.exposed_wait_ns,
                for_ns=snapshot.at_ns - since_ns + (known.for_ns if known is not None else 0),
                cause=cause,
                line=line,
            )


def _p99(lengths_ns: list[float]) -> float:
    return quantiles(lengths_ns, n=100, method="inclusive")[-1] if len(lengths_ns) > 1 else lengths_ns[0]


def _change(job: Welcome, view: CommandView) -> ChangeRecord:
    own = {"old": view.old or None, "new": view.new or None, "outcome": view.state, "command": view.id}
    of_job = shared(ChangeRecord, job)
    return ChangeRecord(**{**of_job, **shared(ChangeRecord, view), **own})
