"""What is found of jobs with one thing wrong on purpose, against what is known to be wrong.

    python benchmarks/faults.py [--device cpu] [--jobs 4] [--minutes 8]
    python benchmarks/faults.py --by sleep,gc --shares 0.2 --ranks 2 --workload "ddp --layers 2"

Each case is a job of `workloads/faults.py`, which notes what each step has lost, and ``overlaptop --json
--detail`` beside it: is the wait found that was injected, the rank, the cause, and after how many
seconds? The injected wait is how much later than the others the late rank came to communicate, by what
each rank notes itself; the found one how much more the others waited. What is usual in the untouched
steps is taken off both. They are compared step by step. "stated" is what the records give as the split's
own error: the residuals of a step's collectives.

Healthy jobs (``--healthy 120``: for so many seconds) must raise nothing. ``--line`` throttles the line
between two namespaces in the middle of a job (root, iproute2): transfer grows, and nobody is late.

Under MPS a job that is killed takes the start of the next one with it: there a ``--workload "ddp --seconds
60"`` ends by itself.

Each of the ``--jobs`` that run at once has CPUs of its own. On GPUs they all share what is there: with more
ranks than GPUs these are shared as the workload does it. What does not fit into ``--minutes`` is not run,
and the table says so; the cases come in the order of what they tell.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import fault_verdicts as verdicts
from fault_verdicts import RULES, UNTOUCHED, Case, Result, Watched
from tables import print_head, print_row
from torchrun import RECORDS, WORKLOADS, running, shares_of_cpus, torchrun
from two_hosts import BURST, job_across, throttle, two_hosts

FAULTS = [by for by in RULES if by != "line"]
SMALL = "--layers 2 --width 64 --batch 2 --seq 32 --data-ms 100"
HEALTHY = {
    "cuda": ("ddp", "fsdp", "allreduce_matmul"),
    "cpu": (f"ddp {SMALL}", f"fsdp {SMALL}", "allreduce_matmul"),
}
"""By device; on CPUs small ones, whose ranks need not wait for a core."""
START_S = 120.0
"""For a job to come to its first faulty step."""
LINE_RATES = ("10gbit", "100mbit")
LINE_USUAL_S = 25.0
"""Before the line is throttled: what is usual is known from fifty steps, four of them a second."""


def main() -> None:
    """Run the cases, print a line for each as it ends, then the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--by", default=",".join(FAULTS), help="default: %(default)s; none: an empty one")
    parser.add_argument("--shares", default="0.2,1,0.05")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--workload", default="ddp", help="the faulty ones', with its options")
    parser.add_argument("--seconds", type=float, default=15.0, help="watched from the first faulty step on")
    parser.add_argument("--healthy", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--line", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="at once")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for the records of each case")
    options = parser.parse_args()
    give_up_s = time.monotonic() + 60 * options.minutes
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    cases = [
        Case(by, share, ranks, options.workload)
        for share in map(float, filter(None, options.shares.split(",")))
        for ranks in map(int, options.ranks.split(","))
        for by in filter(None, options.by.split(","))
    ]
    if options.healthy:  # they take longest
        cases = [Case("healthy", 0.0, 2, workload) for workload in HEALTHY[options.device]] + cases
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
                os.sched_setaffinity(0, cpus)  # of this thread, and so of its children
                result = run_case(case, options, give_up_s)
        except Exception as fault:  # noqa: BLE001 - one case must not end the others
            result = Result(case, note=f"{type(fault).__name__}: {fault}")
        finally:
            slots.put(cpus)
        print(time.strftime("%T"), *verdicts.row(result), sep="  ", file=sys.stderr, flush=True)
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(run, cases))
    print_head(*verdicts.HEADINGS)
    for result in results:
        print_row(*verdicts.row(result))


def run_case(case: Case, options: argparse.Namespace, give_up_s: float) -> Result:
    """Start the job and what watches it, wait until enough was seen, end both."""
    with TemporaryDirectory(prefix="ot-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        environment = {
            "OVERLAPTOP_DIR": f"{folder}/jobs", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"
        }  # fmt: skip
        with (
            running_job(case, options, folder, environment) as (names, has_ended),
            watching(environment, options.keep and options.keep / case.file_name) as watched,
        ):
            until_s = min(give_up_s, time.monotonic() + START_S)
            began_s = onset_s(case, folder, watched, has_ended, until_s)
            if case.by == "line":
                return judge_line(case, watched, names, options.seconds)
            seconds = options.healthy if case.by == "healthy" else options.seconds
            time.sleep(max(0.0, min(seconds, give_up_s - time.monotonic())))
            return verdicts.judge(case, watched, notes(folder, case.ranks), began_s)


@contextmanager
def running_job(
    case: Case, options: argparse.Namespace, folder: Path, environment: Mapping[str, str]
) -> Iterator[tuple[list[str], Callable[[], bool]]]:
    """The job of a case, under torchrun or, with a throttled line, with a rank in each namespace; gives the
    namespaces, and what tells whether the job has ended.
    """
    name, *words = case.workload.split()
    script = [str(WORKLOADS / f"{name}.py"), *words, "--device", options.device]
    if case.by == "line":
        with (
            two_hosts(LINE_RATES[0]) as names,
            job_across(names, script, folder / "log", [environment, environment]),
        ):
            yield names, lambda: False
        return
    if case.by != "healthy":
        script = [
            str(WORKLOADS / "faults.py"), "--by", case.by, "--share", str(case.share),
            "--device", options.device, "--late-rank", str(case.late or 0), "--untouched", str(UNTOUCHED),
            "--record", str(folder / "lost"), "--workload", case.workload,
        ]  # fmt: skip
    command = torchrun(case.ranks, *script)
    with (
        (folder / "log").open("wb") as log,
        running(command, env=os.environ | environment, stdout=log, stderr=log) as process,
    ):
        yield [], lambda: process.poll() is not None
        if "--seconds" in words:
            process.wait(START_S)


@contextmanager
def watching(environment: Mapping[str, str], keep: Path | None = None) -> Iterator[Watched]:
    """What the records say, as they come; `keep` is a file for them."""
    watched = Watched()

    def read() -> None:
        assert process.stdout is not None
        with keep.open("wb") if keep is not None else nullcontext() as kept:
            for line in process.stdout:
                watched.take(line)
                if kept is not None:
                    kept.write(line)

    reader = threading.Thread(target=read, daemon=True)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with running(RECORDS, env=os.environ | environment, **streams) as process:
        reader.start()
        yield watched


def onset_s(
    case: Case, folder: Path, watched: Watched, has_ended: Callable[[], bool], give_up_s: float
) -> float:
    """Unix time at which the fault was there; waits for it. TimeoutError where the job does not come so
    far.
    """
    while time.monotonic() < give_up_s and not has_ended():
        if case.by in ("healthy", "line"):
            if len(watched.arrivals_ns(case.ranks)) >= UNTOUCHED:
                return time.time()
        elif at_ns := [at_ns for _, at_ns in verdicts.faulty_steps(notes(folder, case.ranks))]:
            return min(at_ns) / 1e9
        time.sleep(0.2)
    log = (folder / "log").read_text(errors="replace")
    raise TimeoutError(f"no faulty step; {' / '.join(log.splitlines()[-4:])}")


def notes(folder: Path, ranks: int) -> dict[int, dict[int, dict[str, int]]]:
    """What each rank noted of each step, by rank and step."""
    found: dict[int, dict[int, dict[str, int]]] = {rank: {} for rank in range(ranks)}
    for rank, records in found.items():
        with suppress(OSError):
            for line in (folder / "lost" / f"rank-{rank}.jsonl").read_text().splitlines():
                with suppress(ValueError):  # the last one may be half written
                    record = json.loads(line)
                    records[record["step"]] = record
    return found


def judge_line(case: Case, watched: Watched, names: Sequence[str], seconds: float) -> Result:
    """Throttle the line: by how much does transfer grow, and is anybody said to be late?"""

    def medians(since: int) -> tuple[float, float]:
        steps = [each for (number, _), each in list(watched.steps.items()) if number >= since]
        known = [each for each in steps if each["transfer_ns"] is not None]
        return tuple(median(each[name] for each in known) / 1e6 for name in ("transfer_ns", "wait_ns"))

    time.sleep(LINE_USUAL_S)
    transfer_ms, wait_ms = medians(UNTOUCHED // 3)
    step_ms = median(each["step_ns"] for each in list(watched.steps.values())) / 1e6
    reached = max(number for number, _ in list(watched.steps))
    throttle(names, LINE_RATES[1])
    began_s = time.time()
    time.sleep(seconds)
    throttled_ms, throttled_wait_ms = medians(reached + verdicts.SETTLED_STEPS)
    link_bytes = median(
        each["link_tx_bytes"] for each in list(watched.steps.values()) if each["link_tx_bytes"] is not None
    )
    expected_ms = link_bytes * 8 / (int(LINE_RATES[1].removesuffix("mbit")) * 1e6) * 1e3
    late = [rank for at_s, step, rank in watched.late if step >= reached + verdicts.SETTLED_STEPS]
    most = max((late.count(rank) / len(late) for rank in set(late)), default=0.0)
    findings = [(at_s, each["rule"]) for at_s, each in watched.findings if at_s >= began_s]
    # What the line lets through at once, before it throttles.
    burst_ms = int(BURST.removesuffix("kb")) * 1024 / link_bytes * expected_ms
    return Result(
        case, step_ms, injected_ms=expected_ms, found_ms=throttled_ms, stated_ms=burst_ms, steps=len(late),
        cause_s=min((at_s - began_s for at_s, rule in findings if rule == RULES["line"]), default=None),
        others=tuple(sorted({rule for _, rule in findings} - {RULES["line"]})),
        note=f"transfer {transfer_ms:.1f} to {throttled_ms:.1f} ms a step, the rate asks for "
        f"{expected_ms:.1f}; waiting {wait_ms:.1f} to {throttled_wait_ms:.1f}; the rank most often late "
        f"is so in {most:.0%}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
