"""``--json``: a line for each rank and step, and for each sample of a rank's GPU, as they arrive."""

import argparse
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple, TextIO

from msgspec.structs import replace

from overlaptop.commands.arguments import hosts_of
from overlaptop.commands.findings import FindingsLog, TroubleLog
from overlaptop.commands.following import report_connections, until_end
from overlaptop.commands.jobs import join
from overlaptop.commands.output import CommandError, print_message
from overlaptop.fleet.records import collective_record, cost_record, device_record, end_records, step_record
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.fleet.waits import StepWaits
from overlaptop.records import DeviceRecord, Record, as_json
from overlaptop.report import troubles
from overlaptop.text import printable
from overlaptop.wire.bounds import MAX_INT64
from overlaptop.wire.messages import AGENT_DISABLED, OwnCost, RankInfo, StepTotals

UNSEEN_LIMIT_S = 3.0
"""Time to wait for unseen ranks: late ones of this node. Those of other nodes are never seen here."""
HOLD_NS = 1_000_000_000  # Longest time that a step waits for the timelines of the other ranks
HINT_AFTER_S = 3.0  # Time without a step until a hint says what ends one
MAX_SPLIT = 64


class _Held(NamedTuple):
    job: str
    info: RankInfo | None
    totals: StepTotals
    arrived_ns: int


class RecordWriter:
    """Writes steps and samples as lines of JSON, at most `steps` steps for a rank.

    With `detail`, also the collectives of all ranks. A step then waits for the other ranks' collectives, so
    that its record can say who waited for whom.
    """

    def __init__(self, out: TextIO, steps: int | None = None, *, detail: bool = False) -> None:
        self._out = out
        self._steps = steps
        self._detail = detail
        self._held: deque[_Held] = deque()
        self._split: deque[StepWaits] = deque(maxlen=MAX_SPLIT)  # The newest steps with all ranks known
        self._written: Counter[int] = Counter()
        self._without_gpu: dict[int, DeviceRecord] = {}  # The last record of ranks without a GPU to sample
        self._own_costs: dict[int, OwnCost] = {}  # The last cost of each rank
        self._done_since_s: float | None = None
        self._newest: dict[int, tuple[StepTotals, int]] = {}
        """The newest step of each rank, and the steps lost before it."""
        self._findings = FindingsLog()
        self._troubles = TroubleLog()

    @property
    def written(self) -> int:
        return self._written.total()

    def write(self, snapshot: Snapshot) -> None:
        views = {view.rank: view for view in snapshot.ranks}
        job = snapshot.job.job if snapshot.job else ""
        for totals in snapshot.fresh:
            if self._steps is not None and self._written[totals.rank] >= self._steps:
                continue
            self._written[totals.rank] += 1
            dropped = totals.dropped + self._lost_before(totals)
            held = _Held(job, views[totals.rank].info, replace(totals, dropped=dropped), snapshot.at_ns)
            self._held.append(held)
        if self._detail:
            self._split.extend(snapshot.fresh_waits)
            for waits in snapshot.fresh_waits:
                for collective in waits.collectives:
                    self._put(collective_record(job, waits.step, collective))
        self.release(snapshot.at_ns - HOLD_NS)
        for record in (*self._troubles.due(snapshot), *self._findings.due(snapshot)):
            self._put(record)
        for sample in snapshot.fresh_samples:
            self._put(device_record(job, views[sample.rank], sample))
        for view in snapshot.ranks:
            if view.own_cost is not None and self._own_costs.get(view.rank) != view.own_cost:
                self._own_costs[view.rank] = view.own_cost
                self._put(cost_record(job, view.own_cost))
            if view.numa is not None and view.device is not None and not view.device.gpu_uuid:
                record = device_record(job, view, None)
                if self._without_gpu.get(view.rank) != record:
                    self._without_gpu[view.rank] = record
                    self._put(record)

    def end(self, snapshot: Snapshot) -> None:
        self.release()
        for record in end_records(snapshot):
            self._put(record)

    def release(self, arrived_by_ns: int = MAX_INT64) -> None:
        """Write the steps that are complete, and those that arrived by this Unix time."""
        while self._held:
            job, info, totals, arrived_ns = self._held[0]
            waits = next((each for each in self._split if each.step == totals.step), None)
            settled = waits is not None or not (self._detail and totals.measured)
            passed = bool(self._split) and self._split[-1].step > totals.step
            if not (settled or passed or arrived_ns <= arrived_by_ns):
                break
            self._held.popleft()
            self._put(step_record(job, info, totals, waits))

    def has_enough(self, snapshot: Snapshot, now_s: float) -> bool:
        """Return whether each rank has written its `steps` lines, or has ended. Unseen ranks get
        UNSEEN_LIMIT_S to arrive. CommandError if the agents of all ranks have disabled themselves.
        """
        seen = [(view, view.info) for view in snapshot.ranks if view.info is not None]
        if self._steps is None or self._held or not seen:
            return False
        disabled = any(info.agent_disabled for _, info in seen)
        if not all(
            view.ended or info.agent_disabled or self._written[view.rank] >= self._steps
            for view, info in seen
        ):
            self._done_since_s = None
            return False
        if self._done_since_s is None:
            self._done_since_s = now_s
        if len(seen) < len(snapshot.ranks) and now_s - self._done_since_s < UNSEEN_LIMIT_S:
            return False
        if disabled and self._steps not in self._written.values():
            errors = [notice.text for notice in snapshot.notices if notice.level == "error"]
            why = printable(errors[-1]) if errors else AGENT_DISABLED
            raise CommandError(f"no rank measures its steps any more: {why}")
        return self._steps in self._written.values()

    def _lost_before(self, totals: StepTotals) -> int:
        """Return the rank's steps lost on the way so far. Step numbers have no gaps."""
        before, lost = self._newest.get(totals.rank, (totals, 0))
        # The agent may have counted some of the missing ones itself.
        missing = totals.step - before.step - 1 - max(0, totals.dropped - before.dropped)
        lost = lost + max(0, missing) if totals.step > before.step else 0  # counted from 0 again
        self._newest[totals.rank] = totals, lost
        return lost

    def _put(self, record: Record) -> None:
        self._out.write(as_json(record) + "\n")
        self._out.flush()


def stream(
    session: Session,
    writer: RecordWriter,
    job_gone: Callable[[], bool] = lambda: False,
    *,
    detail: bool = False,
) -> bool:
    """Write until the writer has enough (True) or the job has ended (False). `job_gone`: as in until_end.
    `detail`: measure as many steps as for a dashboard.
    """
    lost_hosts: set[str] = set()
    watched: set[int] = set()
    before: Snapshot | None = None
    hint_due_s: float | None = time.monotonic() + HINT_AFTER_S
    try:
        for snapshot in until_end(session, job_gone):
            if before and before.job and snapshot.job:
                known, now = before.job, snapshot.job
                if (known.job, known.started_ns) != (now.job, now.started_ns):
                    writer.end(before)
                    print_message("the job was started again: steps count from 0")
            before = snapshot
            if detail and (ranks := {view.rank for view in snapshot.ranks}) != watched:
                watched = ranks
                session.watch(ranks)
            report_connections(snapshot, lost_hosts)
            writer.write(snapshot)
            now_s = time.monotonic()
            if writer.has_enough(snapshot, now_s):
                return True
            if hint_due_s is not None and now_s > hint_due_s:
                hint_due_s = None
                if hint := troubles.no_step_hint(snapshot.ranks):
                    print_message(hint)
        writer.end(snapshot)
        return False
    finally:
        writer.release()


def run(options: argparse.Namespace) -> int:
    writer = RecordWriter(sys.stdout, options.steps, detail=options.detail)
    with join(options.job, hosts_of(options), wait=options.wait) as session:
        stream(session, writer, detail=options.detail)
    if writer.written == 0:
        print_message("the job ended before its first step")
    return 0
