"""How long it takes from the end of a step to a dashboard's screen, and how often each rank is measured.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/ddp.py &
    python benchmarks/step_to_screen.py [--seconds 60]

Reads the machine's running job as a dashboard does that shows every rank, four times a second.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from contextlib import closing
from itertools import pairwise

from overlaptop.commands.jobs import join

PAINT_S = 0.25


def main() -> None:
    """Print a line for the job and one for each rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--settle", type=float, default=25.0, help="before that, for the cost to be learnt")
    options = parser.parse_args()
    late_s: list[float] = []
    ends_s: defaultdict[int, list[float]] = defaultdict(list)
    steps: defaultdict[int, int] = defaultdict(int)
    with closing(join(None, None, wait=True)) as session:
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < options.settle + options.seconds:
            snapshot = session.tick()
            session.watch({view.rank for view in snapshot.ranks})
            now_s = time.time()
            for step in snapshot.fresh if passed_s > options.settle else ():
                end_s = (step.start_ns + step.step_ns) / 1e9
                late_s.append(now_s - end_s)
                steps[step.rank] += 1
                if step.measured:
                    ends_s[step.rank].append(end_s)
            time.sleep(PAINT_S)
        cost = snapshot.totals.own_cost
    late_s.sort()
    print(
        f"steps {len(late_s)}, to the screen: median {statistics.median(late_s):.2f} s, "
        f"99 % within {late_s[int(len(late_s) * 0.99)]:.2f} s; own cost {cost}"
    )
    for rank, ends in sorted(ends_s.items()):
        gaps_s = sorted(later - earlier for earlier, later in pairwise(ends))
        print(
            f"rank {rank}: {len(ends) / steps[rank]:.0%} of {steps[rank]} steps measured, "
            f"{statistics.median(gaps_s):.2f} s apart (median), {gaps_s[-1]:.2f} s at most"
        )


if __name__ == "__main__":
    main()
