"""What a connection to another host carries: bytes a second, and the share of a core that its relay takes.

A real hub and a real ``overlaptop relay --stdio``; the ranks are played by the tests' helpers, with the
messages of benchmarks/dashboard.py: totals of each step, a timeline of each fourth, two samples of each GPU
a second. Three ways to look at the job, one after the other.

    PYTHONPATH=. python benchmarks/relay_bytes.py [--ranks N] [--steps-per-s HZ] [--seconds S] [--past-s S]
"""

from __future__ import annotations

import argparse
import statistics
import time
import zlib
from contextlib import ExitStack, closing

from synthetic import PlayedRanks
from terminals import cpu_s
from torchrun import job_folder

from overlaptop.wire.codec import encode, frame
from overlaptop.wire.messages import HubStatus, Join, StepDetail, StepTotals
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.relaying import RelayJobs, RelayPong
from tests.hubs import KEY, Hubs, Rank
from tests.relay.client import RelayClient, RelayProcess

SAMPLES_PER_S = 2.0


def measure(what: str, process: RelayProcess, ranks: int, seconds: float) -> str:
    """Read for so long what comes; a line of figures."""
    client, pid = process.client, process.process.pid
    client.messages.clear()
    before_bytes, before_cpu_s, began_s = client.received_bytes, cpu_s(pid), time.monotonic()
    while time.monotonic() - began_s < seconds:
        client.poll()
        time.sleep(0.01)
    took_s = time.monotonic() - began_s
    cpu_share = (cpu_s(pid) - before_cpu_s) / took_s
    squeezed = zlib.compressobj(6)
    deflated_bytes = sum(
        len(squeezed.compress(frame(encode(each))) + squeezed.flush(zlib.Z_SYNC_FLUSH))
        for each in client.messages
    )
    return (
        f"{what:32} {(client.received_bytes - before_bytes) / took_s / 1024:7.1f} KiB/s"
        f"  ({deflated_bytes / took_s / 1024:.1f} by ssh -C)"
        f"  {len(client.of(StepTotals)) / ranks / took_s:.1f} steps/s a rank, "
        f"{len(client.of(StepDetail)) / took_s:.1f} timelines/s  {cpu_share * 100:.1f} % of a core"
    )


def slow(client: RelayClient, bytes_per_s: int, seconds: float) -> str:
    """What comes, and how late, where the client reads no faster than a slow connection would let it.

    The pipe holds 64 KiB besides, as ssh and TCP hold some.
    """
    began_s, before_bytes = time.monotonic(), client.received_bytes
    lags_s: list[float] = []
    while (passed_s := time.monotonic() - began_s) < seconds:
        may_read = int(passed_s * bytes_per_s) - (client.received_bytes - before_bytes)
        client.poll(most_bytes=max(1, may_read))
        steps = client.of(StepTotals)
        if steps and passed_s > seconds / 2:
            lags_s.append(time.time() - (steps[-1].start_ns + steps[-1].step_ns) / 1e9)
            client.messages.clear()
        time.sleep(0.05)
    client.messages.clear()
    client.receive(RelayPong)
    pong = client.of(RelayPong)[-1]
    return (
        f"a connection of {bytes_per_s / 1024:g} KiB/s, all ranks' timelines: the newest step is "
        f"{statistics.median(lags_s):.1f} s old (at most {max(lags_s):.1f} s), "
        f"1 of {pong.every} is sent, {pong.dropped} frames left out"
    )


def _history(client: RelayClient, ranks: int) -> str:
    client.receive(RelayJobs, lambda jobs: bool(jobs.jobs))
    began_s, before_bytes = time.monotonic(), client.received_bytes
    client.select(KEY)
    client.receive(StepTotals)
    first_s = time.monotonic() - began_s
    client.receive(HubStatus)
    steps = len(client.of(StepTotals)) // ranks
    return (
        f"first steps after {first_s * 1000:.0f} ms, the whole history ({steps} steps a rank, "
        f"{(client.received_bytes - before_bytes) / 1024:.0f} KiB) "
        f"within {time.monotonic() - began_s:.1f} s"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps-per-s", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--past-s", type=float, default=180.0, help="of the job, before it is joined")
    options = parser.parse_args()
    with ExitStack() as stack:
        stack.enter_context(job_folder())
        hubs = Hubs()
        stack.callback(hubs.end_all)
        hubs.start()
        ranks = [Rank(number).greet() for number in range(options.ranks)]
        job = PlayedRanks(ranks, options.steps_per_s, options.past_s, SAMPLES_PER_S)
        stack.callback(job.close)
        process = stack.enter_context(closing(RelayProcess()))
        print(f"{options.ranks} ranks at {options.steps_per_s:g} steps/s each")
        print(_history(process.client, options.ranks))
        _show_all(process, job, options.ranks, options.seconds)


def _show_all(process: RelayProcess, job: PlayedRanks, ranks: int, seconds: float) -> None:
    client = process.client
    for what, detail_ranks in (
        ("watched: no timeline", ()),
        ("in detail: one rank's timelines", (0,)),
        ("in detail: all ranks' timelines", tuple(range(ranks))),
    ):
        job.detailed = range(ranks) if detail_ranks else ()
        client.send(Join(PROTOCOL_VERSION, detail_ranks))
        for _ in range(200):  # two seconds for what is still under way
            client.poll()
            time.sleep(0.01)
        print(measure(what, process, ranks, seconds))
    for bytes_per_s in (16 << 10, 4 << 10):
        print(slow(client, bytes_per_s, 4 * seconds))


if __name__ == "__main__":
    main()
