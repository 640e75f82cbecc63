"""Compare the waits that are found with a fault of known size, by the clock of the ranks themselves.

    python benchmarks/waits.py [--by sleep,compute,gc,loader] [--shares 0.05,0.2,1] [--device cuda]
        [--workload "ddp --layers 2"]

Each case is a job of `jobs/recorded_faults.py`, whose last rank loses a share of each step, beside
``overlaptop --json --detail``. Every rank writes down when it comes to communicate. "came later" is by how
much the late rank came after the first one, "found" how long that one waited in the step's first
collective, both less the usual value before the fault. "stated" is the records' own error. Waits are right
where the difference is no more than 5 %, the stated error, or the noise (half of its 95 % interval).
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from pairs import UNKNOWN, interval, number, options_of, print_head, print_row
from torchrun import RECORDS, ROOT, job_folder, running, torchrun, why_it_failed

RIGHT_WITHIN = 0.05
UNTOUCHED_STEPS, SETTLED_STEPS = 100, 3
"""Before the fault; after its first step, when a rank gets ready for it."""
START_S = 120.0

First = dict[int, dict[str, Any]]  # By step, the record of its first collective with a wait


def watch(lines: Any, first: First, late: dict[int, int]) -> None:
    """Keep the first collectives, and the late rank of each step, as records come."""
    for line in lines:
        record = json.loads(line)
        if record["type"] == "collective" and not record["not_attributed"]:
            first.setdefault(record["step"], record)
        elif record["type"] == "step" and record["late_rank"] is not None:
            late[record["step"]] = record["late_rank"]


def notes(path: Path) -> dict[int, dict[str, int]]:
    """Return what a rank wrote down, by step; the last line may be half written."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {record["step"]: record for record in map(json.loads, lines)}


def row(by: str, share: str, options: argparse.Namespace) -> list[str]:
    """Run one job; return its cells."""
    late_rank, first, late = options.ranks - 1, First(), dict[int, int]()
    with job_folder() as folder:
        paths = [folder / "lost" / f"rank-{rank}.jsonl" for rank in range(options.ranks)]
        command = torchrun(
            options.ranks, ROOT / "benchmarks/jobs/recorded_faults.py", folder / "lost", "--by", by,
            "--share", share, "--device", options.device, "--late-rank", str(late_rank), "--untouched",
            str(UNTOUCHED_STEPS), "--workload", options.workload,
        )  # fmt: skip
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with (
            running(command, env=environment, **streams) as job,
            running(RECORDS, stdout=subprocess.PIPE) as watcher,
        ):
            threading.Thread(target=watch, args=(watcher.stdout, first, late), daemon=True).start()
            until_s = time.monotonic() + START_S
            while not any(note["is_faulty"] for note in notes(paths[-1]).values()):
                if job.poll() is not None or time.monotonic() > until_s:
                    job.terminate()
                    return [why_it_failed(job.communicate()[1].decode(errors="replace"))]
                time.sleep(0.2)
            time.sleep(options.seconds)
        return compare([notes(path) for path in paths], dict(first), dict(late))


def compare(noted: list[dict[int, dict[str, int]]], first: First, late: dict[int, int]) -> list[str]:
    """Return the cells of a case."""
    fault = min(step for step, note in noted[-1].items() if note["is_faulty"])
    known = sorted(
        step
        for step, record in first.items()
        if len(record["ranks"]) == len(noted) and all(step in of_rank for of_rank in noted)
    )
    came_ns = {step: [of_rank[step]["arrived_ns"] for of_rank in noted] for step in known}
    later_ns = {step: ns[-1] - min(ns) for step, ns in came_ns.items()}
    wait_ns = {step: max(first[step]["wait_ns"]) - first[step]["wait_ns"][-1] for step in known}
    before = [step for step in known if UNTOUCHED_STEPS // 3 <= step < fault]
    after = [step for step in known if step >= fault + SETTLED_STEPS]
    if len(before) < 5 or len(after) < 5:
        return [f"{len(before)} steps before and {len(after)} after the fault were compared"]
    usual_ns = median(wait_ns[step] - later_ns[step] for step in before)
    came_later_ms = median(later_ns[step] for step in after) / 1e6
    found_ms = (median(wait_ns[step] for step in after) - usual_ns) / 1e6
    low_ns, high_ns = interval([wait_ns[step] - later_ns[step] for step in after])
    noise_ms = (high_ns - low_ns) / 2 / 1e6
    stated_ms = median(first[step]["residual_ns"] for step in after) / 1e6
    is_right = abs(found_ms - came_later_ms) <= max(RIGHT_WITHIN * came_later_ms, stated_ms, noise_ms)
    named = [rank for step, rank in late.items() if step >= fault + SETTLED_STEPS]
    return [
        number(came_later_ms, 2, " ms"), number(found_ms, 2, " ms"), number(stated_ms, 2, " ms"),
        number(noise_ms, 2, " ms"), "yes" if is_right else "no",
        f"{named.count(len(noted) - 1) / len(named):.0%}" if named else UNKNOWN, str(len(after)),
    ]  # fmt: skip


def main() -> None:
    """Print a row a case."""
    parser = options_of(__doc__)
    parser.add_argument("--by", default="sleep,compute,gc,loader", help="default: %(default)s")
    parser.add_argument("--shares", default="0.05,0.2,1", help="of a step, default: %(default)s")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workload", default="ddp", help="with its options")
    parser.add_argument("--seconds", type=float, default=12.0, help="from the first faulty step on")
    options = parser.parse_args()
    print_head("fault", "share", "came later", "found", "stated", "noise", "right", "right rank", "steps")
    for by, share in itertools.product(options.by.split(","), options.shares.split(",")):
        print(f"{by} {share} ...", file=sys.stderr)
        print_row(by, f"{float(share):.0%}", *row(by, share, options))


if __name__ == "__main__":
    main()
