"""Who waits for whom between two hosts whose clocks are apart: is it right within its error, or refused?

    PYTHONPATH=. python benchmarks/two_clocks.py [--seconds 20]        (root, iproute2)

The hosts are two network namespaces, each with a rank, a hub and a relay of its own; they are watched as
``overlaptop --via "ip netns exec ..."`` does. They share a kernel and so its clocks: all processes of the
second host get a ``time.time_ns`` and a ``time.monotonic_ns`` that are shifted and run fast (its
sitecustomize). Rank 1, there, sleeps SLEEP_MS in each step, and each rank notes by the kernel's clock when
it comes to each collective: that is what rank 0 has to wait, on any clock.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from two_hosts import job_across, two_hosts

from overlaptop.commands.hosts import Hosts, connect
from overlaptop.fleet.cluster_session import HostsSession
from overlaptop.fleet.waits import StepWaits
from overlaptop.remote.targets import Target

SLEEP_MS = 20
STEP_MS = 100
CLOCKS = ((0, 0.0), (50_000_000, 0.0), (50_000_000, 200e-6))
"""By how much the second host's clock is ahead, ns, and by how much it runs fast, ns a ns."""
SETTLE_S = 5.0

JOB = f"""
import sys, time
from time import clock_gettime_ns, CLOCK_MONOTONIC
import torch, torch.distributed as dist
import overlaptop.agent

dist.init_process_group("gloo")
gradient = torch.ones(1 << 16)
noted = open(f"{{sys.argv[1]}}/came-{{dist.get_rank()}}", "w", buffering=1)
for step in range(100_000):
    time.sleep(({STEP_MS} + {SLEEP_MS} * dist.get_rank()) / 1e3)
    noted.write(f"{{clock_gettime_ns(CLOCK_MONOTONIC)}}\\n")
    dist.all_reduce(gradient)
    overlaptop.agent.step()
"""

CLOCK = """
import time

def apart(clock, ahead_ns):
    return lambda: clock() + ahead_ns + round(FAST * (monotonic_ns() - BEGAN_NS))

monotonic_ns = time.monotonic_ns
time.time_ns, time.monotonic_ns = apart(time.time_ns, AHEAD_NS), apart(monotonic_ns, 0)
"""


@contextmanager
def watched(folder: Path, ahead_ns: int, fast: float) -> Iterator[HostsSession]:
    """The job on both hosts, the second one's clock so far ahead and so fast."""
    clock = folder / "clock"
    clock.mkdir()
    values = f"AHEAD_NS, FAST, BEGAN_NS = {ahead_ns}, {fast}, {time.monotonic_ns()}\n"
    (clock / "sitecustomize.py").write_text(values + CLOCK)
    (folder / "job.py").write_text(JOB)
    with ExitStack() as stack:
        names = stack.enter_context(two_hosts("10gbit"))
        alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        environments = [{**alone, "OVERLAPTOP_DIR": str(folder / name)} for name in names]
        environments[1]["PYTHONPATH"] = f"{clock}:{os.environ.get('PYTHONPATH', '')}"
        script = [str(folder / "job.py"), str(folder)]
        stack.enter_context(job_across(names, script, folder / "log", environments))
        prefixes = [
            " ".join(("ip netns exec", name, "env", *(f"{key}={value}" for key, value in own.items())))
            for name, own in zip(names, environments, strict=True)
        ]
        until_s = time.monotonic() + 60
        while not all((folder / f"came-{rank}").exists() for rank in (0, 1)):
            if time.monotonic() > until_s:
                raise SystemExit((folder / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.2)
        session = connect(Hosts(tuple(map(Target.via, prefixes)), python=sys.executable))
        stack.callback(session.close)
        yield session


def measure(folder: Path, ahead_ns: int, fast: float, seconds: float) -> str:
    """What was found, as a line of the table."""
    steps: list[StepWaits] = []
    offsets_ns: list[int] = []
    with watched(folder, ahead_ns, fast) as session:
        until_s = time.monotonic() + SETTLE_S + seconds
        while time.monotonic() < until_s:
            snapshot = session.tick()
            session.watch([view.rank for view in snapshot.ranks])
            steps += snapshot.fresh_waits
            offsets_ns = [node.offset_ns for node in snapshot.nodes if node.offset_ns is not None]
            session.pause(0.1)
    came = [[int(line) for line in (folder / f"came-{rank}").read_text().split()] for rank in (0, 1)]
    wrong_ns, stated_ns, late, refused = [], [], 0, 0
    for waits in steps:
        for each in waits.collectives:
            if each.unsplit:
                refused += 1
                continue
            late += each.late_rank == 1
            at = waits.step + 1  # the first step begins where the first collective has ended
            true_ns = came[1][at] - came[0][at]
            wrong_ns.append(abs((each.wait_ns(0) or 0) - max(0, true_ns)))
            stated_ns.append(each.clock_error_ns)
    if not wrong_ns:
        return f"none of {refused} collectives is split"
    beyond_ns = [
        wrong - stated for wrong, stated in zip(wrong_ns, stated_ns, strict=True) if wrong > stated
    ]
    return (
        f"{len(wrong_ns)} split, {refused} refused; rank 1 late in {late}; wrong by "
        f"{median(wrong_ns) / 1e6:.2f} ms in the median, {max(wrong_ns) / 1e6:.2f} at most; stated "
        f"±{median(stated_ns) / 1e6:.2f}; beyond it in {len(beyond_ns)}, "
        f"by {max(beyond_ns, default=0) / 1e6:.2f} ms at most; "
        f"offsets {', '.join(f'{ns / 1e6:.2f}' for ns in offsets_ns)} ms"
    )


def main() -> None:
    """A line for each pair of clocks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    for ahead_ns, fast in CLOCKS:
        with tempfile.TemporaryDirectory(prefix="ot-") as folder:
            told = measure(Path(folder), ahead_ns, fast, options.seconds)
        print(f"{ahead_ns / 1e6:.0f} ms ahead, {fast * 1e6:.0f} ppm fast: {told}", flush=True)


if __name__ == "__main__":
    main()
