"""Machines as their agents would tell of them: messages for a FakeSession."""

from msgspec.structs import replace

from overlaptop.wire.devices import GpuLink, GpuSite, MachineFacts, Nic, NodeShare, NumaNode, Unknown
from tests.fleet import builders
from tests.fleet.builders import GB, MS, SWITCHED, T0, detail, info, status, step, welcome
from tests.fleet.fakes import FakeSession

GIB = 1 << 30
NVLINK_PEAK, PCIE_PEAK = 478 * GB, 63 * GB
NO_GPM = "the GPU has no performance counters that may be read: they need Hopper or newer"


def uuid(index):
    return f"GPU-{index:08d}-0000-4000-8000-000000000000"


def site(index, node=None, name="NVIDIA H200"):
    return GpuSite(index, uuid(index), name, f"0000:{0x1B + 16 * index:02x}:00.0", node)


def device(rank, index, links=(), **changes):
    facts = {
        "pci_bus_id": site(index).pci_bus_id, "nvlink_peak_bytes_per_s": NVLINK_PEAK,
        "pcie_peak_bytes_per_s": PCIE_PEAK, "memory_total_bytes": 141 * GIB,
    }  # fmt: skip
    return builders.device(rank, uuid(index), tuple(links), **facts | changes)


def sample(rank, at_s=0.0, *, nvlink=281.0, pcie=1.2, **changes):
    """Rates in GB/s; tx a little below rx. None: not known."""

    def both(rx):
        return (None, None) if rx is None else (round(rx * GB), round(0.94 * rx * GB))

    facts = {
        "sm_activity": 0.93, "tensor_activity": 0.41, "dram_activity": 0.38, "memory_used_bytes": 72 * GIB,
        "power_mw": 618_000, "sm_clock_hz": 1_755 * 10**6, "throttle_reasons": (),
        "nic_rx_bytes_per_s": 31 * GB, "nic_tx_bytes_per_s": 30 * GB,
    }  # fmt: skip
    return builders.sample(rank, at_s, nvlink=both(nvlink), pcie=both(pcie), **facts | changes)


def numa(rank, node=0, state="bound", **changes):
    """Bound to ``node``, of 96 CPUs, unless changes say otherwise."""
    facts = {
        "gpu_node": node, "nic": f"mlx5_{rank}", "nic_node": node,
        "cpu_set": "48-95,144-191" if node else "0-47,96-143", "cpu_nodes": (NodeShare(node, 96),),
        "threads_by_node": (NodeShare(node, 34),), "memory_policy": f"prefer:{node}",
        "state": state, "reason": f"runs on node {node} with its GPU",
    }  # fmt: skip
    return builders.numa(rank, **facts | changes)


def misplaced(rank, node=0):
    """On the other node of two than its GPU."""
    other = 1 - node
    reason = f"runs on node {other}, its GPU is on node {node}"
    facts = {"gpu_node": node, "nic_node": node, "reason": reason, "advice": "torchrun --numa-binding=node"}
    return numa(rank, other, "wrong node", **facts)


def unbound(rank, node=0):
    reason = f"may run on nodes 0 and 1, its GPU is on node {node}"
    facts = {
        "cpu_set": "0-191", "cpu_nodes": (NodeShare(0, 96), NodeShare(1, 96)), "memory_policy": "default",
        "threads_by_node": (NodeShare(0, 20), NodeShare(1, 14)), "reason": reason,
        "advice": "torchrun --numa-binding=node",
    }  # fmt: skip
    return numa(rank, node, "unbound", **facts)


def one_node(rank, cpus="0-31", **changes):
    """On a machine of one node, where there is nothing to bind to."""
    shares = (NodeShare(0, int(cpus.partition("-")[2]) + 1),)
    reason = "all CPUs are on node 0: there is nothing to choose"
    facts = {"cpu_set": cpus, "cpu_nodes": shares, "memory_policy": "default", "reason": reason}
    return numa(rank, 0, "one node", **facts | changes)


def dual_socket(host="gpu-a"):
    """Two nodes, four of eight GPUs and of eight adapters on each."""
    return MachineFacts(
        rank=0, host=host,
        numa_nodes=(
            NumaNode(0, "0-47,96-143", 1024 * GIB),
            NumaNode(1, "48-95,144-191", 1024 * GIB),
        ),
        nics=(*(Nic(f"mlx5_{n}", n // 4, 400 * 10**9) for n in range(8)), Nic("eth0", 0, 25 * 10**9)),
        gpus=tuple(site(n, n // 4) for n in range(8)),
    )  # fmt: skip


def steps_with_traffic(session, rank, *, moved_gb):
    """Forty steps of 84 ms whose collectives account for that many GB in each direction a second."""
    for number in range(40):
        totals = step(rank, number, comm=30, hidden=28 - 2 * (rank % 4), stall=rank % 4)
        moved = round(moved_gb * totals.step_ns)
        totals = replace(totals, link_tx_bytes=moved, link_rx_bytes=moved)
        session.say(replace(totals, start_ns=T0 + (number - 40) * totals.step_ns))
    session.say(replace(detail(rank, 39), start_ns=T0 - 84 * MS))


def minute_of(session, rank, *, nvlink=281.0, pcie=1.2, **changes):
    """Samples twice a second that rise and fall a little, the last one at T0."""
    for number in range(120):
        at_s = (number - 119) / 2
        wave = 1 if at_s > -15 else 0.5 + 0.5 * abs((number % 40) - 20) / 20
        rates = {"nvlink": None if nvlink is None else nvlink * wave, "pcie": pcie * wave}
        session.say(sample(rank, at_s, **rates, **changes))


def job_of(ranks):
    return FakeSession(welcome(world_size=ranks, script="/home/me/train.py"), status())


def h200_node(ranks=8, *, numas=None, own_gb=270.0, host="gpu-a", session=None, first=0):
    """Eight H200s on NVSwitch in two sockets; rank r on GPU r. ``numas``: by rank, other than bound."""
    session = session or job_of(ranks)
    for local in range(ranks):
        rank = first + local
        session.say(info(rank, host=host, local_rank=local))
        steps_with_traffic(session, rank, moved_gb=own_gb)
        session.say(replace(dual_socket(host), rank=rank))
        session.say(device(rank, local, SWITCHED))
        session.say((numas or {}).get(local) or numa(rank, local // 4))
        minute_of(session, rank, nvlink=281 - 4 * local, pcie=1.2 + 0.1 * local)
    return session


def workstation():
    """Two consumer GPUs in one socket, no NVLink, one of them in a narrow slot; no performance counters."""
    session = job_of(2)
    reasons = tuple(Unknown(name, NO_GPM) for name in ("tensor_activity", "dram_activity"))
    machine = MachineFacts(
        0, "desk", (NumaNode(0, "0-31", 128 * GIB),), (Nic("enp5s0", 0, 10**10),),
        (site(0, 0, "NVIDIA RTX 4090"), site(1, 0, "NVIDIA RTX 4090")),
    )  # fmt: skip
    for rank in range(2):
        session.say(info(rank, host="desk", device="NVIDIA RTX 4090"))
        steps_with_traffic(session, rank, moved_gb=6.0)
        session.say(replace(machine, rank=rank))
        session.say(
            device(
                rank, rank, [GpuLink("pcie", uuid(1 - rank), None, "PHB")], gpu_name="NVIDIA RTX 4090",
                nvlink_version="", nvlink_count=0, nvlink_peak_bytes_per_s=None,
                pcie_generation=4, pcie_generation_max=4, pcie_width=8 if rank else 16,
                pcie_peak_bytes_per_s=31 * GB, memory_total_bytes=24 * GIB, power_limit_mw=450_000,
            )
        )  # fmt: skip
        session.say(one_node(rank, nic="enp5s0"))
        minute_of(
            session, rank, nvlink=None, pcie=9.1, memory_used_bytes=20 * GIB, power_mw=380_000,
            tensor_activity=None, dram_activity=None, throttle_reasons=("power cap",), unknown=reasons,
            nic_rx_bytes_per_s=120 * 10**6, nic_tx_bytes_per_s=0,
        )  # fmt: skip
    return session


def cpu_only(ranks=2):
    """gloo on a machine of one node: no GPU, and nothing that would be known of one."""
    session = job_of(ranks)
    unknown = Unknown("gpus", "NVML is not installed here: there is no NVIDIA driver")
    nodes, nics = (NumaNode(0, "0-7", 16 * GIB),), (Nic("eth0", None, None),)
    for rank in range(ranks):
        session.say(info(rank, exact=False, host="laptop", device="cpu", backend="gloo", source="host"))
        session.say(*(step(rank, number, comm=30, hidden=10) for number in range(40)), detail(rank, 39))
        session.say(MachineFacts(rank, "laptop", nodes, nics, (), (unknown,)))
        facts = {"gpu_node": None, "nic": "", "nic_node": None, "threads_by_node": (NodeShare(0, 14),)}
        session.say(one_node(rank, "0-7", **facts))
    return session
