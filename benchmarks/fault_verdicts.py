"""What is known of a job with a fault on purpose, what was found of it, and how the two compare. Pure.

The injected wait is how much more the late rank lost than the others. With w what each rank waited in a
collective, the median over those of a step, a rank came mean(w) - w later than the mean; what is usual in
the untouched steps is taken off, and what is left is projected on what was injected.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, pi, sqrt
from statistics import median
from typing import Any

RULES = {
    "sleep": "late_launch", "compute": "slow_compute", "gc": "garbage_collection", "loader": "data_loading",
    "cpus": "placement", "batches": "uneven_batches",
}  # fmt: skip
"""The rule that has to find each."""
UNTOUCHED = 40
SETTLED_STEPS = 3
"""After the first faulty one, in which a rank gets ready for it."""
NAMED_STEPS = 10
"""Of the last so many steps with a late rank, MOST have to be this one's."""
MOST = 0.6
FOUND_WITHIN = 0.05


@dataclass(frozen=True, slots=True)
class Case:
    """One job."""

    by: str
    """``healthy``, ``line``, or as `workloads/faults.py` has it."""
    share: float
    ranks: int
    workload: str

    @property
    def late(self) -> int | None:
        """The rank that is made late; None: none, or another one in each step."""
        return None if self.by in ("batches", "healthy", "line") else self.ranks - 1

    @property
    def in_words(self) -> str:
        """``sleep 20 %, 2 ranks``."""
        share = f" {self.share:.0%}" if self.share else ""
        return f"{self.by}{share}, {self.ranks} ranks, {self.workload.split()[0]}"


@dataclass(slots=True)
class Watched:
    """What ``overlaptop --json`` wrote, with the Unix time at which each line came."""

    steps: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    """The record of each, by step and rank."""
    residual_ns: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By step, of its collectives together."""
    waited_ns: defaultdict[int, defaultdict[int, list[int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """By step and rank, in each collective that is split."""
    late: list[tuple[float, int, int]] = field(default_factory=list)
    """When which step's record named which rank."""
    findings: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def take(self, line: bytes) -> None:
        """One more line."""
        record, now_s = json.loads(line), time.time()
        match record["type"]:
            case "step":
                self.steps[record["step"], record["rank"]] = record
                if record["late_rank"] is not None:
                    self.late.append((now_s, record["step"], record["late_rank"]))
            case "collective":
                self.residual_ns[record["step"]] += record["residual_ns"] or 0
                for rank, wait_ns in zip(record["ranks"], record["wait_ns"], strict=True):
                    if wait_ns is not None:
                        self.waited_ns[record["step"]][rank].append(wait_ns)
            case "finding":
                self.findings.append((now_s, record))

    def waits_ns(self, ranks: int) -> dict[int, list[float]]:
        """What each rank waited in a collective, the median over those of a step; of each step in which it
        is known of all. Not the step's sum: a rank that goes on computing while it waits in several at once
        waits for longer than the late one came late.
        """
        return {
            number: [median(of_rank[rank]) for rank in range(ranks)]
            for number, of_rank in sorted(self.waited_ns.items())
            if len(of_rank) == ranks
        }


@dataclass(frozen=True, slots=True)
class Result:
    """A row of the table."""

    case: Case
    step_ms: float | None = None
    injected_ms: float | None = None
    found_ms: float | None = None
    stated_ms: float | None = None
    noise_ms: float | None = None
    """What `found_ms` may be wrong by since other things make ranks late, too: two standard errors."""
    steps: int = 0
    late_share: float | None = None
    """Of the steps with a late rank: that it is the right one."""
    rank_s: float | None = None
    """Until most of the last steps named the right rank."""
    cause_s: float | None = None
    """Until the right rule found it, of the right rank."""
    others: tuple[str, ...] = ()
    """Rules that found something else."""
    note: str = ""

    @property
    def wait_is_right(self) -> str:
        """Whether the wait was found within FOUND_WITHIN or the stated error; ``noise``: it was not, by no
        more than the noise.
        """
        if self.injected_ms is None or self.found_ms is None:
            return "-"
        wrong_ms = abs(self.found_ms - self.injected_ms)
        if wrong_ms <= max(FOUND_WITHIN * self.injected_ms, self.stated_ms or 0.0):
            return "yes"
        return "noise" if wrong_ms <= (self.noise_ms or 0.0) else "no"


def judge(
    case: Case, watched: Watched, losses: Mapping[int, Mapping[int, Mapping[str, int]]], began_s: float
) -> Result:
    """Compare what was found with what was done."""
    waits = watched.waits_ns(case.ranks)
    lengths_ns = [record["step_ns"] for record in list(watched.steps.values())]
    findings = [each for each in watched.findings if each[0] >= began_s]
    if case.by == "healthy":
        rules = tuple(sorted({each["rule"] for _, each in watched.findings}))
        return Result(case, median(lengths_ns) / 1e6, steps=len(waits), others=rules)

    def lost_ns(step: int) -> list[int]:
        return [losses[rank].get(step, {}).get("lost_ns", 0) for rank in range(case.ranks)]

    first = min((step for records in losses.values() for step in records if step >= UNTOUCHED), default=0)
    last = min((max(records) for records in losses.values() if records), default=0)
    before = [step for step in waits if UNTOUCHED // 3 <= step < first]
    after = [step for step in waits if first + SETTLED_STEPS <= step <= last]
    late = [(at_s, rank) for at_s, step, rank in watched.late if step >= first]
    right_s = [
        (at_s, (each["ranks"] == [case.late]) or case.late is None)
        for at_s, each in findings
        if each["rule"] == RULES[case.by]
    ]
    result = {
        "step_ms": median(
            record["step_ns"] for (step, _), record in list(watched.steps.items()) if step < first
        )
        / 1e6,
        "steps": len(after),
        "cause_s": min((at_s - began_s for at_s, right in right_s if right), default=None),
        "others": tuple(sorted({each["rule"] for _, each in findings} - {RULES[case.by]})),
    }
    if case.late is not None and late:
        result["late_share"] = sum(rank == case.late for _, rank in late) / len(late)
        result["rank_s"] = named_s(late, case.late, began_s)
    if len(before) < 5 or len(after) < 5:
        return Result(case, **result, note=f"{len(before)} steps before and {len(after)} after compared")
    usual = pattern_of(waits, before, case.ranks)
    usual_lost = [median(each) for each in zip(*(lost_ns(step) for step in before), strict=True)]
    pairs = []
    for step in after:
        more = [own - before for own, before in zip(lost_ns(step), usual_lost, strict=True)]
        injected = [own - sum(more) / case.ranks for own in more]
        found = [own - often for own, often in zip(arrival(waits[step]), usual, strict=True)]
        pairs.append((max(more) - min(more), sum(each * each for each in injected), dot(found, injected)))
    enough = median(square for _, square, _ in pairs)
    slopes = [(spread, product / square) for spread, square, product in pairs if square >= enough > 0]
    if slopes:
        injected_ns = median(spread for spread, _ in slopes)
        result["injected_ms"] = injected_ns / 1e6
        result["found_ms"] = median(slope for _, slope in slopes) * injected_ns / 1e6
        earlier_ns = [max(arrival(waits[step])) - max(usual) for step in before]
        result["noise_ms"] = 1e-6 * hypot(
            2 * error_of_median([slope * injected_ns for _, slope in slopes]),
            4 * error_of_median(earlier_ns),
        )
        result["stated_ms"] = median(watched.residual_ns[step] for step in after) / 1e6
    return Result(case, **result)


def arrival(waits_ns: Sequence[float]) -> list[float]:
    """How much later than the mean each rank came: it waited so much less."""
    mean = sum(waits_ns) / len(waits_ns)
    return [mean - wait_ns for wait_ns in waits_ns]


def pattern_of(waits: Mapping[int, Sequence[float]], steps: Sequence[int], ranks: int) -> list[float]:
    """The usual `arrival` of each rank."""
    return [median(arrival(waits[step])[rank] for step in steps) for rank in range(ranks)]


def error_of_median(values: Sequence[float]) -> float:
    """The standard error of their median, by their median absolute deviation, as for a normal
    distribution: sqrt(pi / 2) * 1.4826 * MAD / sqrt(n).
    """
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    return sqrt(pi / 2) * 1.4826 * deviation / sqrt(len(values))


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    """Their scalar product."""
    return sum(one * other for one, other in zip(left, right, strict=True))


def named_s(late: Sequence[tuple[float, int]], rank: int, began_s: float) -> float | None:
    """After how many seconds most of the last steps named this rank; None: never."""
    for at in range(NAMED_STEPS, len(late) + 1):
        window = [each for _, each in late[at - NAMED_STEPS : at]]
        if window.count(rank) >= MOST * NAMED_STEPS:
            return late[at - 1][0] - began_s
    return None


COLUMNS = (
    "fault", "share", "ranks", "workload", "step ms", "injected ms", "found ms", "error", "stated ms",
    "noise ms", "within", "right rank", "rank after s", "cause after s", "other rules", "steps", "note",
)  # fmt: skip


def row(result: Result) -> list[str]:
    """A case as the table has it."""

    def number(value: float | None, digits: int = 1) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    error = ""
    if result.injected_ms and result.found_ms is not None:
        error = f"{result.found_ms / result.injected_ms - 1:+.1%}"
    case = result.case
    return [
        case.by, f"{case.share:.0%}" if case.share else "-", str(case.ranks), case.workload.split()[0],
        number(result.step_ms), number(result.injected_ms, 2), number(result.found_ms, 2), error or "-",
        number(result.stated_ms, 2), number(result.noise_ms, 2), result.wait_is_right,
        "-" if result.late_share is None else f"{result.late_share:.0%}", number(result.rank_s),
        number(result.cause_s), ", ".join(result.others) or "-", str(result.steps), result.note or "-",
    ]  # fmt: skip


def table(results: Sequence[Result]) -> str:
    """As Markdown, for benchmarks/README.md."""
    rows = [COLUMNS, ["---"] * len(COLUMNS), *map(row, results)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
