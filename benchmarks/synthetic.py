"""A made-up DDP job: its ranks' messages, without a hub or, by way of the tests' ranks, with one."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from overlaptop.fleet.fleet import Fleet
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.jobs.record import JobRecord
from overlaptop.timeline.overlap import break_down
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.commands import Command
from overlaptop.wire.devices import DeviceSample
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

if TYPE_CHECKING:
    from tests.hubs import Rank

BUCKETS = 12
BUCKET_BYTES = 25 << 20


def greetings(ranks: int, at_ns: int) -> list[Message]:
    """What a dashboard is told of a job when it joins."""
    job, host, script = "synthetic", "gpu-a", "workloads/ddp.py"
    return [
        Welcome(PROTOCOL_VERSION, job, host, script, ranks, at_ns),
        *(
            RankInfo(
                job=job, rank=rank, local_rank=rank, world_size=ranks, host=host, pid=4000 + rank,
                script=script, device="NVIDIA H200", backend="nccl 2.28.9", source="kernels",
                source_reason="", compute_exact=True, detail_every=4, torch_version="2.13.0",
            )
            for rank in range(ranks)
        ),
    ]  # fmt: skip


class SyntheticSession:
    """The session of such a job. Steps come due by the clock, and go through the wire's codec."""

    jobs: tuple[JobRecord, ...] = ()
    job_key: str | None = "synthetic"

    def __init__(self, ranks: int = 8, steps_per_s: float = 20.0, past_s: float = 20.0) -> None:
        self._random = random.Random(7)
        self._period_ns = round(1e9 / steps_per_s)
        self._origin_ns = time.time_ns() - round(past_s * 1e9)
        self._fleet = Fleet()
        self._ranks = ranks
        self._done = 0
        self._watched: frozenset[int] = frozenset()
        paused = "torch.profiler is running: paused until it ends"
        notice = Notice(2, time.time_ns(), "warning", paused)
        for message in (*greetings(ranks, self._origin_ns), notice):
            self._take(message)
        self._fleet.set_hub_state(HubState.LIVE)

    def tick(self) -> Snapshot:
        """The steps that have come due since the last call."""
        due = (time.time_ns() - self._origin_ns) // self._period_ns
        for step in range(self._done, due):
            for rank in range(self._ranks):
                for message in self.step(rank, step):
                    self._take(message)
        self._done = due
        return self._fleet.snapshot()

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:  # noqa: ARG002
        """Detail of these ranks only."""
        self._watched = frozenset(ranks)

    def select(self, key: str) -> None:
        """There is but one job."""

    def send(self, command: Command) -> str:
        """There is nobody to receive it."""
        return f"nobody is there to {command.name}"

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
        """What a rank sends of one step, of which one in four is measured in detail."""
        draw, start_ns = self._random.gauss, self._origin_ns + step * self._period_ns
        step_ns = round(self._period_ns * (1 + abs(draw(0, 0.01)) + (0.9 if step % 97 == 60 else 0)))
        # A percent more from rank to rank, of many ranks less: the last one's buckets still have room.
        more = 0.3 * rank / max(self._ranks, 30)
        exposed_ns = round(step_ns * (0.015 + more + abs(draw(0, 0.004))))
        forward_end_ns, backward_end_ns = round(step_ns * 0.30), round(step_ns * 0.93)
        edges_ns = (0, forward_end_ns, backward_end_ns, step_ns)
        phases = tuple(map(PhaseSpan, ("forward", "backward", "optimizer"), edges_ns, edges_ns[1:]))
        forward_ns, backward_ns, optimizer_ns = (each.end_ns - each.start_ns for each in phases)
        totals = StepTotals(
            rank, step, start_ns, step_ns, None, None, None, None, None, None, None, None,
            forward_ns, backward_ns, optimizer_ns, None, None, 0,
        )  # fmt: skip
        if step % 4:
            return [totals]
        stall_ns = (backward_end_ns - exposed_ns, backward_end_ns)
        copy_ns, gap_ns = round(step_ns * 0.012), round(step_ns * 0.005)
        busy_ns = (stall_ns[0] - copy_ns) // 4
        compute = [(copy_ns + at * busy_ns, copy_ns + (at + 1) * busy_ns - gap_ns) for at in range(4)]
        compute.append((backward_end_ns, step_ns))
        first_ns = round(step_ns * 0.36)
        bucket_ns = (stall_ns[0] - first_ns) // BUCKETS
        comm = [(at, at + round(bucket_ns * 0.82)) for at in range(first_ns, stall_ns[0], bucket_ns)]
        comm[BUCKETS - 1 :] = [(comm[BUCKETS - 1][0], backward_end_ns)]
        parts = break_down(0, step_ns, np.array(compute), np.array(comm), np.array([(0, copy_ns)]))
        totals = replace(
            totals, compute_ns=parts.compute_ns, comm_ns=parts.comm_ns, hidden_ns=parts.hidden_ns,
            exposed_ns=parts.exposed_ns, compute_only_ns=parts.compute_only_ns,
            copy_only_ns=parts.copy_only_ns, idle_ns=parts.idle_ns, stall_ns=exposed_ns,
            collectives=BUCKETS, comm_bytes=BUCKETS * BUCKET_BYTES,
        )  # fmt: skip
        if rank not in self._watched:
            return [totals]
        collectives = (
            CollectiveSpan("allreduce_", BUCKET_BYTES, "default_pg", True, *span) for span in comm
        )
        detail = StepDetail(
            rank, step, start_ns, step_ns, phases, tuple(chain(*compute)), tuple(chain(*comm)),
            (0, copy_ns), stall_ns, tuple(collectives),
        )  # fmt: skip
        return [totals, detail]


class PlayedRanks:
    """Sends the totals of each step, timelines as asked for, and samples of each GPU."""

    def __init__(
        self, ranks: Sequence[Rank], steps_per_s: float, past_s: float, samples_per_s: float = 0.0
    ) -> None:
        """``ranks``: have greeted their hub. The steps of ``past_s`` seconds are sent at once."""
        self.detailed: Collection[int] = ()
        """The ranks whose timelines are sent, as the hub would tell them."""
        self._made = SyntheticSession(len(ranks), steps_per_s, past_s=past_s)
        self._made.watch(range(len(ranks)))
        self._ranks = ranks
        self._steps_per_s, self._samples_per_s = steps_per_s, samples_per_s
        self._began_s = time.monotonic() - past_s
        self._steps = self._samples = 0
        self._over = threading.Event()
        self._send()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and close the connections."""
        self._over.set()
        self._thread.join()
        for rank in self._ranks:
            rank.close()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self._send()

    def _send(self) -> None:
        passed_s = time.monotonic() - self._began_s
        steps, samples = int(passed_s * self._steps_per_s), int(passed_s * self._samples_per_s)
        for number, rank in enumerate(self._ranks):
            messages: list[Message] = []
            for step in range(self._steps, steps):
                made = self._made.step(number, step)
                messages += [
                    each for each in made if number in self.detailed or isinstance(each, StepTotals)
                ]
            messages += [_sample(number) for _ in range(self._samples, samples)]
            rank.listen()
            rank.send(*messages)
        self._steps, self._samples = steps, samples


def _sample(rank: int) -> DeviceSample:
    return DeviceSample(
        rank, time.time_ns(), 281_000_000_000, 280_000_000_000, 1_200_000_000, 900_000_000, 0.94, 0.51,
        0.62, 1 << 36, 650_000, 1_700_000_000, 3_201_000_000, (), (),
    )  # fmt: skip
