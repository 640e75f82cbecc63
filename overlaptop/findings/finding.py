"""What a rule yields, Findings, and what it gets, Evidence: of a live job or of its traces. Pure."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain
from math import inf
from pathlib import PurePath
from statistics import median
from typing import TypeAlias

from overlaptop import text
from overlaptop.fleet.knobs import job_knobs
from overlaptop.fleet.snapshot import HubState, RankView, Snapshot
from overlaptop.fleet.wait_breakdown import window_of
from overlaptop.fleet.waits import FIRST_STEPS, StepTransfer, StepWaits, WaitWindow
from overlaptop.fleet.window import EVIDENCE_STEPS, HISTORY_STEPS, evidence_steps
from overlaptop.records import FindingRecord, shared
from overlaptop.report.hosts import ranks_and_hosts
from overlaptop.timeline.arrivals import Collective
from overlaptop.wire.knobs import PREFETCH, GradientFacts, Knob
from overlaptop.wire.messages import StepDetail, StepTotals

MIN_STEPS = 3  # With fewer measured steps there are no findings
COUNTED_STEPS = 64  # Steps whose counters are compared
LEAST_USUAL = 8  # Fewest steps whose length is the job's present one
SWITCHED_ON = ("1", "y", "yes", "t", "true")  # Values that turn on a switch of torch (its getCvarBool)
VAGUE_STEPS = 12  # With fewer in a running job there is no finding without a cause
OPPOSITES = {"bucket_too_large": "bucket_too_small", "bucket_too_small": "bucket_too_large"}
"""Rules that exclude each other within one job. Their evidence is a model, so they raise no alarm."""
_FIGURES = re.compile(r" [\d.]+ (?:ns|µs|ms|s)(?= )|: its .*| for \d.*")
"""The figures in a short title that says why a rank is late."""


def headline(title: str, line: str | None) -> str:
    """Return the title and the script line, if known: ``... (train.py:57 in collate)``."""
    return f"{title} ({line})" if line and line not in title else title


class Certainty(Enum):
    """How sure a finding is."""

    MEASURED = "measured"  # The cause itself was measured
    LIKELY = "likely"  # The measurement fits this cause, and similar causes are excluded
    POSSIBLE = "possible"  # The measurement fits this cause and others


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, its cost and the advice."""

    title: str  # One line, subject first, with the measured figure
    measured: str  # The measurement in words, with figures
    advice: str  # The command to type or the setting to change
    certainty: Certainty
    gain_ns: int | None = None  # Shorter step after the fix, in ns (`gains`). None: not known.
    ranks: tuple[int, ...] = ()  # The ranks concerned; empty: the whole job
    rule: str = ""  # The rule's file name, set by `find`
    step_ns: int | None = None
    """Step time behind the gain; by default `find` sets the median one. None: not known."""
    why_late: bool = False
    """It says why its rank is late. The title then begins with ``rank 2 ...`` or ``rank 2's ...``."""
    line: str = ""  # The script line concerned, ``train.py:57 in collate``; empty: not known

    @property
    def warns(self) -> bool:
        """Return whether a known cause costs the job something."""
        return self.certainty is not Certainty.POSSIBLE and self.gain_ns != 0

    @property
    def gain_share(self) -> float | None:
        """Return the gain as a share of the step that it was found in."""
        return self.gain_ns / self.step_ns if self.gain_ns is not None and self.step_ns else None

    @property
    def order_ns(self) -> float:
        """Return the gain, by which findings are sorted. Unknown, it is the smallest, or the largest if the
        finding says why a rank is late.
        """
        if self.gain_ns is None:
            return inf if self.why_late else -1
        return self.gain_ns or -1

    @property
    def headline(self) -> str:
        return headline(self.title, self.line)

    @property
    def headlines(self) -> tuple[str, ...]:
        """Return `headline`, then shorter ones. Rank and cause stay longest, then the time, then the line:
        ``rank 1 sleeps 161 ms longer (train.py:57)``.
        """
        compared = self.title.partition(" than ")[0]
        place = PurePath(self.line.rpartition(" in ")[0]).name
        at = f" ({place})" if place and place not in self.title else ""
        brief = compared.partition(", ")[0].replace("'s training thread", "").replace(" a step", "")
        if place:
            brief = brief.replace(self.line, place)
        return self.headline, f"{compared}{at}", f"{brief}{at}", brief, _FIGURES.sub("", brief)

    @property
    def titles(self) -> tuple[str, ...]:
        short = self.title.partition(": ")[0]
        return self.title, *(self.headlines[2:] if self.why_late else (short, short.replace(" a step", "")))

    def record(self, job: str) -> FindingRecord:
        own = {"job": job, "certainty": self.certainty.value, "line": self.line or None}
        return FindingRecord(**{**shared(FindingRecord, self), **own})


Findings: TypeAlias = Iterable[Finding]
Key = tuple[str, tuple[int, ...], int]
"""Identifies a finding over time: rule, ranks, and its number among equal ones."""


def by_key(found: Findings) -> dict[Key, Finding]:
    keyed: dict[Key, Finding] = {}
    for each in found:
        nth = sum(key[:2] == (each.rule, each.ranks) for key in keyed)
        keyed[each.rule, each.ranks, nth] = each
    return keyed


def late_finding(found: Findings, rank: int) -> Finding | None:
    return next((each for each in found if each.why_late and each.ranks == (rank,)), None)


def why_late(found: Findings, rank: int) -> str:
    """Return such as ``it computes 12.1 ms a step longer than the others``; empty: no finding says."""
    if (late := late_finding(found, rank)) is None:
        return ""
    words = late.headline.removeprefix(f"rank {rank}")
    return f"its{words[2:]}" if words.startswith("'s ") else f"it{words}"


@dataclass(frozen=True, slots=True)
class JobStep:
    """One measured step on all known ranks."""

    number: int
    totals: Mapping[int, StepTotals]
    """By rank, with lane totals; steps that a command disturbed on any rank are left out."""
    details: Mapping[int, StepDetail]
    """By rank, where a timeline is here: of the last few steps while a dashboard watches."""
    waits: StepWaits | None  # Who waited for whom in this step; None if not known

    @property
    def is_drawn(self) -> bool:
        """Return whether the timelines of all ranks are here."""
        return self.details.keys() == self.totals.keys()


@dataclass(frozen=True, eq=False)
class Evidence:
    """Facts about a job since it last changed; from traces, about all steps."""

    ranks: Mapping[int, RankView]  # By number: facts, samples, knobs and history of each known rank
    steps: tuple[JobStep, ...]  # Oldest first; empty with fewer than MIN_STEPS
    window: WaitWindow | None
    """Who waited for whom, the first line's; from traces, of all steps. None without a breakdown."""
    is_trace: bool
    transfers: tuple[StepTransfer, ...] = ()  # Transfer times of recent minutes' steps; empty for traces
    counted: tuple[Mapping[int, StepTotals], ...] = ()
    """The newest steps by rank, measured or not, with lengths and counters; empty for traces."""
    first: int = 0  # The first step since the job last changed
    before_first: int = 0  # The first step since the change before that one
    wander_ns: float = 0.0  # Standard deviation of the length of a few steps in a row. 0: not known.

    @cached_property
    def step_ns(self) -> float:
        """Return the median step time of all ranks and steps; at least one step is needed."""
        return median(totals.step_ns for step in self.steps for totals in step.totals.values())

    @cached_property
    def usual_ns(self) -> float:
        """Return the median length of the newest steps that were not measured: measuring may take time, and
        the job may have slowed down since. `step_ns` if too few are known.
        """
        known_ns = usual_ns(self.counted)
        return self.step_ns if known_ns is None else known_ns

    def steps_of(self, rank: int) -> list[StepTotals]:
        return [step.totals[rank] for step in self.steps]

    @property
    def before(self) -> tuple[Mapping[int, StepTotals], ...]:
        """Return the steps between the last two changes; not the last of them, as the job changed then."""
        return _completed(self.ranks.values(), self.before_first, EVIDENCE_STEPS, self.first - 1)

    @property
    def exposed_wait_ns(self) -> int:
        """Return the mean exposed wait per step of the ranks that are not late; 0 if not known."""
        return self.window.exposed_wait_ns if self.window is not None else 0

    @property
    def most_wait_ns(self) -> int:
        """Return an upper bound of the wait: exposed time without a breakdown may be waiting, too."""
        not_attributed_share = self.window.not_attributed_share if self.window is not None else 0.0
        return self.exposed_wait_ns + round(not_attributed_share * self.step_ns)

    @property
    def wait_text(self) -> str:
        return text.duration(self.exposed_wait_ns)

    @property
    def on_shared_gpus(self) -> Collection[int]:
        """Return the ranks that share their GPU, by the newest step with a breakdown."""
        return next((step.waits.shared for step in reversed(self.steps) if step.waits is not None), ())

    def name(self, ranks: Collection[int]) -> str:
        """Return such as ``ranks 64-71, all of gpu-9``."""
        return ranks_and_hosts(ranks, self.ranks.values())

    def knob(self, name: str) -> Knob | None:
        knobs = (knob for view in self.ranks.values() for knob in view.knobs)
        return next((knob for knob in knobs if knob.name == name), None)

    @property
    def obeys_commands(self) -> bool:
        infos = [view.info for view in self.ranks.values() if not view.ended and view.info is not None]
        return not self.is_trace and bool(infos) and all(info.control_allowed for info in infos)

    def can_set(self, name: str) -> bool:
        """Return whether ``overlaptop set`` could change this knob now."""
        knobs = job_knobs((view.info, view.knobs) for view in self.ranks.values() if not view.ended)
        return self.obeys_commands and any(k.knob.name == name and not k.refusal for k in knobs)

    def try_now(self, name: str, value: int) -> str:
        """Return the end of an advice: how to set this knob at once; empty if the job does not allow it."""
        return f"; to try it now: overlaptop set {name}={value}" if self.can_set(name) else ""

    @property
    def gradients(self) -> GradientFacts | None:
        """Return the gradients of the job's one DDP model; None if there is none, or several."""
        return next((view.gradients for view in self.ranks.values() if view.gradients is not None), None)

    @property
    def uses_fsdp2(self) -> bool:
        return any(self.knob(name) is not None for name in PREFETCH.values())

    def ranks_with(self, variable: str, *values: str) -> tuple[int, ...]:
        """Return the ranks on GPUs with this environment variable set to one of these values, in lower
        case. On CPUs, CUDA's and NCCL's variables have no effect.
        """
        return tuple(
            rank
            for rank, view in sorted(self.ranks.items())
            if view.environment is not None
            and view.info is not None
            and view.info.device not in ("", "cpu")
            and view.environment.value(variable).lower() in values
        )

    def hosts_of(self, collective: Collective) -> frozenset[str]:
        """Return the hosts of its ranks; empty if one is not known."""
        infos = [self.ranks[rank].info for rank in collective.ranks if rank in self.ranks]
        hosts = frozenset(info.host if info is not None else "" for info in infos)
        return frozenset() if "" in hosts or len(infos) < len(collective.ranks) else hosts

    @property
    def most_on_a_host(self) -> int:
        infos = (view.info for view in self.ranks.values())
        return max(Counter(info.host for info in infos if info is not None).values())


def evidence_of(snapshot: Snapshot) -> Evidence:
    known = {view.rank: view for view in snapshot.ranks if view.info is not None}
    is_trace = snapshot.hub_state is HubState.TRACE
    first = 0 if is_trace else max(FIRST_STEPS, snapshot.first_step)
    most = HISTORY_STEPS if is_trace else evidence_steps(len(known))
    steps = _steps(known.values(), snapshot.step_waits, first, most)
    if steps:  # leave out ranks that ended or joined since
        known = {rank: view for rank, view in known.items() if rank in steps[-1].totals}
        steps = [step for step in steps if step.totals.keys() == known.keys()]
    window = window_of(snapshot.step_waits, alone=True) if is_trace else snapshot.wait_window
    thin = len(steps) < MIN_STEPS
    return Evidence(
        ranks=known,
        steps=() if thin else tuple(steps),
        window=None if thin or len(snapshot.step_waits) < MIN_STEPS else window,
        is_trace=is_trace,
        transfers=snapshot.transfers,
        counted=() if is_trace else _completed(known.values(), first, COUNTED_STEPS),
        first=first,
        before_first=max(FIRST_STEPS, snapshot.before_step),
        wander_ns=snapshot.wander_ns,
    )


def usual_ns(counted: Iterable[Mapping[int, StepTotals]]) -> float | None:
    """Return the median length of those of these steps that were not measured; None: too few."""
    usual = [totals for totals in counted if not any(step.measured for step in totals.values())]
    if len(usual) < LEAST_USUAL:
        return None
    return median(step.step_ns for totals in usual for step in totals.values())


def _completed(
    views: Collection[RankView], first: int, most: int, stop: int | None = None
) -> tuple[Mapping[int, StepTotals], ...]:
    """Return the newest steps from `first` on and before `stop` that all completed, oldest first."""
    by_number: dict[int, dict[int, StepTotals]] = {}
    most = min(most, evidence_steps(len(views)))
    for view in views:
        end = len(view.history)
        if stop is not None:
            end = bisect_left(view.history, stop, key=lambda step: step.step)
        for step in view.history[max(0, end - most) : end]:
            if step.step >= first and not step.disturbed:
                by_number.setdefault(step.step, {})[view.rank] = step
    return tuple(totals for _, totals in sorted(by_number.items()) if len(totals) == len(views))


def _steps(
    views: Collection[RankView], step_waits: Iterable[StepWaits], first: int, most: int
) -> list[JobStep]:
    """Return the steps from `first` on that all running ranks measured, oldest first, `most` a rank."""
    totals: dict[int, dict[int, StepTotals]] = {}
    details: dict[int, dict[int, StepDetail]] = {}
    disturbed: set[int] = set()
    for view in views:
        left = most
        for step in chain(reversed(view.history), reversed(view.older)):
            if not left or step.step < first:
                break
            if step.disturbed:
                disturbed.add(step.step)
            if step.comm_ns is not None:
                left -= 1
                totals.setdefault(step.step, {})[view.rank] = step
        for detail in view.details:
            details.setdefault(detail.step, {})[view.rank] = detail
    ends_ns = {view.rank: view.end.at_ns if view.end is not None else inf for view in views if view.history}
    split = {each.step: each for each in step_waits}
    steps = []
    for number, of_ranks in sorted(totals.items()):
        begun_ns = min(step.start_ns for step in of_ranks.values())
        needed = {rank for rank, end_ns in ends_ns.items() if end_ns > begun_ns}
        if number not in disturbed and needed <= of_ranks.keys():
            steps.append(JobStep(number, of_ranks, details.get(number, {}), split.get(number)))
    return steps
