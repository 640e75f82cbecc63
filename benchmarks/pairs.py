"""Compare runs in interleaved pairs, and print tables. By itself: what the agent costs whole jobs.

    python benchmarks/pairs.py [--pairs 6] [--nproc 2] [--ways agent,watched] [--workload "ddp --layers 2"]

Each round runs the job once in every way, in an order that rotates. Each way's step time is divided by the
step time without the agent in the same round, so a drift of the machine does not count.

- ``agent``: as by default.
- ``watched``: while ``overlaptop --json --detail`` reads every rank's timeline, as a dashboard would.
- ``events``: the source that NVIDIA GPUs use only where CUPTI cannot be used.
"""

import argparse
import random
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

from torchrun import RECORDS, WORKLOADS, job_folder, running, torchrun

T = TypeVar("T")

RESAMPLINGS = 2000
UNKNOWN = "–"
RATIO_HEADINGS = ("step", "ratio", "95 % interval")
WARMUP_REPORTS = 2  # Of a job on its steps; one every few seconds
WAYS: dict[str, tuple[str, ...] | None] = {
    "without": None,
    "agent": (),
    "watched": (),
    "events": ("--source", "events"),
}
"""Options of the agent; None: no agent."""


def options_of(text: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a script's docstring."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def in_turn(ways: Sequence[T], rounds: int) -> Iterator[tuple[T, ...]]:
    """Yield the ways of each round, in an order that rotates: so a drift of the machine does not count."""
    for number in range(rounds):
        first = number % len(ways)
        yield (*ways[first:], *ways[:first])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of their median, by resampling."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLINGS))
    cut = RESAMPLINGS // 40
    return medians[cut], medians[-cut - 1]


def ratio_cells(step_ms: Sequence[float], without_ms: Sequence[float]) -> tuple[str, ...]:
    """Return the median step and the median of the ratios within each round, with its interval."""
    ratios = [one / other for one, other in zip(step_ms, without_ms, strict=True)]
    low, high = interval(ratios)
    ratio = number(statistics.median(ratios), 4)
    return number(statistics.median(step_ms), 2, " ms"), ratio, f"{low:.4f} .. {high:.4f}"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median and the range; a dash where there are no values."""
    if not values:
        return UNKNOWN
    middle, least, most = (f"{f(values):.{digits}f}" for f in (statistics.median, min, max))
    return f"{middle} ({least} .. {most})"


def print_head(*headings: str) -> None:
    """Print the first two lines of a Markdown table."""
    print_row(*headings)
    print_row(*("---" for _ in headings))


def print_row(*cells: str) -> None:
    """Print one line, also into a pipe at once: some rows take minutes."""
    print(f"| {' | '.join(cells)} |", flush=True)


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    """Return a cell; a dash where the value is not known."""
    return UNKNOWN if value is None else f"{value:.{digits}f}{unit}"


def step_ms(way: str, options: argparse.Namespace) -> float:
    """Run one whole job; return its step time, by when rank 0 says how many steps it has done."""
    workload, *words = options.workload.split()
    script = WORKLOADS / f"{workload}.py"
    command = torchrun(options.nproc, script, "--seconds", str(options.seconds), *words, agent=WAYS[way])
    with job_folder() as folder, (folder / "records").open("w+b") as records, ExitStack() as stack:
        if way == "watched":
            stack.enter_context(running(RECORDS, stdout=records, stderr=subprocess.DEVNULL))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        job = stack.enter_context(running(command, **pipes))
        assert job.stdout is not None
        steps = (int(line.split()[1]) for line in job.stdout if line.startswith(b"step "))
        said = [(time.monotonic(), step) for step in steps]
        if way == "watched" and b'"type": "collective"' not in (folder / "records").read_bytes():
            raise SystemExit("watched: no timelines were read")
    said = said[WARMUP_REPORTS:-1]  # the last one is of the job's end
    if len(said) < 2:
        raise SystemExit(f"{way}: the job said too little: give it more --seconds")
    (began_s, before), (ended_s, after) = said[0], said[-1]
    return (ended_s - began_s) / (after - before) * 1e3


def main() -> None:
    """Run the jobs and print one row a way."""
    parser = options_of(__doc__)
    parser.add_argument("--pairs", type=int, default=6, metavar="N")
    parser.add_argument("--nproc", type=int, default=2, metavar="N")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each job")
    parser.add_argument("--workload", default="ddp", help="with its options")
    parser.add_argument("--ways", default=",".join(way for way in WAYS if way != "without"))
    options = parser.parse_args()
    ways = ["without", *options.ways.split(",")]
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"no such way: {unknown[0]!r}; there are {', '.join(WAYS)}")
    times_ms: dict[str, list[float]] = {way: [] for way in ways}
    for order in in_turn(ways, options.pairs):
        for way in order:
            times_ms[way].append(step_ms(way, options))
    print_head("way", *RATIO_HEADINGS)
    for way in ways:
        print_row(way, *ratio_cells(times_ms[way], times_ms["without"]))


if __name__ == "__main__":
    main()
