"""What the agent costs a job: step times with and without it, in interleaved pairs of whole jobs.

    python benchmarks/overhead.py [--pairs 6] [--nproc 2] [-- workload options]

Each round runs the job once in every way, in an order that rotates; each way's step time is divided by
that of the same round's run without the agent. What is printed is the median of those ratios and their
whole range, so a drift of the machine between rounds does not count.

The ways are: without the agent; with steps and phases only; as by default; the same while ``overlaptop
--json --detail``, as a dashboard would, reads every rank's timeline from the job's hub ("watched": what the
ranks send for it counts, and so does that process's share of the CPUs); with as many steps measured as can
be; and with the events source, which is not the default on NVIDIA's GPUs. A watched run of which no
collective was read, which takes the timelines of all ranks, ends the benchmark.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from contextlib import ExitStack

from pairs import in_turn, ratios
from tables import number, print_head, print_row
from torchrun import RECORDS, ROOT, job_folder, running, torchrun

WAYS: dict[str, tuple[str, ...] | None] = {
    "without": None,
    "phases only": ("--phases-only",),
    "agent": (),
    "watched": (),
    "every step": ("--every", "1"),
    "events": ("--source", "events"),
}


def run_once(way: str, options: argparse.Namespace) -> float:
    """One whole job; returns its step time in ms."""
    steps = options.warmup + options.steps + 1
    command = torchrun(
        options.nproc, ROOT / "benchmarks" / "timed_job.py", str(options.warmup), str(options.steps),
        ROOT / options.workload, "--steps", str(steps), *options.workload_options, agent=WAYS[way],
    )  # fmt: skip
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with job_folder() as folder, (folder / "records").open("w+b") as records, ExitStack() as stack:
        if way == "watched":
            stack.enter_context(running(RECORDS, stdout=records, stderr=subprocess.DEVNULL))
        job = stack.enter_context(running(command, cwd=ROOT, **pipes))
        stdout, stderr = (each.decode(errors="replace") for each in job.communicate())
        if way == "watched" and b'"type": "collective"' not in (folder / "records").read_bytes():
            raise SystemExit(f"{way}: no timelines were read; the job said:\n{stderr[-4000:]}")
    for line in stdout.splitlines():
        if line.startswith("step_ms "):
            return float(line.split()[1])
    raise SystemExit(f"{way}: no step time; the job said:\n{stdout[-2000:]}\n{stderr[-4000:]}")


def main() -> None:
    """Measure and print one line a way."""
    parser = argparse.ArgumentParser(description="What the agent costs a job.")
    parser.add_argument("--pairs", type=int, default=6, metavar="N")
    parser.add_argument("--nproc", type=int, default=2, metavar="N")
    parser.add_argument("--warmup", type=int, default=20, metavar="STEPS")
    parser.add_argument("--steps", type=int, default=100, metavar="STEPS")
    parser.add_argument("--workload", default="workloads/ddp.py", help="from the repository's root")
    parser.add_argument("--ways", default=",".join(way for way in WAYS if way != "without"))
    parser.add_argument("workload_options", nargs="*", metavar="-- workload options")
    options = parser.parse_args()
    ways = ["without", *options.ways.split(",")]
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"no such way: {unknown[0]!r}; there are {', '.join(WAYS)}")

    times_ms: dict[str, list[float]] = {way: [] for way in ways}
    for number_of_round, order in enumerate(in_turn(ways, options.pairs), 1):
        for way in order:
            times_ms[way].append(run_once(way, options))
        of_round = "  ".join(f"{way} {times_ms[way][-1]:.2f} ms" for way in ways)
        print(f"round {number_of_round}: {of_round}", flush=True)

    print()
    print_head("way", "step, median", "ratio, median", "range")
    for way in ways:
        found = ratios(times_ms[way], times_ms["without"])
        print_row(
            way, number(statistics.median(times_ms[way]), 2, " ms"), number(statistics.median(found), 4),
            f"{min(found):.4f} .. {max(found):.4f}",
        )  # fmt: skip


if __name__ == "__main__":
    main()
