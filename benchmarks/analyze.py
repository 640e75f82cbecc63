"""How long ``overlaptop analyze`` takes against HolisticTraceAnalysis, on the same traces in the same run.

Run it as ``python benchmarks/analyze.py TRACES --hta-python VENV/bin/python``: TRACES is a folder with
one trace a rank and VENV an environment with HolisticTraceAnalysis 0.5.0, which is no dependency of this
project. Two pairs are timed, interleaved:

* inside a running Python: ``overlaptop.formats.job.analyze`` with ``--hta``'s figures against
  ``TraceAnalysis(...)`` and ``get_comm_comp_overlap()``; both read the files each time;
* as whole processes: ``overlaptop analyze TRACES --json --hta`` against a Python that imports
  HolisticTraceAnalysis and does the same.

Both must say the same of each rank. Exit status 1 when they do not, or when analysis in a running Python
is not ten times faster.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median

from pairs import spread
from torchrun import OVERLAPTOP

from overlaptop.formats.job import TracedJob, analyze
from overlaptop.timeline.lanes import LaneRules

TIMES_FASTER = 10
POINTS = 0.1

# Reads a line and answers it with seconds and overlaps, until there is no line. HolisticTraceAnalysis finds
# ranks by a pattern that traces without blanks do not match, so it is given which file is whose.
THEIRS = """
import json, logging, sys, time, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
files = {int(rank): path for rank, path in json.loads(sys.argv[1]).items()}
for _ in sys.stdin:
    began = time.perf_counter()
    found = TraceAnalysis(trace_files=dict(files)).get_comm_comp_overlap(visualize=False)
    took = time.perf_counter() - began
    answer = dict(zip(found["rank"].tolist(), found["comp_comm_overlap_pctg"].tolist()))
    print("ANSWER", json.dumps([took, answer]), flush=True)
"""


class Theirs:
    """A running Python that has imported HolisticTraceAnalysis."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self) -> tuple[float, dict[int, float]]:
        """Seconds that one analysis took, and the overlap of each rank in percent."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("ANSWER "):
                took_s, answer = json.loads(line.removeprefix("ANSWER "))
                return took_s, {int(rank): percent for rank, percent in answer.items()}
        raise SystemExit("HolisticTraceAnalysis gave no answer: is it installed in that environment?")

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def main() -> int:
    """Print medians and spreads of both pairs; 1 where figures differ or the ratio is too small."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traces", type=Path, metavar="TRACES", help="a folder with one trace a rank")
    parser.add_argument("--hta-python", type=Path, required=True, metavar="PYTHON")
    parser.add_argument("--repeats", type=int, default=9, help="rounds (default: %(default)s)")
    options = parser.parse_args()

    def ours() -> TracedJob:
        return analyze(options.traces, LaneRules(), by_hta=True)

    job = ours()
    files = {summary.info.rank: summary.info.script for summary in job.ranks}
    our_command = [*OVERLAPTOP, "analyze", str(options.traces), "--json", "--hta"]
    their_command = [str(options.hta_python), "-c", THEIRS, json.dumps(files)]
    with closing(Theirs(their_command)) as theirs:
        _, answer = theirs.ask()  # a round for warming up, and for the figures
        inside_s: list[tuple[float, float]] = []
        processes_s: list[tuple[float, float]] = []
        for _ in range(options.repeats):
            inside_s.append((seconds_of(ours), theirs.ask()[0]))
            processes_s.append(
                (seconds_of(lambda: run(our_command)), seconds_of(lambda: run(their_command)))
            )
    size_mb = sum(Path(path).stat().st_size for path in files.values()) / 1e6
    print(f"{options.traces}: {len(files)} ranks, {size_mb:.1f} MB, {options.repeats} interleaved rounds")
    ratio = report("inside a running Python", inside_s)
    report("as whole processes", processes_s)
    points = max(
        difference(whole.overlap, answer[summary.info.rank])
        for summary, whole in zip(job.ranks, job.whole, strict=True)
    )
    print(f"largest difference in overlap: {points:.3f} points")
    return int(ratio < TIMES_FASTER or points > POINTS)


def run(command: list[str]) -> None:
    """One whole process, which is asked for one analysis."""
    subprocess.run(command, input=b"\n", check=True, capture_output=True)


def seconds_of(work: Callable[[], object]) -> float:
    """How long it takes."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def difference(ours: float | None, theirs: float) -> float:
    """Of a rank's overlap, in points; of a rank without communication both have none."""
    if ours is None or math.isnan(theirs):
        return 0.0 if ours is None and math.isnan(theirs) else math.inf
    return abs(100 * ours - theirs)


def report(where: str, rounds_s: Sequence[tuple[float, float]]) -> float:
    """Print how long both took, and return how many times faster ours was."""
    ours_ms, theirs_ms = ([1e3 * each for each in times_s] for times_s in zip(*rounds_s, strict=True))
    times: float = median(theirs_ms) / median(ours_ms)
    print(f"{where}: overlaptop {spread(ours_ms, 0)} ms, HTA {spread(theirs_ms, 0)} ms: {times:.1f} times")
    return times


if __name__ == "__main__":
    raise SystemExit(main())
