"""A job without processes: Snapshots made of a few figures, and a session that plays them."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from overlaptop.fleet.snapshot import LinkState, Snapshot
from overlaptop.wire.commands import Command, CommandReport
from overlaptop.wire.devices import DeviceFacts, DeviceSample, NodeShare, NumaFacts
from overlaptop.wire.messages import HubStatus, RankEnd, RankInfo, StepTotals, Welcome
from overlaptop.wire.schema import Message
from tests.fleet.hub import PlayedFleet

WELCOME = Welcome(
    protocol=1,
    job="abc",
    host="gpu-a",
    script="train.py",
    world_size=2,
    started_ns=1_700_000_000_000_000_000,
)


def rank_info(rank: int) -> RankInfo:
    return RankInfo(
        job="abc", rank=rank, local_rank=rank, world_size=2, host="gpu-a", pid=100 + rank,
        script="train.py", device="NVIDIA H200", backend="nccl 2.28.9", source="events",
        source_reason="", compute_exact=False,
        detail_every=1, torch_version="2.13.0",
    )  # fmt: skip


def totals(rank: int, step: int, *, comm_ns: int = 20_000_000, hidden_ns: int = 15_000_000) -> StepTotals:
    """50 ms of step, all of it compute but for what is exposed."""
    exposed_ns = comm_ns - hidden_ns
    return StepTotals(
        rank=rank, step=step, start_ns=WELCOME.started_ns + 50_000_000 * step, step_ns=50_000_000,
        compute_ns=50_000_000 - exposed_ns, comm_ns=comm_ns, hidden_ns=hidden_ns, exposed_ns=exposed_ns,
        compute_only_ns=50_000_000 - exposed_ns - hidden_ns, copy_only_ns=0, idle_ns=0, stall_ns=exposed_ns,
        forward_ns=None, backward_ns=None, optimizer_ns=None, collectives=4, comm_bytes=1000, dropped=0,
    )  # fmt: skip


def unmeasured(rank: int, step: int) -> StepTotals:
    return replace(
        totals(rank, step), compute_ns=None, comm_ns=None, hidden_ns=None, exposed_ns=None,
        compute_only_ns=None, copy_only_ns=None, idle_ns=None, stall_ns=None,
    )  # fmt: skip


def device(rank: int, uuid: str) -> DeviceFacts:
    """The rank's GPU; an empty `uuid`: it has none."""
    return DeviceFacts(
        rank=rank, gpu_uuid=uuid, gpu_name="NVIDIA H200" if uuid else "", pci_bus_id="",
        nvlink_version="4.0" if uuid else "", nvlink_count=18 if uuid else None,
        nvlink_peak_bytes_per_s=450_000_000_000 if uuid else None, pcie_generation=None,
        pcie_generation_max=None, pcie_width=None, pcie_width_max=None,
        pcie_peak_bytes_per_s=63_000_000_000 if uuid else None, memory_total_bytes=None,
        power_limit_mw=None, sm_clock_max_hz=None, memory_clock_max_hz=None, links=(),
    )  # fmt: skip


def numa(rank: int, **changes: object) -> NumaFacts:
    """Bound well, on node 0."""
    made = NumaFacts(
        rank=rank, gpu_node=0, gpu_memory_node=None, nic="", nic_node=None, cpu_set="0-31",
        cpu_nodes=(NodeShare(0, 32),), threads_by_node=(), memory_policy="default", memory_by_node=(),
        state="bound", reason="runs on node 0 with its GPU", advice="", bound="",
    )  # fmt: skip
    return replace(made, **changes)


def sample(
    rank: int, at_ns: int, *, nvlink: int | None = 281_000_000_000, pcie: int | None = 1_200_000_000
) -> DeviceSample:
    """The GPU receives so many bytes per second, and sends half of that."""
    return DeviceSample(
        rank=rank, at_ns=at_ns, nvlink_rx_bytes_per_s=nvlink,
        nvlink_tx_bytes_per_s=None if nvlink is None else nvlink // 2,
        pcie_rx_bytes_per_s=pcie, pcie_tx_bytes_per_s=None if pcie is None else pcie // 2,
        sm_activity=None, tensor_activity=None, dram_activity=None, memory_used_bytes=None, power_mw=None,
        sm_clock_hz=None, memory_clock_hz=None, throttle_reasons=None,
    )  # fmt: skip


class PlayedSession:
    """Each tick applies the next batch of messages; after the last, nothing comes any more."""

    job_key = "abc"

    def __init__(self, *batches: Sequence[Message], link: LinkState = LinkState.LIVE) -> None:
        self._batches = list(batches)
        self._now_ns = WELCOME.started_ns
        self._fleet = PlayedFleet(lambda: self._now_ns)
        self._link = link

    def tick(self) -> Snapshot:
        self._now_ns += 1_000_000_000
        for message in self._batches.pop(0) if self._batches else ():
            self._fleet.apply(message)
        self._fleet.set_link(LinkState.ENDED if self._fleet.job_ended else self._link)
        return self._fleet.snapshot()

    def watch(self, ranks: Collection[int]) -> None:
        pass

    def close(self) -> None:
        pass


def arrival() -> list[Message]:
    """Both ranks announce themselves, and there is no history."""
    return [WELCOME, rank_info(0), rank_info(1), status()]


def status() -> HubStatus:
    """The hub has sent its history."""
    return HubStatus(at_ns=0, ranks_connected=2, dropped=0, job_ended=False)


def reported(
    command: Command, rank: int, state: str, step: int | None = None, text: str = ""
) -> CommandReport:
    """How far a rank is with a command."""
    return CommandReport(rank, command.id, command.name, 0, state, step, text)


def end() -> list[Message]:
    """Both ranks leave."""
    ends: list[Message] = [RankEnd(rank=rank, at_ns=0, clean=True) for rank in (0, 1)]
    return [*ends, HubStatus(at_ns=0, ranks_connected=0, dropped=0, job_ended=True)]
