"""What is found of jobs with one thing wrong on purpose, against what is known to be wrong.

    python benchmarks/faults.py [--device cpu] [--jobs 4] [--minutes 8]
    python benchmarks/faults.py --by sleep,gc --shares 0.2 --ranks 2 --workload "ddp --layers 2"

Each case is a job of `workloads/faults.py`, which notes what each step has lost, and ``overlaptop --json
--detail`` beside it: is the wait found that was injected, the rank, the cause, and after how many seconds?
The injected wait is how much more the late rank lost than the others; the found one how much more these
waited, less what they did in the untouched steps. Both are compared step by step. "stated" is what the
records give as the split's own error: the residuals of a step's collectives.

Healthy jobs (``--healthy 120``: for so many seconds) must raise nothing. ``--line`` throttles the line
between two namespaces in the middle of a job (root, iproute2): transfer grows, and nobody is late.

Each of the ``--jobs`` that run at once has CPUs of its own. On GPUs they all share what is there: with more
ranks than GPUs these are shared as the workload does it. What does not fit into ``--minutes`` is not run,
and the table says so; the cases come in the order of what they tell.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import hypot, pi, sqrt
from pathlib import Path
from statistics import median
from typing import Any

from two_hosts import job_across, throttle, two_hosts

from overlaptop.workloads import catalog

ROOT = Path(__file__).resolve().parent.parent
RULES = {
    "sleep": "late_launch", "compute": "slow_compute", "gc": "garbage_collection", "loader": "data_loading",
    "cpus": "placement", "batches": "uneven_batches",
}  # fmt: skip
"""The rule that has to find each."""
HEALTHY = ("ddp", "fsdp", "allreduce_matmul")
UNTOUCHED = 40
START_S = 120.0
"""For a job to come to its first faulty step."""
SETTLED_STEPS = 3
"""After the first faulty one, in which a rank gets ready for it."""
NAMED_STEPS = 10
"""Of the last so many steps with a late rank, MOST have to be this one's."""
MOST = 0.6
FOUND_WITHIN = 0.05
LINE_RATES = ("10gbit", "100mbit")


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
    """By step and rank."""
    residual_ns: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By step, of its collectives together."""
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
            case "finding":
                self.findings.append((now_s, record))

    def waits_ns(self, ranks: int) -> dict[int, list[int]]:
        """What each rank waited in each step of which it is known of all."""
        found: dict[int, list[int]] = {}
        for number in sorted({number for number, _ in list(self.steps)}):
            of_ranks: list[Any] = [
                self.steps.get((number, rank), {}).get("wait_ns") for rank in range(ranks)
            ]
            if None not in of_ranks:
                found[number] = of_ranks
        return found


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


def main() -> None:
    """Run the cases, print a line for each as it ends, then the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--by", default=",".join(RULES), help="default: %(default)s; none: an empty one")
    parser.add_argument("--shares", default="0.2,1,0.05")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--workload", default="ddp", help="the faulty ones', with its options")
    parser.add_argument("--seconds", type=float, default=15.0, help="watched from the first faulty step on")
    parser.add_argument("--healthy", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--line", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="at once")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all")
    options = parser.parse_args()
    give_up_s = time.monotonic() + 60 * options.minutes
    cases = [
        Case(by, share, ranks, options.workload)
        for share in map(float, filter(None, options.shares.split(",")))
        for ranks in map(int, options.ranks.split(","))
        for by in filter(None, options.by.split(","))
    ]
    if options.healthy:  # they take longest
        cases = [Case("healthy", 0.0, 2, workload) for workload in HEALTHY] + cases
    if options.line:
        cases.append(Case("line", 0.0, 2, options.workload))
    slots: queue.SimpleQueue[set[int]] = queue.SimpleQueue()
    for cpus in shares_of_cpus(options.jobs):
        slots.put(cpus)

    def run(case: Case) -> Result:
        cpus = slots.get()
        try:
            needed_s = options.healthy if case.by == "healthy" else options.seconds
            if time.monotonic() + needed_s + 20 > give_up_s:
                result = Result(case, note="not run: no time left")
            else:
                result = run_case(case, options, cpus, give_up_s)
        except Exception as fault:  # noqa: BLE001 - one case must not end the others
            result = Result(case, note=f"{type(fault).__name__}: {fault}")
        finally:
            slots.put(cpus)
        print(f"{time.strftime('%T')} {case.in_words}: {row(result)[4:]}", file=sys.stderr, flush=True)
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(run, cases))
    print(table(results))


def shares_of_cpus(jobs: int) -> Iterator[set[int]]:
    """As many sets of this process's CPUs, apart from each other where there are enough."""
    cpus = sorted(os.sched_getaffinity(0))
    each = len(cpus) // jobs
    for number in range(jobs):
        yield set(cpus[number * each : (number + 1) * each]) if each >= 2 else set(cpus)


def run_case(case: Case, options: argparse.Namespace, cpus: set[int], give_up_s: float) -> Result:
    """Start the job and what watches it, wait until enough was seen, end both."""
    folder = Path(tempfile.mkdtemp(prefix="ot-"))
    environment = {
        **os.environ,
        "OVERLAPTOP_DIR": str(folder / "jobs"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    (folder / "jobs").mkdir(mode=0o700)
    try:
        with running_job(case, options, folder, environment, cpus), watching(environment, cpus) as watched:
            began_s = onset_s(case, folder, watched, min(give_up_s, time.monotonic() + START_S))
            if case.by == "line":
                return judge_line(case, watched, options.seconds)
            seconds = options.healthy if case.by == "healthy" else options.seconds
            time.sleep(max(0.0, min(seconds, give_up_s - time.monotonic())))
            result = judge(case, watched, lost(folder, case.ranks), began_s)
            if case.by == "cpus" and options.device == "cuda":
                # What the CPU loses costs nothing as long as it launches ahead of the GPU.
                result = replace(result, injected_ms=None, note="a CPU that runs ahead may hide it")
            return result
    except TimeoutError as fault:
        log = (folder / "log").read_text(errors="replace") if (folder / "log").exists() else ""
        raise TimeoutError(f"{fault}; {' / '.join(log.splitlines()[-4:])}") from fault
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_job(
    case: Case, options: argparse.Namespace, folder: Path, environment: Mapping[str, str], cpus: set[int]
) -> Iterator[None]:
    """The job of a case, under torchrun or, with a throttled line, a rank in each namespace."""
    script = [str(find(case.workload.split()[0])), *case.workload.split()[1:], "--device", options.device]
    if case.by == "line":
        with two_hosts(LINE_RATES[0]) as names:
            LINES[case] = names
            os.environ.update(environment)
            with job_across(names, script, folder / "log"):
                yield
        return
    if case.by != "healthy":
        script = [
            str(find("faults")), "--by", case.by, "--share", str(case.share), "--device", options.device,
            "--late-rank", str(case.late or 0), "--untouched", str(UNTOUCHED),
            "--record", str(folder / "lost"), "--workload", case.workload,
        ]  # fmt: skip
    torchrun = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={case.ranks}",
        "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=localhost",
        "-m", "overlaptop.agent",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = start([*torchrun, *script], environment, cpus, stdout=log, stderr=log)
    try:
        yield
    finally:
        end(process)


LINES: dict[Case, list[str]] = {}
"""The namespaces of a case's job."""


@contextmanager
def watching(environment: Mapping[str, str], cpus: set[int]) -> Iterator[Watched]:
    """What the records say, as they come."""
    watched = Watched()
    command = [sys.executable, "-m", "overlaptop", "--json", "--detail", "--wait"]
    process = start(command, environment, cpus, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            watched.take(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield watched
    finally:
        end(process)
        reader.join()


def start(
    command: Sequence[str], environment: Mapping[str, str], cpus: set[int], **streams: Any
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, on these CPUs."""
    os.sched_setaffinity(0, cpus)  # of this thread, and so of its children
    return subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True, **streams
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """End it, and what it has started."""
    for signum, wait_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            return


def find(workload: str) -> Path:
    """Its script."""
    found = catalog.find(workload)
    if found is None:
        raise ValueError(f"no workload is called {workload!r}")
    return found.path


def onset_s(case: Case, folder: Path, watched: Watched, give_up_s: float) -> float:
    """Unix time at which the fault was there; waits for it. TimeoutError where the job does not come so
    far.
    """
    while time.monotonic() < give_up_s:
        if case.by in ("healthy", "line"):
            if len(watched.waits_ns(case.ranks)) >= UNTOUCHED:
                return time.time()
        elif at_ns := [
            record["at_ns"]
            for records in lost(folder, case.ranks).values()
            for step, record in records.items()
            if step >= UNTOUCHED
        ]:
            return float(min(at_ns)) / 1e9
        time.sleep(0.2)
    raise TimeoutError("no faulty step")


def lost(folder: Path, ranks: int) -> dict[int, dict[int, dict[str, int]]]:
    """What each rank noted of each step that has lost time, by rank and step."""
    found: dict[int, dict[int, dict[str, int]]] = {rank: {} for rank in range(ranks)}
    for rank, records in found.items():
        with suppress(OSError):
            for line in (folder / "lost" / f"rank-{rank}.jsonl").read_text().splitlines():
                with suppress(ValueError):  # the last one may be half written
                    record = json.loads(line)
                    records[record["step"]] = record
    return found


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
        "step_ms": median(record["step_ns"] for (step, _), record in watched.steps.items() if step < first)
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


def arrival(waits_ns: Sequence[int]) -> list[float]:
    """How much later than the mean each rank came: it waited so much less."""
    mean = sum(waits_ns) / len(waits_ns)
    return [mean - wait_ns for wait_ns in waits_ns]


def pattern_of(waits: Mapping[int, Sequence[int]], steps: Sequence[int], ranks: int) -> list[float]:
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


def judge_line(case: Case, watched: Watched, seconds: float) -> Result:
    """Throttle the line: by how much does transfer grow, and is anybody said to be late?"""

    def medians(since: int) -> tuple[float, float]:
        steps = [each for (number, _), each in list(watched.steps.items()) if number >= since]
        known = [each for each in steps if each["transfer_ns"] is not None]
        return tuple(median(each[name] for each in known) / 1e6 for name in ("transfer_ns", "wait_ns"))

    transfer_ms, wait_ms = medians(UNTOUCHED // 3)
    step_ms = median(each["step_ns"] for each in list(watched.steps.values())) / 1e6
    reached = max(number for number, _ in watched.steps)
    throttle(LINES[case], LINE_RATES[1])
    began_s = time.time()
    time.sleep(seconds)
    throttled_ms, throttled_wait_ms = medians(reached + SETTLED_STEPS)
    link_bytes = median(
        each["link_tx_bytes"] for each in list(watched.steps.values()) if each["link_tx_bytes"] is not None
    )
    expected_ms = link_bytes * 8 / (int(LINE_RATES[1].removesuffix("mbit")) * 1e6) * 1e3
    late = [rank for at_s, step, rank in watched.late if step >= reached + SETTLED_STEPS]
    most = max((late.count(rank) / len(late) for rank in set(late)), default=0.0)
    return Result(
        case, step_ms, injected_ms=expected_ms, found_ms=throttled_ms, steps=len(late),
        others=tuple(sorted({each["rule"] for at_s, each in watched.findings if at_s >= began_s})),
        note=f"transfer {transfer_ms:.1f} to {throttled_ms:.1f} ms a step, the rate asks for "
        f"{expected_ms:.1f}; waiting {wait_ms:.1f} to {throttled_wait_ms:.1f}; the rank most often late "
        f"is so in {most:.0%}",
    )  # fmt: skip


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


if __name__ == "__main__":
    main()
