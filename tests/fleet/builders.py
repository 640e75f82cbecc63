"""Messages as a hub sends them, made of a few words; and a clock that only tests move."""

from dataclasses import replace

from overlaptop.wire.messages import (
    PROTOCOL_VERSION,
    CollectiveSpan,
    HubStatus,
    PhaseSpan,
    RankInfo,
    StepDetail,
    StepTotals,
    Welcome,
)

MS = 1_000_000
S = 1_000_000_000
T0 = 1_700_000_000 * S


class Clock:
    """Unix time in ns, and a monotonic clock in seconds, moving together."""

    def __init__(self) -> None:
        self.at_ns = T0

    def __call__(self) -> int:
        return self.at_ns

    def monotonic_s(self) -> float:
        return (self.at_ns - T0) / 1e9

    def pass_s(self, seconds: float) -> None:
        self.at_ns += round(seconds * S)


def welcome(job="job-1", world_size=2, protocol=PROTOCOL_VERSION, script="train.py"):
    return Welcome(protocol, job, "gpu-a", script, world_size, T0)


def info(rank=0, *, exact=True, pid=None, **changes):
    made = RankInfo(
        job="job-1", rank=rank, local_rank=rank, world_size=2, host="gpu-a", pid=pid or 1000 + rank,
        script="train.py", device="NVIDIA H200", backend="nccl 2.28.9",
        source="kernels" if exact else "events",
        source_reason="", compute_exact=exact, detail_every=1, torch_version="2.13.0",
    )  # fmt: skip
    return replace(made, **changes)


def step(rank=0, number=0, *, compute=60, comm=30, hidden=20, copy=0, idle=10, stall=10, **changes):
    """A measured step; times in ms. The parts and the step follow from one another."""
    exposed = comm - hidden
    length_ns = round((compute + exposed + copy + idle) * MS)
    made = StepTotals(
        rank=rank, step=number, start_ns=T0 + number * length_ns, step_ns=length_ns,
        compute_ns=round(compute * MS), comm_ns=round(comm * MS), hidden_ns=round(hidden * MS),
        exposed_ns=round(exposed * MS), compute_only_ns=round((compute - hidden) * MS),
        copy_only_ns=round(copy * MS), idle_ns=round(idle * MS), stall_ns=round(stall * MS),
        forward_ns=None, backward_ns=None, optimizer_ns=None, collectives=3, comm_bytes=3 << 20, dropped=0,
    )  # fmt: skip
    return replace(made, **changes)


def unmeasured(rank=0, number=0, ms=80):
    lanes = (
        "compute_ns", "comm_ns", "hidden_ns", "exposed_ns", "compute_only_ns", "copy_only_ns", "idle_ns",
        "stall_ns", "collectives", "comm_bytes",
    )  # fmt: skip
    return replace(step(rank, number), step_ns=ms * MS, **dict.fromkeys(lanes))


def detail(rank=0, number=0):
    """80 ms: compute up to 40 and from 50, one all-reduce hidden, one half hidden, a stall in between."""
    return StepDetail(
        rank=rank, step=number, start_ns=T0, step_ns=80 * MS,
        phases=(PhaseSpan("forward", 0, 20 * MS), PhaseSpan("backward", 20 * MS, 60 * MS),
                PhaseSpan("optimizer", 60 * MS, 80 * MS)),
        compute_spans_ns=(0, 40 * MS, 50 * MS, 80 * MS),
        comm_spans_ns=(20 * MS, 30 * MS, 35 * MS, 45 * MS),
        copy_spans_ns=(),
        stall_spans_ns=(40 * MS, 50 * MS),
        collectives=(
            CollectiveSpan("allreduce_", 25 << 20, "default_pg", True, 20 * MS, 30 * MS),
            CollectiveSpan("_allgather_base_", 512, "tp", False, 35 * MS, 45 * MS),
        ),
    )  # fmt: skip


def status(*, ended=False, dropped=0):
    return HubStatus(at_ns=T0, ranks_connected=2, dropped=dropped, job_ended=ended)
