"""Prometheus metrics of running jobs, from their Snapshots.

Times are counters of seconds, so `rate()` gives shares over any window: overlap is the rate of "hidden"
over that of "hidden" and "exposed" together. A rank has at most `SERIES_PER_RANK` series.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from threading import Lock

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from overlaptop.findings.watch import FindingsTold, FindingsWatch
from overlaptop.fleet.snapshot import HubState, RankView, Snapshot
from overlaptop.fleet.trouble import trouble_of
from overlaptop.fleet.waits import StepWaits
from overlaptop.wire.messages import Found, RankInfo

MAX_RANKS = 1024  # Maximum ranks of a job with series of their own, lowest numbers first
SERIES_PER_RANK = 26
MAX_OPERATIONS = 64
"""Maximum operations and groups of a job with series of their own. The rest is group "other"."""
_PARTS = ("hidden", "exposed", "compute_only", "copy_only", "idle", "fused")
_JOB, _RANK, _OPERATION = ("job",), ("job", "node", "rank"), ("job", "group", "op")
_FAMILIES = {
    "job_info": (InfoMetricFamily, "A running job.", _JOB),
    "job_up": (GaugeMetricFamily, "1 while the job's hub sends, else 0.", _JOB),
    "job_ranks": (GaugeMetricFamily, "Ranks of the job.", _JOB),
    "job_trouble": (GaugeMetricFamily, "1 while the job is in this trouble.", (*_JOB, "kind")),
    "overlap_ratio": (GaugeMetricFamily, "Hidden share of communication, last 20 s.", _JOB),
    "lost_messages_total": (CounterMetricFamily, "Messages and spans that were dropped.", _JOB),
    "finding_info": (GaugeMetricFamily, "1 while this holds.", (*_JOB, "rule", "certainty")),
    "finding_gain_seconds": (GaugeMetricFamily, "Most that mending it saves a step.", (*_JOB, "rule")),
    "rank_info": (InfoMetricFamily, "A rank and how it is measured.", _RANK),
    "steps_total": (CounterMetricFamily, "Steps the rank has finished.", _RANK),
    "step_duration_seconds": (SummaryMetricFamily, "Length of undisturbed steps.", _RANK),
    "last_step_timestamp_seconds": (GaugeMetricFamily, "Unix time at which the last step ended.", _RANK),
    "step_part_seconds_total": (
        CounterMetricFamily, "Time of measured steps; parts add up to the step.", (*_RANK, "part")
    ),
    "communication_seconds_total": (
        CounterMetricFamily, "Communication of compared steps, by what it was.", (*_RANK, "kind", "exposed")
    ),
    "rank_late": (GaugeMetricFamily, "1 while the rank is clearly late, 0 while it is not.", _RANK),
    "late_collectives_total": (CounterMetricFamily, "Collectives with the rank as the last one.", _RANK),
    "caused_wait_seconds_total": (CounterMetricFamily, "What all others waited for the rank.", _RANK),
    "launch_lead_seconds": (GaugeMetricFamily, "By how much the CPU is ahead of its GPU.", _RANK),
    "link_bytes_per_second": (
        GaugeMetricFamily, "What a GPU's links and its adapter carry.", (*_RANK, "link", "direction")
    ),
    "nic_errors_total": (CounterMetricFamily, "Errors of its network adapter.", (*_RANK, "counter")),
    "agent_cost_ratio": (GaugeMetricFamily, "Share by which measuring lengthens a step.", _RANK),
    "collectives_total": (CounterMetricFamily, "Collectives of compared steps.", _OPERATION),
    "collective_bytes_total": (CounterMetricFamily, "Bytes of these, where known.", _OPERATION),
    "collective_wait_seconds_total": (CounterMetricFamily, "Waiting, summed over ranks.", _OPERATION),
    "collective_transfer_seconds_total": (CounterMetricFamily, "Transfer, summed over ranks.", _OPERATION),
}  # fmt: skip
"""Kind, help and labels by name without prefix."""


class JobMetrics:
    """The sums over one job's Snapshots."""

    def __init__(self, send: Callable[[Found], str] | None = None) -> None:
        """``send``: as a Session's; None: the hub is not told of findings."""
        self._snapshot: Snapshot | None = None
        self._sums: Counter[tuple[str | int, ...]] = Counter()
        """By a word, a rank and the other labels: numbers of steps and collectives, and times in ns."""
        self._operations: dict[tuple[str, str], Counter[str]] = {}
        self._compared = False
        self._watch = FindingsWatch()
        self._told = FindingsTold(send) if send is not None else None

    def add(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        for step in snapshot.fresh:
            if not step.disturbed:
                self._sums["steps", step.rank] += 1
                self._sums["step_ns", step.rank] += step.step_ns
                for part in _PARTS if step.measured else ():
                    self._sums["part_ns", step.rank, part] += getattr(step, f"{part}_ns") or 0
        for waits in snapshot.fresh_waits:
            self._add_waits(waits)
        if (look := self._watch.look(snapshot)) and self._told is not None:
            self._told.tell(look)

    def _add_waits(self, waits: StepWaits) -> None:
        self._compared = True
        for rank, times in waits.times.items():
            for kind, all_ns, exposed_ns in (
                ("waiting", times.wait_ns, times.exposed_wait_ns),
                ("transfer", times.transfer_ns, times.exposed_transfer_ns),
                ("not attributed", times.not_attributed_ns, times.exposed_not_attributed_ns),
            ):
                self._sums["comm_ns", rank, kind, "true"] += exposed_ns
                self._sums["comm_ns", rank, kind, "false"] += all_ns - exposed_ns
        for each in waits.collectives:
            key = each.group, each.op
            if key not in self._operations and len(self._operations) >= MAX_OPERATIONS - 1:
                key = "other", "other"
            counts = self._operations.setdefault(key, Counter())
            counts["collectives"] += 1
            counts["bytes"] += each.bytes or 0
            counts["wait_ns"] += each.caused_wait_ns
            counts["transfer_ns"] += sum(each.transfer_ns(rank) or 0 for rank in each.ranks)
            if each.late_rank is not None:
                self._sums["late", each.late_rank] += 1
                self._sums["caused_ns", each.late_rank] += each.caused_wait_ns

    def samples(self) -> Iterator[tuple[str, tuple[str, ...], object]]:
        """Yield each sample: a family's name, its labels, its value in base units."""
        snapshot = self._snapshot
        if snapshot is None or snapshot.job is None:
            return
        job, totals = snapshot.job, snapshot.totals
        yield "job_info", (job.job,), {"script": job.script, "world_size": str(job.world_size)}
        yield "job_up", (job.job,), float(snapshot.hub_state is HubState.LIVE)
        yield "job_ranks", (job.job,), len(snapshot.ranks)
        if (trouble := trouble_of(snapshot)) is not None:
            yield "job_trouble", (job.job, trouble.kind.value), 1
        if totals.overlap is not None:
            yield "overlap_ratio", (job.job,), totals.overlap
        yield "lost_messages_total", (job.job,), totals.dropped
        found = self._watch.findings or ()
        for rule in sorted({each.rule for each in found}):
            of_rule = [each for each in found if each.rule == rule]
            yield "finding_info", (job.job, rule, of_rule[0].certainty.value), 1
            if gains_ns := [each.gain_ns for each in of_rule if each.gain_ns is not None]:
                yield "finding_gain_seconds", (job.job, rule), max(gains_ns) / 1e9
        for (group, op), counts in self._operations.items():
            operation = job.job, group, op
            yield "collectives_total", operation, counts["collectives"]
            yield "collective_bytes_total", operation, counts["bytes"]
            yield "collective_wait_seconds_total", operation, counts["wait_ns"] / 1e9
            yield "collective_transfer_seconds_total", operation, counts["transfer_ns"] / 1e9
        window = snapshot.wait_window
        late = {each.rank for each in window.late} if window is not None else None
        for view in snapshot.ranks[:MAX_RANKS]:
            if (info := view.info) is not None:
                for name, labels, value in self._of_rank(view, info, late):
                    yield name, (job.job, view.node or info.host, str(view.rank), *labels), value

    def _of_rank(
        self, view: RankView, info: RankInfo, late: set[int] | None
    ) -> Iterator[tuple[str, tuple[str, ...], object]]:
        rank, last, measured, sums = view.rank, view.last, view.measured, self._sums
        exact = str(info.compute_exact).lower()
        about = {"device": info.device, "backend": info.backend, "source": info.source}
        yield "rank_info", (), about | {"compute_exact": exact}
        if last is not None:
            yield "steps_total", (), last.step + 1
            yield "step_duration_seconds", (), (sums["steps", rank], sums["step_ns", rank] / 1e9)
            yield "last_step_timestamp_seconds", (), (last.start_ns + last.step_ns) / 1e9
        if measured is not None:
            for part in _PARTS:
                if part != "idle" or info.compute_exact:  # compute may contain the idle time
                    yield "step_part_seconds_total", (part,), sums["part_ns", rank, part] / 1e9
            if measured.launch_lead_ns is not None:
                yield "launch_lead_seconds", (), measured.launch_lead_ns / 1e9
        if late is not None:
            yield "rank_late", (), float(rank in late)
        if self._compared:
            yield "late_collectives_total", (), sums["late", rank]
            yield "caused_wait_seconds_total", (), sums["caused_ns", rank] / 1e9
            for kind in ("waiting", "transfer", "not attributed"):
                for exposed in ("true", "false"):
                    spent_ns = sums["comm_ns", rank, kind, exposed]
                    yield "communication_seconds_total", (kind, exposed), spent_ns / 1e9
        if view.sample is not None:
            for link in ("nvlink", "pcie", "nic"):
                for direction in ("rx", "tx"):
                    rate = getattr(view.sample, f"{link}_{direction}_bytes_per_s")
                    if rate is not None:
                        yield "link_bytes_per_second", (link, direction), rate
        for errors in (view.device.nic_errors or ()) if view.device is not None else ():
            yield "nic_errors_total", (errors.counter,), errors.count
        if view.own_cost is not None:
            yield "agent_cost_ratio", (), view.own_cost.change


class JobsCollector(Collector):
    """The metrics of all jobs, for a registry. One thread adds Snapshots, others may collect."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobMetrics] = {}
        self._lock = Lock()

    def add(self, snapshot: Snapshot, send: Callable[[Found], str] | None = None) -> None:
        """``send``: of the Snapshot's session, to tell its hub of findings."""
        if snapshot.job is not None:
            with self._lock:
                self._jobs.setdefault(snapshot.job.job, JobMetrics(send)).add(snapshot)

    def keep(self, jobs: Iterable[str]) -> None:
        """Forget all other jobs: their series end."""
        kept = set(jobs)
        with self._lock:
            self._jobs = {key: each for key, each in self._jobs.items() if key in kept}

    def describe(self) -> Iterable[Metric]:
        """Return nothing: a registry would collect once to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            samples = [sample for job in self._jobs.values() for sample in job.samples()]
        families = {}
        for name, (kind, about, labels) in _FAMILIES.items():
            # The library appends _info and _total by itself.
            stem = f"overlaptop_{name}"
            bare = stem.removesuffix("_info") if kind is InfoMetricFamily else stem.removesuffix("_total")
            families[name] = kind(bare, about, labels=labels)
        for name, labels, value in samples:
            if isinstance(value, tuple):
                families[name].add_metric(labels, *value)
            else:
                families[name].add_metric(labels, value)
        return (family for family in families.values() if family.samples)
