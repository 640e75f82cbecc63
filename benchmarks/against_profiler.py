"""The live figures, against torch.profiler's traces of the same job, taken in turn with it.

    python benchmarks/against_profiler.py [--nproc 2] [--rounds 3] [--seconds 5] ["ddp --bucket-cap-mb 25"]

Each job runs with the agent. In each round its steps are watched live for some seconds, by ``overlaptop
--json --detail``, and then captured with torch.profiler and read by ``overlaptop analyze``: the same
definitions, on another's records. Overlap is pooled over ranks and steps; the times are means over them, ms
a step. Each figure is the median over the rounds with its range.

torch.profiler makes launching slower, and with it some of the steps, where ranks then wait: of either
kind only steps of the usual length count.
"""

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from pairs import options_of, print_head, print_row, spread
from torchrun import OVERLAPTOP, WORKLOADS, job_folder, running, torchrun

JOBS = ("ddp --bucket-cap-mb 1", "ddp --bucket-cap-mb 25", "ddp --bucket-cap-mb 400", "fsdp")
START_S = 90.0
CAPTURED_STEPS = 30
LONGER = 1.03  # Than the median step told live: what counts as no longer than usual

Record = dict[str, Any]
Figures = dict[str, float | None]


def figures(steps: Sequence[Record]) -> Figures:
    """Of steps that were compared between ranks. None: there are none, or most are not attributed."""
    split = [step for step in steps if 2 * step["not_attributed_ns"] < step["comm_ns"]]
    known = 2 * len(split) > len(steps)
    comm_ns, hidden_ns = (sum(step[field] for step in steps) for field in ("comm_ns", "hidden_ns"))
    return {
        "steps": float(len(steps)),
        "overlap %": 100 * hidden_ns / comm_ns if steps else None,
        "exposed ms": fmean(step["exposed_ns"] for step in steps) / 1e6 if steps else None,
        "waiting ms": fmean(step["wait_ns"] for step in split) / 1e6 if known else None,
        "transfer ms": fmean(step["transfer_ns"] for step in split) / 1e6 if known else None,
    }


def compared(lines: Iterable[str]) -> list[Record]:
    """The records among these lines of steps with communication that were compared between ranks."""
    steps = (each for each in map(json.loads, lines) if each["type"] == "step")
    return [each for each in steps if each["comm_ns"] and each["wait_ns"] is not None]


def live(seconds: float) -> list[Record]:
    """What a dashboard receives in these seconds."""
    with tempfile.TemporaryFile("w+") as records:
        with running([*OVERLAPTOP, "--json", "--detail"], stdout=records) as watcher:
            time.sleep(seconds)
            watcher.send_signal(signal.SIGINT)
            watcher.wait()
        records.seek(0)
        return compared(records)


def captured() -> list[Record]:
    """What torch.profiler's traces of the next steps say."""
    [path, *_] = output_of("capture", "--steps", str(CAPTURED_STEPS), "--json")
    return compared(output_of("analyze", str(Path(json.loads(path)["path"]).parent), "--json"))


def one_round(seconds: float) -> tuple[Figures, Figures]:
    """The live figures, and torch.profiler's of the steps behind these."""
    ours, theirs = live(seconds), captured()
    longest_ns = LONGER * median(step["step_ns"] for step in ours)

    usual = [[step for step in steps if step["step_ns"] <= longest_ns] for steps in (ours, theirs)]
    return figures(usual[0]), figures(usual[1])


def output_of(*words: str) -> list[str]:
    """The lines that one of overlaptop's commands prints."""
    done = subprocess.run([*OVERLAPTOP, *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def compare(words: str, nproc: int, rounds: int, seconds: float) -> None:
    """Print the rows of one job."""
    workload, *options = words.split()
    command = torchrun(nproc, WORKLOADS / f"{workload}.py", *options, agent=("--control",))
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with job_folder() as folder, running(command, cwd=folder, **silent) as job:
        give_up_s = time.monotonic() + START_S
        while len(live(2.0)) < 2 * nproc:
            if job.poll() is not None or time.monotonic() > give_up_s:
                raise SystemExit(f"{words}: no step was compared")
        rounds_of_both = [one_round(seconds) for _ in range(rounds)]
    for name in rounds_of_both[0][0]:
        both = [(ours[name], theirs[name]) for ours, theirs in rounds_of_both]
        known = [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]
        differences = [ours - theirs for ours, theirs in known]
        columns = [ours for ours, _ in known], [theirs for _, theirs in known], differences
        print_row(words, name, *map(spread, columns))


def main() -> None:
    """Print the table."""
    parser = options_of(__doc__)
    parser.add_argument("jobs", nargs="*", default=JOBS, help="workloads with their options")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="watched live in each round")
    options = parser.parse_args()
    print_head("job", "figure", "live", "torch.profiler", "difference")
    for words in options.jobs:
        compare(words, options.nproc, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
