"""Messages as a hub sends them, made of a few words; and a clock that only tests move."""

from dataclasses import asdict

from msgspec.structs import replace

from overlaptop.timeline.overlap import break_down, stalls
from overlaptop.timeline.spans import difference, flatten, from_pairs, length_ns, union
from overlaptop.wire.commands import CommandReport
from overlaptop.wire.devices import DeviceFacts, DeviceSample, GpuLink, MachineFacts, NodeShare, NumaFacts
from overlaptop.wire.knobs import Knob
from overlaptop.wire.messages import (
    CollectiveSpan,
    HubStatus,
    PhaseSpan,
    RankInfo,
    StackLine,
    StackSamples,
    StepDetail,
    StepTotals,
    Welcome,
)
from overlaptop.wire.protocol import PROTOCOL_VERSION

MS = 1_000_000
S = 1_000_000_000
T0 = 1_700_000_000 * S
GB = 1_000_000_000
BUCKET_CAP_MB = Knob(
    "bucket_cap_mb", 25, "25", "25", 1, 10_000, unit="MiB", owner="DistributedDataParallel"
)


class Clock:
    """Unix time in ns, and a monotonic clock in seconds, moving together."""

    def __init__(self):
        self.at_ns = T0

    def __call__(self):
        return self.at_ns

    def monotonic_s(self):
        return (self.at_ns - T0) / 1e9

    def pass_s(self, seconds):
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
    return replace(step(rank, number), step_ns=round(ms * MS), **dict.fromkeys(lanes))


def detail(rank=0, number=0):
    """80 ms: compute up to 40 and from 50, one all-reduce hidden, one half hidden, a stall in between."""
    return StepDetail(
        rank=rank, step=number, start_ns=T0 + number * 80 * MS, step_ns=80 * MS,
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


def laid_out(rank, number, start_ns, step_ns, *, compute=(), calls=(), copies=(), fused=(), phases=()):
    """The totals and the timeline of a step, by what ran in it: spans, CollectiveSpans and PhaseSpans, in
    ns from its start.
    """
    comm, in_fused = [(each.start_ns, each.end_ns) for each in calls], from_pairs(fused)
    in_compute, in_comm, in_copies = (
        difference(from_pairs(lane), in_fused) for lane in (compute, comm, copies)
    )
    stall = stalls(0, step_ns, union(in_compute, in_fused), in_comm)
    phase_ns = {
        f"{name}_ns": sum(each.end_ns - each.start_ns for each in phases if each.name == name)
        for name in ("forward", "backward", "optimizer")
    }
    totals = StepTotals(
        rank=rank, step=number, start_ns=start_ns,
        **asdict(break_down(0, step_ns, in_compute, in_comm, in_copies, in_fused)),
        stall_ns=length_ns(stall), **phase_ns,
        collectives=len(calls), comm_bytes=sum(each.bytes for each in calls), dropped=0,
    )  # fmt: skip
    return totals, StepDetail(
        rank=rank, step=number, start_ns=start_ns, step_ns=step_ns, phases=tuple(phases),
        compute_spans_ns=flatten(in_compute), comm_spans_ns=flatten(in_comm),
        copy_spans_ns=flatten(in_copies), stall_spans_ns=flatten(stall), fused_spans_ns=flatten(in_fused),
        collectives=tuple(calls),
    )  # fmt: skip


def status(*, ended=False, dropped=0, silent=()):
    return HubStatus(at_ns=T0, ranks_connected=2, dropped=dropped, job_ended=ended, silent_ranks=silent)


def stacks(rank=0, second=0, samples=10, asleep=0, **lines):
    """A second of samples; ``lines``: names of functions with their samples, each at a line of its own.
    ``asleep``: so many of the first line's found the thread asleep.
    """
    at_ns = T0 + second * S
    named = tuple(
        StackLine(f"train.py:{at} in {name}", lines[name], asleep if at == 1 else 0)
        for at, name in enumerate(lines, 1)
    )
    return StackSamples(rank, at_ns, at_ns + S, samples, named)


def report(rank, command, state, step=None, text="", **changes):
    return CommandReport(rank, command.id, command.name, T0, state, step, text, **changes)


def machine(rank=0, host="gpu-a"):
    return MachineFacts(rank, host, (), (), ())


SWITCHED = (GpuLink("nvswitch", "", 18, ""),)


def device(rank=0, uuid=None, links=SWITCHED, **changes):
    """An H200; `uuid` is one of its rank's own unless it is given."""
    made = DeviceFacts(
        rank=rank, gpu_uuid=f"GPU-{rank}" if uuid is None else uuid, gpu_name="NVIDIA H200",
        pci_bus_id=f"0000:{rank:02x}:00.0", nvlink_version="4.0", nvlink_count=18,
        nvlink_peak_bytes_per_s=450 * GB, pcie_generation=5, pcie_generation_max=5, pcie_width=16,
        pcie_width_max=16, pcie_peak_bytes_per_s=63 * GB, memory_total_bytes=141 * GB,
        power_limit_mw=700_000, sm_clock_max_hz=1_980_000_000, memory_clock_max_hz=3_201_000_000,
        links=links,
    )  # fmt: skip
    return replace(made, **changes)


def numa(rank=0, **changes):
    """Bound well, on node 0."""
    made = NumaFacts(
        rank=rank, gpu_node=0, gpu_memory_node=None, nic="mlx5_0", nic_node=0, cpu_set="0-31",
        cpu_nodes=(NodeShare(0, 32),), threads_by_node=(NodeShare(0, 9),), memory_policy="bind:0",
        state="bound", reason="runs on node 0 with its GPU", advice="",
    )  # fmt: skip
    return replace(made, **changes)


def sample(rank=0, at_s=0.0, *, nvlink=(20 * GB, 20 * GB), pcie=(GB, GB), **changes):
    """At so many seconds after T0; rates are (rx, tx)."""
    made = DeviceSample(
        rank=rank, at_ns=T0 + round(at_s * S), nvlink_rx_bytes_per_s=nvlink[0],
        nvlink_tx_bytes_per_s=nvlink[1], pcie_rx_bytes_per_s=pcie[0], pcie_tx_bytes_per_s=pcie[1],
        sm_activity=0.94, tensor_activity=0.5, dram_activity=0.25, memory_used_bytes=80 * GB,
        power_mw=650_000, sm_clock_hz=1_700_000_000, memory_clock_hz=3_201_000_000,
        throttle_reasons=("power cap",),
    )  # fmt: skip
    return replace(made, **changes)


def feed(fleet, *messages):
    """The fleet's snapshot after these."""
    for message in messages:
        fleet.apply(message)
    return fleet.snapshot()
