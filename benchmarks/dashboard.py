"""What the dashboard costs: time to first paint, and share of a core at 4 redraws a second.

Runs the real app in a pseudo-terminal of its own, reading a synthetic job (8 ranks, 20 steps a second
each, every message passed through the wire's codec, as from a hub), and prints what it used.

    python benchmarks/dashboard.py [--ranks N] [--seconds S] [--size COLUMNSxROWS]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Collection

import terminals

from overlaptop.fleet.fleet import Fleet
from overlaptop.fleet.snapshot import LinkState, Snapshot
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.commands import Command
from overlaptop.wire.endpoints import JobRecord
from overlaptop.wire.knobs import Search
from overlaptop.wire.messages import (
    CollectiveSpan,
    Notice,
    PhaseSpan,
    RankInfo,
    StepDetail,
    StepTotals,
    Welcome,
)
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.schema import Message

MS = 1_000_000
BUCKETS = 12


class SyntheticSession:
    """A DDP-like job that needs no hub: steps come due by the clock, at any rate."""

    jobs: tuple[JobRecord, ...] = ()
    job_key: str | None = "synthetic"

    def __init__(
        self, ranks: int = 8, steps_per_s: float = 20.0, exact: bool = True, past_s: float = 20.0
    ) -> None:
        self._random = random.Random(7)
        self._period_ns = round(1e9 / steps_per_s)
        self._origin_ns = time.time_ns() - round(past_s * 1e9)
        self._fleet = Fleet()
        self._ranks = ranks
        self._done = 0
        self._watched: frozenset[int] = frozenset()
        self._take(
            Welcome(PROTOCOL_VERSION, "synthetic", "gpu-a", "workloads/ddp.py", ranks, self._origin_ns)
        )
        for rank in range(ranks):
            self._take(
                RankInfo(
                    "synthetic",
                    rank,
                    rank,
                    ranks,
                    "gpu-a",
                    4000 + rank,
                    "workloads/ddp.py",
                    "NVIDIA H200",
                    "nccl 2.28.9",
                    "kernels" if exact else "events",
                    "" if exact else "no CUPTI in this torch",
                    exact,
                    4,
                    "2.13.0",
                )
            )
        self._take(Notice(2, time.time_ns(), "warning", "torch.profiler is running: paused until it ends"))
        self._fleet.set_link(LinkState.LIVE)

    def tick(self) -> Snapshot:
        """The steps that have come due since the last call."""
        due = (time.time_ns() - self._origin_ns) // self._period_ns
        for step in range(self._done, due):
            for rank in range(self._ranks):
                for message in self.step(rank, step):
                    self._take(message)
        self._done = due
        return self._fleet.snapshot()

    def watch(self, ranks: Collection[int]) -> None:
        """Detail of these ranks only."""
        self._watched = frozenset(ranks)

    def select(self, key: str) -> None:
        """There is but one job."""

    def send(self, command: Command) -> str:
        """There is nobody to receive it."""
        return f"nobody is there to {command.name}"

    def hold(self, search: Search) -> str:
        """Nor that."""
        return f"nobody is there to search for {search.knob}"

    def close(self) -> None:
        """Nothing to close."""

    def make(self, steps: int) -> None:
        """Make that many steps more and throw them away: what is not the dashboard's work."""
        for step in range(self._done, self._done + steps):
            for rank in range(self._ranks):
                for message in self.step(rank, step):
                    encode(message)

    def _take(self, message: Message) -> None:
        self._fleet.apply(decode(encode(message)))

    def step(self, rank: int, step: int) -> list[Message]:
        """What a rank sends of one step."""
        draw = self._random.gauss
        step_ns = round(self._period_ns * (1 + abs(draw(0, 0.01)) + (0.9 if step % 97 == 60 else 0)))
        forward_ns, optimizer_ns = round(step_ns * 0.30), round(step_ns * 0.07)
        backward_end_ns = step_ns - optimizer_ns
        exposed_ns = round(step_ns * (0.015 + 0.01 * rank + abs(draw(0, 0.004))))
        stall_start_ns = backward_end_ns - exposed_ns
        first_ns, span_ns = round(step_ns * 0.36), stall_start_ns - round(step_ns * 0.36)
        hidden_ns, copy_ns, idle_ns = 0, round(step_ns * 0.012), round(step_ns * 0.02)
        collectives = []
        for bucket in range(BUCKETS):
            start_ns = first_ns + span_ns * bucket // BUCKETS
            end_ns = start_ns + round(span_ns / BUCKETS * 0.82)
            if bucket == BUCKETS - 1:
                end_ns = backward_end_ns
            hidden_ns += min(end_ns, stall_start_ns) - start_ns
            collectives.append(CollectiveSpan("allreduce_", 25 << 20, "default_pg", True, start_ns, end_ns))
        measured = step % 4 == 0
        compute_ns = stall_start_ns - idle_ns - copy_ns + optimizer_ns

        def lane(ns: int) -> int | None:
            return ns if measured else None

        comm_ns = hidden_ns + exposed_ns
        start_ns = self._origin_ns + step * self._period_ns
        totals = StepTotals(
            rank, step, start_ns, step_ns,
            lane(compute_ns), lane(comm_ns), lane(hidden_ns), lane(exposed_ns),
            lane(compute_ns - hidden_ns), lane(copy_ns), lane(step_ns - compute_ns - exposed_ns - copy_ns),
            lane(exposed_ns), forward_ns, backward_end_ns - forward_ns, optimizer_ns,
            BUCKETS if measured else None, (25 << 20) * BUCKETS if measured else None, 0,
        )  # fmt: skip
        if not measured or rank not in self._watched:
            return [totals]
        gap_ns = idle_ns // 4
        compute = []
        at_ns = copy_ns
        for _ in range(4):
            compute += [at_ns, at_ns + (stall_start_ns - copy_ns) // 4 - gap_ns]
            at_ns += (stall_start_ns - copy_ns) // 4
        compute += [backward_end_ns, step_ns]
        comm = [edge for c in collectives for edge in (c.start_ns, c.end_ns)]
        phases = (
            PhaseSpan("forward", 0, forward_ns),
            PhaseSpan("backward", forward_ns, backward_end_ns),
            PhaseSpan("optimizer", backward_end_ns, step_ns),
        )
        detail = StepDetail(
            rank, step, start_ns, step_ns, phases, tuple(compute), tuple(comm), (0, copy_ns),
            (stall_start_ns, backward_end_ns), tuple(collectives),
        )  # fmt: skip
        return [totals, detail]


def show(ranks: int) -> None:
    """The app itself, in the child."""
    from overlaptop import tui

    tui.run(SyntheticSession(ranks))


def measure(ranks: int, seconds: float, columns: int, rows: int) -> tuple[float, float, int]:
    """Seconds to the first painted rank row, share of one core from then on, and bytes a second written."""
    started_s = time.monotonic()
    words = [__file__, "--child", "--ranks", str(ranks)]
    with terminals.running(words, columns, rows) as (pid, terminal):
        terminals.read_until(terminal, ["exposed", "workloads/ddp.py"], 30.0)
        painted_s = time.monotonic() - started_s
        terminals.read_for(terminal, 1.5)  # late imports belong to the start
        cpu_s, from_s = terminals.cpu_s(pid), time.monotonic()
        count = terminals.read_for(terminal, seconds)
        used = (terminals.cpu_s(pid) - cpu_s) / (time.monotonic() - from_s)
        return painted_s, used, round(count / seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--size", default="160x45")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        show(options.ranks)
        return
    columns, rows = (int(part) for part in options.size.split("x"))
    painted_s, used, byte_rate = measure(options.ranks, options.seconds, columns, rows)
    print(f"{options.ranks} ranks at 20 steps/s each, {options.size}, 4 redraws a second")
    print(f"first paint    {painted_s * 1000:.0f} ms after process start")
    session, before_s = SyntheticSession(options.ranks), time.process_time()
    session.watch(range(options.ranks))  # as the dashboard does, to split them
    session.make(400)
    making = (time.process_time() - before_s) / 400 * 20
    print(f"CPU            {(used - making) * 100:.1f} % of one core")
    print(f"               and {making * 100:.1f} % to make up the job, not counted above")
    print(f"terminal       {byte_rate / 1024:.1f} KiB/s")


if __name__ == "__main__":
    main()
