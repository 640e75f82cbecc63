"""A link is slower than its peers: fewer NVLinks, a lower PCIe rate, or a slow process group.

A group is slow if its fastest collective takes 1.5 times as long as the usual one of other groups, for the
same operation, bytes and number of ranks on one host.
"""

from statistics import median

from overlaptop import text
from overlaptop.findings.exposure import LEAST_BYTES, Exposure, exposure, step_calls
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.report.links import pcie_is_turned_down, pcie_words
from overlaptop.wire.devices import DeviceFacts

SLOWER = 1.5
FEWEST = 4  # Fewest collectives of a group


def look(evidence: Evidence) -> Findings:
    mean = exposure(evidence)
    if mean is None or not mean.costly:
        return
    most_links: dict[str, int] = {}
    for device in (view.device for view in evidence.ranks.values() if view.device is not None):
        most_links[device.gpu_name] = max(most_links.get(device.gpu_name, 0), device.nvlink_count or 0)
    for view in evidence.ranks.values():
        over = view.traffic.over if view.traffic is not None else ""
        if (own := view.device) is None:
            continue
        count, most = own.nvlink_count, most_links[own.gpu_name]
        if over == "nvlink" and count is not None and count < most:
            yield _fewer_nvlinks(view.rank, own, count, most, mean)
        if over == "pcie" and pcie_is_turned_down(view):
            yield _pcie(view.rank, own, mean)
    yield from _slow_groups(evidence, mean)


def _fewer_nvlinks(rank: int, device: DeviceFacts, count: int, most: int, mean: Exposure) -> Finding:
    return Finding(
        title=f"the GPU of rank {rank} has {count} active NVLinks of {most}: all wait for its bytes",
        measured=f"other {device.gpu_name}s of the job have {most}; {mean.describe}",
        advice="nvidia-smi nvlink --status -i "
        f"{device.pci_bus_id} shows which are down; drain the host or leave that GPU out",
        certainty=Certainty.MEASURED,
        gain_ns=round(mean.exposed_transfer_ns * (1 - count / most)),
        ranks=(rank,),
    )


def _pcie(rank: int, device: DeviceFacts, mean: Exposure) -> Finding:
    now = pcie_words(device.pcie_generation, device.pcie_width)
    most = pcie_words(device.pcie_generation_max, device.pcie_width_max)
    # Each generation doubles the rate; None counts as no difference.
    down = (device.pcie_generation_max or 0) - (device.pcie_generation or device.pcie_generation_max or 0)
    width, width_max = device.pcie_width or 1, device.pcie_width_max or device.pcie_width or 1
    return Finding(
        title=f"PCIe of rank {rank}'s GPU runs at {now} of {most} under load",
        measured=f"the job's collectives go over it; {mean.describe}",
        advice=f"reseat or replace {device.pci_bus_id}, its riser or slot; "
        f"nvidia-smi -q -i {device.pci_bus_id} shows replays",
        certainty=Certainty.MEASURED,
        gain_ns=round(mean.exposed_transfer_ns * (1 - 0.5**down * width / width_max)),
        ranks=(rank,),
    )


def _slow_groups(evidence: Evidence, mean: Exposure) -> Findings:
    calls = step_calls(evidence)
    times_ns: dict[tuple[str, int, int], dict[tuple[int, ...], list[int]]] = {}
    for each in calls.issued if calls is not None else ():
        size, ranks = each.bytes or 0, each.ranks
        on_one_host = evidence.is_trace or len(evidence.hosts_of(each)) == 1
        if size >= LEAST_BYTES and on_one_host:
            alike = times_ns.setdefault((each.kind, size, len(ranks)), {})
            alike.setdefault(ranks, []).append(each.least_transfer_ns)
    found: dict[tuple[int, ...], Finding] = {}
    for (kind, size, _), by_ranks in times_ns.items():
        for ranks, own_ns in by_ranks.items():
            others_ns = [ns for other, times in by_ranks.items() if not {*ranks} & {*other} for ns in times]
            if len(own_ns) < FEWEST or len(others_ns) < FEWEST:
                continue
            fastest_ns, usual_ns = min(own_ns), median(others_ns)
            if fastest_ns < SLOWER * usual_ns:
                continue
            found[ranks] = Finding(
                title=f"a link among {evidence.name(ranks)} is slow: {kind} takes at least "
                f"{text.duration(fastest_ns)}, elsewhere {text.duration(usual_ns)}",
                measured=f"{len(own_ns)} of {text.byte_count(size)} here, {len(others_ns)} in other "
                "groups of as many ranks",
                advice="nvidia-smi topo -m and nvidia-smi nvlink --status on that host; nccl-tests between "
                "those GPUs show which link",
                certainty=Certainty.LIKELY,
                gain_ns=round(mean.exposed_transfer_ns * (1 - usual_ns / fastest_ns)),
                ranks=ranks,
            )
    yield from found.values()
