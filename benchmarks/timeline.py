"""How long one step of 20,000 spans takes to break down: canonical form, clip and set algebra.

Run it as ``python benchmarks/timeline.py``. The agent does this beside the job: it must stay under 5 ms.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from overlaptop.timeline.overlap import break_down
from overlaptop.timeline.spans import Spans

UNIX_NOW_NS = 1_800_000_000_000_000_000
STEP_NS = 600_000_000
LIMIT_MS = 5.0


def kernels(random: np.random.Generator, count: int) -> Spans:
    """`count` kernels on two streams over one step, shape (count, 2), in the order they ended.

    Much like what a profiler hands over: nearly sorted, overlapping across streams.
    """
    starts = np.sort(random.integers(0, STEP_NS, count))
    ends = starts + random.integers(1_000, 2 * STEP_NS // count, count)
    by_end = np.argsort(ends, kind="stable")
    return UNIX_NOW_NS + np.stack((starts, ends), axis=1)[by_end]


def main() -> int:
    """Print median and spread; 1 when the median is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--spans", type=int, default=20_000, help="spans a step (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=200, help="measurements (default: %(default)s)")
    options = parser.parse_args()

    random = np.random.default_rng(0)
    lanes = [kernels(random, options.spans * tenths // 10) for tenths in (7, 2, 1)]
    took_ms = []
    for _ in range(options.repeats):
        began_ns = time.perf_counter_ns()
        break_down(UNIX_NOW_NS, UNIX_NOW_NS + STEP_NS, *lanes)
        took_ms.append((time.perf_counter_ns() - began_ns) / 1e6)

    median_ms = statistics.median(took_ms)
    p5_ms, *_, p95_ms = statistics.quantiles(took_ms, n=20)
    print(
        f"break down {sum(map(len, lanes)):,} spans: median {median_ms:.2f} ms, "
        f"5–95 % {p5_ms:.2f}–{p95_ms:.2f} ms, of {options.repeats} (limit {LIMIT_MS} ms)"
    )
    return int(median_ms > LIMIT_MS)


if __name__ == "__main__":
    raise SystemExit(main())
