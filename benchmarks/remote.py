"""What it takes to watch a job on two hosts through ssh, and whether the job notices.

    PYTHONPATH=. python benchmarks/remote.py [--pairs 10] [--seconds 6] [--cuts 2] [--starts 5]

Needs root, an sshd, and leave to make namespaces: the hosts, and the laptop that watches them, are made of
these. All of them share this machine's cores. So that the ranks do not compete with what would run on the
laptop, that runs at the lowest priority; the relays and the sshd have theirs, as on a real host.

Step times are compared in pairs of windows of one job, watched and not watched in turn, of which every
other pair begins with the latter. How long the steps of a window without a watcher were is read from the
hub's history afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time

from pairs import interval, spread
from torchrun import OVERLAPTOP, running

from overlaptop.fleet.snapshot import HubState
from tests.remote.hosts import DDP, NODES, SMALL, Lab, RemoteJob, why_not
from tests.remote.watching import Watching

FAR = NODES[1]
RANKS = range(len(NODES))
SETTLE_S = 0.5
"""After a connection went, before its absence counts."""
WARMUP_STEPS = 50


def start_s() -> float:
    """From the start of the process to a step of each node's rank on its output."""
    began_s = time.monotonic()
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with running([*OVERLAPTOP, "--json", *NODES], **streams) as process:
        assert process.stdout is not None
        seen: set[int] = set()
        while len(seen) < len(NODES):
            seen.add(json.loads(process.stdout.readline())["rank"])
        return time.monotonic() - began_s


def cut_s(lab: Lab, seconds: float) -> tuple[float, float]:
    """From a cable's cut to the mark on the screen, and from its mending to the next step of that host."""
    with Watching(*NODES).connect() as watching:
        watching.until_all_step(len(NODES))
        lab.cables[FAR].cut()
        began_s = time.monotonic()
        watching.until(lambda _: watching.node(FAR).hub_state is HubState.LOST)
        noticed_s = time.monotonic() - began_s
        watching.go_on(seconds - noticed_s)
        lab.cables[FAR].mend()
        began_s = time.monotonic()
        watching.until(lambda _: watching.node(FAR).hub_state is HubState.LIVE)
        watching.until_all_step(len(NODES), 1)
        return noticed_s, time.monotonic() - began_s


def pair(seconds: float, *, watched_first: bool) -> float:
    """How much longer the watched steps were: the ratio of the two windows' medians."""
    began_ns: dict[bool, int] = {}
    for watched in (watched_first, not watched_first):
        if watched:
            with Watching(*NODES).connect() as watching:
                watching.session.watch(RANKS)
                watching.until_all_step(len(NODES), 1)
                began_ns[watched] = time.time_ns()
                watching.go_on(seconds)
        else:
            time.sleep(SETTLE_S)
            began_ns[watched] = time.time_ns()
            time.sleep(seconds)
    with Watching(*NODES).connect() as watching:
        until_ns = time.time_ns()
        # A hub's history comes from its oldest step on.
        watching.until(
            lambda _: all(
                watching.seen[rank] and watching.seen[rank][-1].start_ns > until_ns for rank in RANKS
            )
        )
        steps = [step for seen in watching.seen.values() for step in seen]
    medians = {
        watched: statistics.median(
            step.step_ns for step in steps if 0 <= step.start_ns - from_ns < seconds * 1e9
        )
        for watched, from_ns in began_ns.items()
    }
    return medians[True] / medians[False]


def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--starts", type=int, default=5, help="of the program; default 5")
    parser.add_argument("--cuts", type=int, default=2, help="of 30 s; default 2")
    parser.add_argument("--pairs", type=int, default=10, help="of windows; default 10")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a window; default 6")
    options = parser.parse_args()
    if why := why_not():
        raise SystemExit(f"there can be no hosts here: {why}")
    with Lab() as lab:
        os.environ["OVERLAPTOP_SSH"] = str(lab.ssh)
        words = (*SMALL, "--steps=0")
        with RemoteJob([lab.servers[name] for name in NODES], lab.folder / "job", *words, script=DDP):
            os.nice(19)
            with Watching(*NODES).connect() as watching:
                watching.until_all_step(len(NODES), WARMUP_STEPS)
            starts = [start_s() for _ in range(options.starts)]
            if starts:
                print(f"start to all ranks, s: {spread(starts)}", flush=True)
            cuts = [cut_s(lab, 30.0) for _ in range(options.cuts)]
            if cuts:
                print(f"cut to noticed, s: {spread([noticed_s for noticed_s, _ in cuts], 1)}")
                print(f"mended to steps, s: {spread([mended_s for _, mended_s in cuts], 1)}", flush=True)
            ratios = [
                pair(options.seconds, watched_first=number % 2 == 0) for number in range(options.pairs)
            ]
            if ratios:
                mean = statistics.geometric_mean(ratios)
                low, high = interval(ratios, statistics.geometric_mean)
                print(f"watched / not, of each pair: {spread(ratios, 3)}")
                print(f"watched / not: {mean:.3f} (95 % interval {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
