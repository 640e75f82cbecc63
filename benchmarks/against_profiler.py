"""What is told live, against torch.profiler's traces of the same job, taken in turn with it.

    python benchmarks/against_profiler.py [--nproc 2] [--rounds 3] [--seconds 5] ["ddp --bucket-cap-mb 25"]

Each job runs with the agent. In each round its steps are watched live for some seconds, by ``overlaptop
--json --detail``, and then captured with torch.profiler and read by ``overlaptop analyze``: the same
definitions, on another's records. Overlap is pooled over ranks and steps; the times are means over them, ms
a step. Each figure is the median over the rounds with its range.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from overlaptop.launch.supervisor import end_with_parent

WORKLOADS = Path(__file__).resolve().parent.parent / "workloads"
OURS = (sys.executable, "-m", "overlaptop")
JOBS = ("ddp --bucket-cap-mb 1", "ddp --bucket-cap-mb 25", "ddp --bucket-cap-mb 400", "fsdp")
START_S, END_S = 90.0, 30.0
CAPTURED_STEPS = 30

Record = dict[str, Any]
Figures = dict[str, float | None]


def figures(steps: Sequence[Record]) -> Figures:
    """Of steps that were measured; None where it is not known of most."""
    split = [s for s in steps if s["wait_ns"] is not None and 2 * s["unsplit_ns"] < s["comm_ns"]]
    known = 2 * len(split) > len(steps)
    comm_ns, hidden_ns = (sum(each[field] for each in steps) for field in ("comm_ns", "hidden_ns"))
    return {
        "overlap %": 100 * hidden_ns / comm_ns,
        "exposed ms": fmean(each["exposed_ns"] for each in steps) / 1e6,
        "waiting ms": fmean(each["wait_ns"] for each in split) / 1e6 if known else None,
        "transferring ms": fmean(each["transfer_ns"] for each in split) / 1e6 if known else None,
    }


def measured(lines: Iterable[str]) -> list[Record]:
    """The step records among these lines that have communication."""
    records = (json.loads(line) for line in lines)
    return [each for each in records if each["type"] == "step" and each["comm_ns"]]


def live(seconds: float) -> list[Record]:
    """What a dashboard is told in so many seconds."""
    with subprocess.Popen([*OURS, "--json", "--detail"], stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        time.sleep(seconds)
        watcher.send_signal(signal.SIGINT)
        return measured(line for line in watcher.stdout if line.endswith("\n"))


def captured() -> list[Record]:
    """What torch.profiler's traces of the next steps say."""
    capture = [*OURS, "capture", "--steps", str(CAPTURED_STEPS), "--json"]
    made = subprocess.run(capture, capture_output=True, text=True, check=True)
    folder = Path(json.loads(made.stdout.splitlines()[0])["path"]).parent
    read = subprocess.run([*OURS, "analyze", folder, "--json"], capture_output=True, text=True, check=True)
    return measured(read.stdout.splitlines())


def compare(words: str, nproc: int, rounds: int, seconds: float) -> Iterable[str]:
    """The rows of one job."""
    workload, *options = words.split()
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
    with tempfile.TemporaryDirectory(prefix="ot-", ignore_cleanup_errors=True) as folder:
        os.environ["OVERLAPTOP_DIR"] = f"{folder}/s"
        job = subprocess.Popen(
            [sys.executable, *launcher, "-m", "overlaptop.agent", WORKLOADS / f"{workload}.py", *options],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=end_with_parent,
        )  # fmt: skip
        try:
            give_up_s = time.monotonic() + START_S
            while len(live(2.0)) < 2 * nproc:
                if job.poll() is not None or time.monotonic() > give_up_s:
                    raise SystemExit(f"{words}: no step was measured")
            pairs = [(figures(live(seconds)), figures(captured())) for _ in range(rounds)]
        finally:
            job.terminate()
            job.wait(END_S)
    for name in pairs[0][0]:
        both = [(ours[name], theirs[name]) for ours, theirs in pairs]
        known = [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]
        differences = [ours - theirs for ours, theirs in known]
        cells = map(spread, ([ours for ours, _ in known], [theirs for _, theirs in known], differences))
        yield f"| {words} | {name} | {' | '.join(cells)} |"


def spread(values: Sequence[float]) -> str:
    """The median and the range."""
    return f"{median(values):.2f} ({min(values):.2f} .. {max(values):.2f})" if values else "–"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", default=JOBS, help="workloads with their options")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="watched live in each round")
    options = parser.parse_args()
    print("| job | figure | live | torch.profiler | difference |\n| --- | --- | --- | --- | --- |")
    for words in options.jobs:
        for line in compare(words, options.nproc, options.rounds, options.seconds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
