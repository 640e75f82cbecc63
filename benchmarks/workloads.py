"""The table of workloads/README.md: each bundled workload in each mode, by the agent's own records.

    python benchmarks/workloads.py [--device cuda] [--line-gbit 1] [--only ddp,zero] > table.md

A workload's modes run one after the other in one job (jobs/in_turn.py) under torchrun with the agent,
beside an `overlaptop --json --detail` that writes down what a dashboard would show. A mode that cannot run
is a row that says why. One that fails or is not done in time ends the job with the modes behind it.

Step times are means over the steps of all ranks but a run's first ones, since those that are not measured
in detail are timed by the host. Other figures are medians over measured steps; overlap is pooled over them.
Waiting and transfer are of steps with most of their communication attributed.
``--line-gbit`` puts the job into a network namespace of its own whose loopback is that slow: needs root,
unshare, ip and tc. Progress is on stderr.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, groupby
from statistics import fmean, median
from typing import Any

from pairs import UNKNOWN, number, options_of, print_head, print_row
from torchrun import END_S, RECORDS, ROOT, job_folder, running, torchrun, why_it_failed

IN_TURN = ROOT / "benchmarks" / "jobs" / "in_turn.py"
FIRST_STEPS = 4  # Of a run, that are left out: memory is allocated, buckets are made anew
START_LIMIT_S = 60.0  # For torchrun, the imports and the process group
FIRST_STEP_LIMIT_S = 60.0  # Of a run, on top of its own time
EVERY = "8"  # Steps for one measured in detail: more would slow launch-bound jobs
HEADINGS = (
    "workload", "mode", "step ms", "against no overlap", "overlap", "exposed ms", "waiting ms",
    "transfer ms", "remarks",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A mode: its options, and what the table has to say of it."""

    workload: str
    words: str
    remarks: str = ""
    """Why a step does other work than one of the workload's first run, the one without overlap. Empty: it
    does the same.
    """
    environment: tuple[tuple[str, str], ...] = ()  # For its ranks


_SKEWED = "ranks get unlike numbers of tokens"
_DECODE = "forward only, few tokens"
_USER_BUFFERS = (("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("UB_SKIPMC", "1"))
_LONG = "--seconds 12"  # The first step of Transformer Engine's layer takes seconds


def modes(workload: str, *words: str) -> list[Run]:
    """Return a run for each, of which a step does the same work."""
    return [Run(workload, each) for each in words]


RUNS = (
    *modes("ddp", "--mode after-backward", "--mode bucketed", "--mode bucketed-hooks"),
    *modes("ddp", "--mode per-parameter"),
    Run("ddp", "--mode bucketed --accumulation 4", "four batches a step"),
    *modes("fsdp", "--limit-gathers 1", "--limit-gathers 2", ""),
    *modes("fsdp", *(f"--prefetch-forward {each} --prefetch-backward {each}" for each in (1, 2))),
    *modes("fsdp", "--no-reshard-after-forward"),
    *modes("zero", "--mode sequential", "--mode overlapped", "--mode overlapped --stage 1"),
    *modes("tensor_parallel", "--mode sync", "--mode async", "--mode ring", "--mode symmetric-memory"),
    *modes("tensor_parallel", *(f"--mode {each} --no-sequence-parallel" for each in ("sync", "async"))),
    *(Run("tensor_parallel", f"--mode {each} --decode", _DECODE) for each in ("sync", "async")),
    *modes("pipeline", "--mode blocking", "--mode hand-written", "--mode gpipe", "--mode 1f1b"),
    *modes("pipeline", "--mode interleaved", "--mode zero-bubble"),
    *modes("expert_parallel", "--mode sync", "--mode overlapped"),
    *(Run("expert_parallel", f"--mode {each} --skew 1", _SKEWED) for each in ("sync", "overlapped")),
    *modes("allreduce_matmul", "--mode sequential", "--mode async", "--mode host-staged"),
    *modes("double_buffer", "--mode sequential", "--mode slow-loader", "--mode double-buffered"),
    *modes("small_messages", "--wait at-once", "--wait late", "--wait together", "--wait polling"),
    *modes("small_messages", "--send coalesced", "--send flat"),
    *modes("gemm_overlap", *(f"--method {each}" for each in ("torch", "ring", "symmetric-memory"))),
    Run("gemm_overlap", "--method transformer-engine", environment=_USER_BUFFERS),
    Run("te_layernorm_mlp", f"--no-overlap {_LONG}", environment=_USER_BUFFERS),
    Run("te_layernorm_mlp", f"--overlap {_LONG}", environment=_USER_BUFFERS),
)

FirstSteps = dict[str, float | None]
"""By workload: the step time of its first run, ns; None where that did not run."""
Record = dict[str, Any]


def run_job(runs: Sequence[Run], options: argparse.Namespace) -> Iterator[tuple[Run, list[Record], str]]:
    """Run these, of one environment, in one job; yield each with its steps, or why it did not run."""
    device = f"--device {options.device} {options.workload_options}"
    words = [f"{run.workload} {device} {run.words}" for run in runs]
    command = torchrun(
        options.ranks, IN_TURN, f"--seconds {options.seconds}", *words, agent=("--every", EVERY)
    )
    if options.line_gbit:
        shape = f"tbf rate {options.line_gbit}gbit burst 512kb latency 100ms"
        namespace = f'ip link set lo up && tc qdisc add dev lo root {shape} && exec "$@"'
        command = ["unshare", "--net", "sh", "-c", namespace, "sh", *command]
    threads = str(max(1, len(os.sched_getaffinity(0)) // options.ranks - 1))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    limit_s = START_LIMIT_S + (FIRST_STEP_LIMIT_S + options.seconds) * len(runs)
    with job_folder() as folder:
        paths = [folder / name for name in ("records", "out", "err")]
        with ExitStack() as stack:
            records, output, errors = (stack.enter_context(path.open("wb")) for path in paths)
            watcher = stack.enter_context(
                running(RECORDS, stdout=records, stderr=subprocess.DEVNULL, env=environment)
            )
            environment |= dict(runs[0].environment)
            job = stack.enter_context(running(command, stdout=output, stderr=errors, env=environment))
            try:
                job.wait(limit_s)
                watcher.wait(END_S)
            except subprocess.TimeoutExpired:
                job.terminate()  # torchrun ends its ranks
        lines, said, wrong = (path.read_text(errors="replace") for path in paths)
    # Of each run that is over: the step that then began, and why it did not run; empty: it did.
    over = [(int(step), reason.strip()) for step, reason in re.findall(r"run over (-?\d+) (.*)\n", said)]
    steps = steps_of_runs(lines, [step for step, reason in over if not reason])
    unknown = why_it_failed(wrong) if job.poll() else f"not done after {limit_s:.0f} s"
    reasons = [reason for _, reason in over] + [unknown] * (len(runs) - len(over))
    numbers = count()
    for run, reason in zip(runs, reasons, strict=True):
        yield run, [] if reason else steps[next(numbers)], reason


def steps_of_runs(lines: str, ends: Sequence[int]) -> dict[int, list[Record]]:
    """Return the step records by their run, without its first steps. ``ends``: the step
    that began when each run was over. A run's last step is the first of the next, with the time between.
    """
    found: dict[int, list[Record]] = defaultdict(list)
    for line in lines.split("\n")[:-1]:
        record: Record = json.loads(line)
        if record["type"] == "step":
            run = bisect_right(ends, record["step"])
            if record["step"] > FIRST_STEPS + (ends[run - 1] if run else -1):
                found[run].append(record)
    return found


def cells(run: Run, records: Sequence[Record], reason: str, first_ns: FirstSteps) -> tuple[str, ...]:
    """Return a run's cells, compared with its workload's first. ``reason``: why it did not run."""
    step_ns = fmean(each["step_ns"] for each in records) if records else None
    is_first = run.workload not in first_ns
    without_ns = first_ns.setdefault(run.workload, step_ns)
    if reason:
        return (UNKNOWN,) * (len(HEADINGS) - 3) + (f"not run: {reason.replace('|', '/')}",)
    is_alike = not is_first and not run.remarks
    lanes = [each for each in records if each["comm_ns"]]
    split = [each for each in lanes if 2 * (each["not_attributed_ns"] or 0) < each["comm_ns"]]
    comm_ns, hidden_ns = (sum(each[field] for each in lanes) for field in ("comm_ns", "hidden_ns"))
    bound = "≤" if any(not each["compute_exact"] for each in lanes) else ""
    return (
        _ms(step_ns),
        f"{step_ns / without_ns:.2f}×" if is_alike and step_ns and without_ns else UNKNOWN,
        f"{bound}{hidden_ns / comm_ns:.0%}" if comm_ns else UNKNOWN,
        _median_ms(lanes, "exposed_ns"), _median_ms(split, "wait_ns"), _median_ms(split, "transfer_ns"),
        run.remarks,
    )  # fmt: skip


def _median_ms(records: Sequence[Record], field: str) -> str:
    known = [each[field] for each in records if each[field] is not None]
    return _ms(median(known) if known else None)


def _ms(ns: float | None) -> str:
    return number(None if ns is None else ns / 1e6)


def main() -> None:
    """Print the table as Markdown."""
    parser = options_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2, help="on fewer GPUs they share them")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run")
    parser.add_argument("--line-gbit", type=float, help="Gbit/s of the line between the ranks, for gloo")
    parser.add_argument("--only", default="", help="workloads, with commas")
    parser.add_argument("--workload-options", default="", help="for all runs, in quotation marks")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else [run.workload for run in RUNS]
    some = [run for run in RUNS if run.workload in wanted]
    first_ns: FirstSteps = {}
    print_head(*HEADINGS)
    for (workload, _), runs in groupby(some, key=lambda run: (run.workload, run.environment)):
        print(f"{time.strftime('%T')}  {workload} ...", file=sys.stderr, flush=True)
        for run, records, reason in run_job(list(runs), options):
            words = run.words or "(as FSDP2 does)"
            print_row(run.workload, words, *cells(run, records, reason, first_ns))


if __name__ == "__main__":
    main()
