"""Time ``overlaptop analyze`` against HolisticTraceAnalysis, on the same traces in the same run.

    python benchmarks/analyze.py TRACES --hta-python VENV/bin/python [--repeats 9]

TRACES is a folder with one trace a rank, VENV an environment with HolisticTraceAnalysis 0.5.0. Both sides
run in a Python that has imported what it needs, read the files each time, and take turns. Exit status 1
where their overlaps differ, or ours is not ten times as fast.
"""

import json
import math
import subprocess
import time
from pathlib import Path
from statistics import median

from pairs import options_of, spread

from overlaptop.formats.job import analyze
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


def ask(theirs: subprocess.Popen[str]) -> tuple[float, dict[int, float]]:
    """Return the seconds that one analysis of theirs took, and the overlap of each rank in percent."""
    assert theirs.stdin is not None
    assert theirs.stdout is not None
    theirs.stdin.write("\n")
    theirs.stdin.flush()
    for line in theirs.stdout:
        if line.startswith("ANSWER "):
            took_s, answer = json.loads(line.removeprefix("ANSWER "))
            return took_s, {int(rank): percent for rank, percent in answer.items()}
    raise SystemExit("HolisticTraceAnalysis gave no answer: is it installed in that environment?")


def difference(ours: float | None, theirs: float) -> float:
    """Return how far a rank's overlaps are apart, in points; without communication both have none."""
    if ours is None or math.isnan(theirs):
        return 0.0 if ours is None and math.isnan(theirs) else math.inf
    return abs(100 * ours - theirs)


def main() -> int:
    """Print medians and ranges; return 1 where the overlaps differ or the ratio is too small."""
    parser = options_of(__doc__)
    parser.add_argument("traces", type=Path, metavar="TRACES", help="a folder with one trace a rank")
    parser.add_argument("--hta-python", type=Path, required=True, metavar="PYTHON")
    parser.add_argument("--repeats", type=int, default=9, help="rounds (default: %(default)s)")
    options = parser.parse_args()
    job = analyze(options.traces, LaneRules(), by_hta=True)
    files = {summary.info.rank: summary.info.script for summary in job.ranks}
    ours_ms, theirs_ms = [], []
    with subprocess.Popen(
        [options.hta_python, "-c", THEIRS, json.dumps(files)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as theirs:  # fmt: skip
        _, answer = ask(theirs)  # a round for warming up, and for the overlaps
        for _ in range(options.repeats):
            began_s = time.perf_counter()
            analyze(options.traces, LaneRules(), by_hta=True)
            ours_ms.append(1e3 * (time.perf_counter() - began_s))
            theirs_ms.append(1e3 * ask(theirs)[0])
    size_mb = sum(Path(path).stat().st_size for path in files.values()) / 1e6
    ratio = median(theirs_ms) / median(ours_ms)
    points = max(
        difference(whole.overlap, answer[summary.info.rank])
        for summary, whole in zip(job.ranks, job.whole, strict=True)
    )
    print(
        f"{options.traces}: {len(files)} ranks, {size_mb:.1f} MB: overlaptop {spread(ours_ms, 0)} ms, "
        f"HTA {spread(theirs_ms, 0)} ms: {ratio:.1f} times; overlaps differ by {points:.3f} points at most"
    )
    return int(ratio < TIMES_FASTER or points > POINTS)


if __name__ == "__main__":
    raise SystemExit(main())
