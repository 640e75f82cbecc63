"""The table of workloads/README.md: each bundled workload in each mode, by the agent's own records.

    python benchmarks/workloads.py [--device cuda] [--ranks 4] [--line-gbit 1] [--only ddp,zero] > table.md

A workload's modes run one after the other in one job (jobs/in_turn.py) under torchrun with the agent,
beside an `overlaptop --json --detail` that writes down what a dashboard would show. Figures are medians
over the steps of all ranks but a run's first ones; overlap is pooled over them. ``--line-gbit`` puts the
job into a network namespace of its own whose loopback is that slow: needs root, unshare, ip and tc.
Progress is on stderr. A workload that fails or has no time left is a row that says so; the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
IN_TURN = ROOT / "benchmarks" / "jobs" / "in_turn.py"
FIRST_STEPS = 4
"""Of a run, that are left out: memory is allocated, buckets are made anew."""
JOB_LIMIT_S = 150.0
TIMED_OUT = 124
"""The exit status of timeout(1)."""
HEADINGS = (
    "workload", "mode", "step ms", "against no overlap", "overlap", "exposed ms", "waiting ms",
    "transferring ms", "remarks",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A mode: its options, and what the table has to say of it."""

    words: str
    remarks: str = ""
    same_work: bool = True
    """A step does as much as one of the series' first run."""


@dataclass(frozen=True)
class Series:
    """The modes of a workload, which run in one job; the first is the one without overlap."""

    workload: str
    runs: tuple[Run, ...]
    environment: tuple[tuple[str, str], ...] = ()
    """For its ranks."""


_GPU_EACH = "needs a GPU for each rank"
_USER_BUFFERS = (("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("UB_SKIPMC", "1"))

SERIES = (
    Series(
        "ddp",
        (
            Run("--mode after-backward"),
            Run("--mode bucketed"),
            Run("--mode bucketed-hooks"),
            Run("--mode per-parameter"),
            Run("--mode bucketed --accumulation 4", "four batches a step", same_work=False),
        ),
    ),
    Series(
        "zero",
        (Run("--mode sequential"), Run("--mode overlapped"), Run("--mode overlapped --stage 1")),
    ),
    Series(
        "fsdp",
        (
            Run("--limit-gathers 1"),
            Run("--limit-gathers 2"),
            Run(""),
            Run("--prefetch-forward 1 --prefetch-backward 1"),
            Run("--prefetch-forward 2 --prefetch-backward 2"),
            Run("--no-reshard-after-forward"),
        ),
    ),
    Series(
        "tensor_parallel",
        (
            Run("--mode sync"),
            Run("--mode async"),
            Run("--mode ring"),
            Run("--mode sync --no-sequence-parallel"),
            Run("--mode async --no-sequence-parallel"),
            Run("--mode sync --decode", "forward only, few tokens", same_work=False),
            Run("--mode async --decode", "forward only, few tokens", same_work=False),
        ),
    ),
    Series(
        "pipeline",
        (
            Run("--mode blocking"),
            Run("--mode hand-written"),
            Run("--mode gpipe"),
            Run("--mode 1f1b"),
            Run("--mode interleaved"),
            Run("--mode zero-bubble"),
        ),
    ),
    Series(
        "expert_parallel",
        (
            Run("--mode sync"),
            Run("--mode overlapped"),
            Run("--mode sync --skew 1", "ranks get unlike numbers of tokens", same_work=False),
            Run("--mode overlapped --skew 1", "ranks get unlike numbers of tokens", same_work=False),
        ),
    ),
    Series(
        "gemm_overlap",
        (
            Run("--method torch"),
            Run("--method ring"),
        ),
    ),
    # One that cannot run ends its job, so each has its own.
    Series("tensor_parallel", (Run("--mode symmetric-memory", _GPU_EACH),)),
    Series("gemm_overlap", (Run("--method symmetric-memory", _GPU_EACH),)),
    Series("gemm_overlap", (Run("--method transformer-engine", _GPU_EACH),), _USER_BUFFERS),
    Series("gemm_overlap", (Run("--method flux"),)),
    Series("te_layernorm_mlp", (Run("--no-overlap"), Run("--overlap", _GPU_EACH)), _USER_BUFFERS),
    Series("allreduce_matmul", (Run("--mode sequential"), Run("--mode async"), Run("--mode host-staged"))),
    Series(
        "double_buffer",
        (Run("--mode sequential"), Run("--mode slow-loader"), Run("--mode double-buffered")),
    ),
    Series(
        "small_messages",
        (
            Run("--wait at-once"),
            Run("--wait late"),
            Run("--wait together"),
            Run("--wait polling"),
            Run("--send coalesced"),
            Run("--send flat"),
        ),
    ),
)


def record(series: Series, options: argparse.Namespace, limit_s: float) -> list[dict[str, Any]]:
    """Run a series; its step records. Raises RuntimeError with a reason if it fails or is late."""
    device = f"--device {options.device} {options.workload_options}"
    runs = [f"{series.workload} {run.words} {device}" for run in series.runs]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    job = [
        *torchrun, f"--nproc-per-node={options.ranks}", "-m", "overlaptop.agent", str(IN_TURN),
        str(options.steps), *runs * options.rounds,
    ]  # fmt: skip
    if options.line_gbit:
        shape = f"tbf rate {options.line_gbit}gbit burst 512kb latency 100ms"
        namespace = f'ip link set lo up && tc qdisc add dev lo root {shape} && exec "$@"'
        job = ["unshare", "--net", "sh", "-c", namespace, "sh", *job]
    job = ["timeout", "--kill-after=15", f"{limit_s:.0f}", *job]  # torchrun ends its ranks at SIGTERM
    watch = [sys.executable, "-m", "overlaptop", "--json", "--detail", "--wait"]
    threads = str(max(1, len(os.sched_getaffinity(0)) // options.ranks - 1))
    with tempfile.TemporaryDirectory(prefix="ot-", ignore_cleanup_errors=True) as folder:
        environment = {"OMP_NUM_THREADS": threads, **os.environ, "OVERLAPTOP_DIR": f"{folder}/s"}
        with (
            (Path(folder) / "records").open("w+b") as records,
            subprocess.Popen(watch, stdout=records, stderr=subprocess.DEVNULL, env=environment) as watcher,
        ):
            try:
                done = subprocess.run(
                    job, env=environment | dict(series.environment), capture_output=True, text=True,
                    check=False,
                )  # fmt: skip
                if done.returncode == 0:
                    watcher.wait(30)
            finally:
                watcher.kill()
            if done.returncode == TIMED_OUT:
                raise RuntimeError(f"not done after {limit_s:.0f} s")
            if done.returncode:
                raise RuntimeError(_reason(done.stderr))
            records.seek(0)
            lines = [json.loads(line) for line in records]
    return [line for line in lines if line["type"] == "step"]


def _reason(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines()]
    errors = [line for line in lines if "Error: " in line or "error: " in line]
    said = (errors or lines or ["it said nothing"])[0]
    return said.rpartition(".py: error: ")[2][-200:]


def rows(series: Series, records: Sequence[dict[str, Any]], steps: int) -> list[tuple[str, ...]]:
    """A row for each run."""
    of_run: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for each in records:
        run, step = divmod(each["step"], steps)
        if FIRST_STEPS <= step < steps - 1:
            of_run[run % len(series.runs)].append(each)
    found: list[tuple[str, ...]] = []
    first_ns: float | None = None
    for at, run in enumerate(series.runs):
        measured = of_run[at]
        step_ns = _median(measured, "step_ns")
        first_ns = step_ns if at == 0 else first_ns
        against = "–"
        if at and run.same_work and step_ns and first_ns:
            against = f"{step_ns / first_ns:.2f}×"
        lanes = [each for each in measured if each["comm_ns"]]
        comm_ns, hidden_ns = (sum(each[field] for each in lanes) for field in ("comm_ns", "hidden_ns"))
        bound = "≤" if any(not each["compute_exact"] for each in lanes) else ""
        found.append((
            series.workload, run.words or "(as FSDP2 does)", _ms(step_ns), against,
            f"{bound}{hidden_ns / comm_ns:.0%}" if comm_ns else "–", _ms(_median(measured, "exposed_ns")),
            _ms(_median(measured, "wait_ns")), _ms(_median(measured, "transfer_ns")), run.remarks,
        ))  # fmt: skip
    return found


def _median(records: Sequence[dict[str, Any]], field: str) -> float | None:
    known = [each[field] for each in records if each[field] is not None]
    return median(known) if known else None


def _ms(ns: float | None) -> str:
    return "–" if ns is None else f"{ns / 1e6:.1f}"


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2, help="on fewer GPUs they share them")
    parser.add_argument("--steps", type=int, default=30, help="of each run")
    parser.add_argument(
        "--rounds", type=int, default=1, help="all modes by turns, where the machine drifts"
    )
    parser.add_argument("--line-gbit", type=float, help="Gbit/s of the line between the ranks, for gloo")
    parser.add_argument("--only", default="", help="workloads, with commas")
    parser.add_argument("--budget-s", type=float, default=460.0, help="of all workloads together")
    parser.add_argument("--workload-options", default="", help="for all runs, in quotation marks")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else [series.workload for series in SERIES]

    began_s = time.monotonic()
    print(f"| {' | '.join(HEADINGS)} |", f"|{' --- |' * len(HEADINGS)}", sep="\n", flush=True)
    for series in SERIES:
        if series.workload not in wanted:
            continue
        elapsed_s = time.monotonic() - began_s
        print(
            f"{elapsed_s:4.0f} s  {series.workload}, {len(series.runs)} modes", file=sys.stderr, flush=True
        )
        table: list[tuple[str, ...]]
        try:
            limit_s = min(JOB_LIMIT_S, options.budget_s - elapsed_s)
            if limit_s < 1:
                raise RuntimeError("no time was left for it")
            table = rows(series, record(series, options, limit_s), options.steps)
        except RuntimeError as fault:
            blank = ("–",) * (len(HEADINGS) - 3)
            table = [(series.workload, run.words, *blank, f"not run: {fault}") for run in series.runs]
        for row in table:
            print(f"| {' | '.join(row)} |", flush=True)
    print(f"{time.monotonic() - began_s:4.0f} s  done", file=sys.stderr)


if __name__ == "__main__":
    main()
