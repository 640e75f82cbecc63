"""What is known of a job with a fault on purpose, what was found of it, and how the two compare. Pure.

The injected wait is how much later than the others the late rank came to communicate in a step, by what
each rank notes itself (workloads/faults.py): what is done to a rank slows more than itself, such as the
launches behind a sleep, or the other ranks of a GPU. With w what each rank waited in the first collective
of a step, a rank came mean(w) - w later than the mean; what is usual in the untouched steps is taken off
both, and what is left is projected on what was injected. Later collectives say less: ranks go on
computing while they wait, and NCCL runs one collective after the other, so that a rank waits in each of
them for no longer than the late one computes in between.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, pi, sqrt
from statistics import median
from typing import Any

import numpy as np
from tables import UNKNOWN, number

RULES = {
    "sleep": "late_launch", "compute": "slow_compute", "gc": "garbage_collection", "loader": "data_loading",
    "cpus": "placement", "batches": "uneven_batches", "line": "slower_transfers",
}  # fmt: skip
"""The rule that has to find each."""
UNTOUCHED = 60
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
    def file_name(self) -> str:
        """For its records."""
        return f"{self.by}-{self.share:g}-{self.ranks}-{self.workload.split()[0]}.jsonl"


@dataclass(slots=True)
class Watched:
    """What ``overlaptop --json`` wrote, with the Unix time at which each line came."""

    steps: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    """The record of each, by step and rank."""
    first: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By step, the record of the first collective that is split."""
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
                if not record["not_attributed"]:
                    self.first.setdefault(record["step"], record)
            case "finding":
                self.findings.append((now_s, record))

    def arrivals_ns(self, ranks: int) -> dict[int, np.ndarray]:
        """How much later than the mean each rank came to the first collective, which is by how much less it
        waited, (ranks,); of each step in which it is known of all.
        """
        waits_ns = {
            step: np.array(first["wait_ns"])  # by rank
            for step, first in sorted(self.first.items())
            if len(first["ranks"]) == ranks
        }
        return {step: each.mean() - each for step, each in waits_ns.items()}


@dataclass(slots=True)
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
            return UNKNOWN
        wrong_ms = abs(self.found_ms - self.injected_ms)
        if wrong_ms <= max(FOUND_WITHIN * self.injected_ms, self.stated_ms or 0.0):
            return "yes"
        return "noise" if wrong_ms <= (self.noise_ms or 0.0) else "no"


def judge(
    case: Case, watched: Watched, notes: Mapping[int, Mapping[int, Mapping[str, int]]], began_s: float
) -> Result:
    """Compare what was found with what was done, by what each rank noted of each step."""
    arrivals_ns = watched.arrivals_ns(case.ranks)
    steps_ns = [(step, record["step_ns"]) for (step, _), record in list(watched.steps.items())]
    if case.by == "healthy":
        rules = tuple(sorted({each["rule"] for _, each in watched.findings}))
        length_ns = median(step_ns for _, step_ns in steps_ns)
        return Result(case, length_ns / 1e6, steps=len(arrivals_ns), others=rules)

    first = min((step for step, _ in faulty_steps(notes)), default=0)
    noted = set.intersection(*(set(of_rank) for of_rank in notes.values()))
    before = [step for step in arrivals_ns if step in noted and UNTOUCHED // 3 <= step < first]
    after = [step for step in arrivals_ns if step in noted and first + SETTLED_STEPS <= step]
    late = [(at_s, rank) for at_s, step, rank in watched.late if step >= first]
    findings = [(at_s, each) for at_s, each in watched.findings if at_s >= began_s]
    right_s = [
        at_s - began_s
        for at_s, each in findings
        if each["rule"] == RULES[case.by] and (case.late is None or each["ranks"] == [case.late])
    ]
    result = Result(
        case,
        step_ms=median(step_ns for step, step_ns in steps_ns if step < first) / 1e6,
        steps=len(after),
        cause_s=min(right_s, default=None),
        others=tuple(sorted({each["rule"] for _, each in findings} - {RULES[case.by]})),
    )
    if case.late is not None and late:
        result.late_share = sum(rank == case.late for _, rank in late) / len(late)
        result.rank_s = named_s(late, case.late, began_s)
    if len(before) < 5 or len(after) < 5:
        result.note = f"{len(before)} steps before and {len(after)} after compared"
        return result

    def came_ns(steps: Sequence[int]) -> np.ndarray:
        """How much later than the mean, (steps, ranks)"""
        ranks = [notes[rank] for rank in range(case.ranks)]
        at_ns = np.array([[each[step]["arrived_ns"] for each in ranks] for step in steps], float)
        later_ns: np.ndarray = at_ns - at_ns.mean(axis=1, keepdims=True)
        return later_ns

    earlier_ns = np.array([arrivals_ns[step] for step in before])
    usual_ns = np.median(earlier_ns, axis=0)
    found_ns = np.array([arrivals_ns[step] for step in after]) - usual_ns
    injected_ns = came_ns(after) - np.median(came_ns(before), axis=0)
    squares = (injected_ns**2).sum(axis=1)
    if (enough := np.median(squares)) > 0:
        most = squares >= enough
        slopes = (found_ns * injected_ns).sum(axis=1)[most] / squares[most]
        injected_ms = float(np.median(np.ptp(injected_ns[most], axis=1))) / 1e6
        earlier_ms = (earlier_ns.max(axis=1) - usual_ns.max()) / 1e6
        result.injected_ms, result.found_ms = injected_ms, float(np.median(slopes)) * injected_ms
        result.noise_ms = hypot(2 * error_of_median(slopes * injected_ms), 4 * error_of_median(earlier_ms))
        result.stated_ms = median(watched.first[step]["residual_ns"] for step in after) / 1e6
    return result


def faulty_steps(notes: Mapping[int, Mapping[int, Mapping[str, int]]]) -> Iterator[tuple[int, int]]:
    """Each step of a rank that lost time in it, and the Unix time at which it did, ns."""
    for of_rank in notes.values():
        yield from ((step, note["at_ns"]) for step, note in of_rank.items() if note["lost_ns"] != 0)


def error_of_median(values: np.ndarray) -> float:
    """The standard error of their median, by their median absolute deviation, as for a normal
    distribution: sqrt(pi / 2) * 1.4826 * MAD / sqrt(n).
    """
    deviation = np.median(np.abs(values - np.median(values)))
    return sqrt(pi / 2) * 1.4826 * float(deviation) / sqrt(len(values))


def named_s(late: Sequence[tuple[float, int]], rank: int, began_s: float) -> float | None:
    """After how many seconds most of the last steps named this rank; None: never."""
    for at in range(NAMED_STEPS, len(late) + 1):
        window = [each for _, each in late[at - NAMED_STEPS : at]]
        if window.count(rank) >= MOST * NAMED_STEPS:
            return late[at - 1][0] - began_s
    return None


HEADINGS = (
    "fault", "share", "ranks", "workload", "step ms", "injected ms", "found ms", "error", "stated ms",
    "noise ms", "within", "right rank", "rank after s", "cause after s", "other rules", "steps", "note",
)  # fmt: skip


def row(result: Result) -> list[str]:
    """A case as the table has it."""
    case, error = result.case, UNKNOWN
    if result.injected_ms and result.found_ms is not None:
        error = f"{result.found_ms / result.injected_ms - 1:+.1%}"
    return [
        case.by, f"{case.share:.0%}" if case.share else UNKNOWN, str(case.ranks), case.workload.split()[0],
        number(result.step_ms), number(result.injected_ms, 2), number(result.found_ms, 2), error,
        number(result.stated_ms, 2), number(result.noise_ms, 2), result.wait_is_right,
        UNKNOWN if result.late_share is None else f"{result.late_share:.0%}", number(result.rank_s),
        number(result.cause_s), ", ".join(result.others) or UNKNOWN, str(result.steps),
        result.note or UNKNOWN,
    ]  # fmt: skip
