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
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

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

    def __init__(self, python: Path, files: dict[int, str]) -> None:
        self.command = [str(python), "-c", THEIRS, json.dumps(files)]
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
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

    job = _ours(options.traces)
    files = {summary.info.rank: summary.info.script for summary in job.ranks}
    theirs = Theirs(options.hta_python, files)
    _, answer = theirs.ask()  # a round for warming up, and for the figures
    differences = _differences(job, answer)

    took_s: dict[str, list[float]] = {name: [] for name in ("ours", "hta", "our command", "hta's process")}
    for _ in range(options.repeats):
        took_s["ours"].append(_timed(lambda: _ours(options.traces)))
        took_s["hta"].append(theirs.ask()[0])
        took_s["our command"].append(_timed(lambda: _our_command(options.traces)))
        took_s["hta's process"].append(_timed(lambda: _their_process(theirs.command)))
    theirs.close()

    size_mb = sum(Path(path).stat().st_size for path in files.values()) / 1e6
    print(f"{options.traces}: {len(files)} ranks, {size_mb:.1f} MB, {options.repeats} interleaved rounds")
    ratio = _report("inside a running Python", took_s["ours"], took_s["hta"])
    _report("as whole processes", took_s["our command"], took_s["hta's process"])
    print(f"largest difference in overlap: {max(differences.values()):.3f} points")
    return int(ratio < TIMES_FASTER or max(differences.values()) > POINTS)


def _ours(traces: Path) -> TracedJob:
    return analyze(traces, LaneRules(), by_hta=True)


def _our_command(traces: Path) -> None:
    words = [sys.executable, "-m", "overlaptop", "analyze", str(traces), "--json", "--hta"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def _their_process(command: list[str]) -> None:
    subprocess.run(
        command, input="\n", check=True, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def _differences(job: TracedJob, answer: dict[int, float]) -> dict[int, float]:
    """Of each rank, in points; a rank without communication has none in both."""
    found = {}
    for summary, whole in zip(job.ranks, job.whole, strict=True):
        theirs, ours = answer[summary.info.rank], whole.overlap
        if ours is None or math.isnan(theirs):
            found[summary.info.rank] = 0.0 if ours is None and math.isnan(theirs) else math.inf
        else:
            found[summary.info.rank] = abs(100 * ours - theirs)
    return found


def _report(where: str, ours_s: list[float], hta_s: list[float]) -> float:
    ours, hta = statistics.median(ours_s), statistics.median(hta_s)
    print(
        f"{where}: overlaptop {ours * 1e3:.0f} ms ({min(ours_s) * 1e3:.0f} to {max(ours_s) * 1e3:.0f}), "
        f"HTA {hta * 1e3:.0f} ms ({min(hta_s) * 1e3:.0f} to {max(hta_s) * 1e3:.0f}): {hta / ours:.1f} times"
    )
    return hta / ours


if __name__ == "__main__":
    raise SystemExit(main())
