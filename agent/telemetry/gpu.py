"""The facts of one GPU by NVML: its links, their peaks, and its place in the machine.

A quantity that NVML refuses is None, with the reason in `DeviceFacts.unknown`. The others are unaffected.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from overlaptop.agent.telemetry.numa import GpuPlace
from overlaptop.agent.telemetry.nvml import HZ_PER_MHZ, Nvml, NvmlError, pci_bus_id
from overlaptop.agent.telemetry.rates import PAYLOAD_BYTES, WRITE_BYTES
from overlaptop.wire.devices import DeviceFacts, GpuLink, GpuSite, Unknown

T = TypeVar("T")

_PLAIN = {
    "pcie_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "pcie_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
    "power_limit_mw": "nvmlDeviceGetEnforcedPowerLimit",
}
"""NVML functions for fields of DeviceFacts, of which some may change."""

_PCIE_LANES = {
    1: (2_500_000_000, 8, 10),
    2: (5_000_000_000, 8, 10),
    3: (8_000_000_000, 128, 130),
    4: (16_000_000_000, 128, 130),
    5: (32_000_000_000, 128, 130),
    6: (64_000_000_000, 1, 1),
}
"""By generation: transfers per second, and the line code as payload bits of total bits."""

_NODE_SET_WORDS = 16  # Words of 64 nodes: the kernel supports 1,024 nodes at most

_NVLINK_VERSIONS = {
    (6, 0): "1.0",
    (7, 0): "2.0",
    (7, 5): "2.2",
    (8, 0): "3.0",
    (8, 6): "3.1",
    (9, 0): "4.0",
    (10, 0): "5.0",
    (10, 3): "5.0",
}
"""By compute capability. nvmlDeviceGetNvLinkVersion is unreliable: an H200 answers 6, which is nvml.h's
4.0, but an A100 answers 5, which would be 3.1."""


def without_nvml(rank: int, name: str, bus_id: str, reason: str) -> DeviceFacts:
    """Return the facts of a rank without a GPU, or whose GPU NVML does not show."""
    known = {"rank": rank, "gpu_name": name, "pci_bus_id": bus_id, "unknown": ()}
    unknown = tuple(Unknown(each, reason) for each in DeviceFacts.__struct_fields__ if each not in known)
    fields: dict[str, Any] = dict.fromkeys(DeviceFacts.__struct_fields__)
    fields |= {"gpu_uuid": "", "nvlink_version": "", "links": ()} | known | {"unknown": unknown}
    return DeviceFacts(**fields)


def place(nvml: Nvml, site: GpuSite) -> GpuPlace:
    return GpuPlace(site.pci_bus_id, _memory_affinity(nvml, site), _memory_node(nvml, site))


def _memory_affinity(nvml: Nvml, site: GpuSite) -> tuple[int, ...]:
    try:
        scope = nvml.library.NVML_AFFINITY_SCOPE_NODE
        words = nvml.call("nvmlDeviceGetMemoryAffinity", nvml.handle(site.uuid), _NODE_SET_WORDS, scope)
    except (NvmlError, AttributeError):
        return ()
    return tuple(64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1)


def _memory_node(nvml: Nvml, site: GpuSite) -> int | None:
    try:
        node = int(nvml.call("nvmlDeviceGetNumaNodeId", nvml.handle(site.uuid)))
    except NvmlError:
        return None
    return node if node >= 0 else None


class GpuFacts:
    """Reads one GPU's facts: all of them once, later only those that may change."""

    def __init__(self, nvml: Nvml, rank: int, site: GpuSite, gpus: Sequence[GpuSite]) -> None:
        """``gpus``: all GPUs that NVML shows. Raises NvmlError if this GPU cannot be reached."""
        self._rank = rank
        self._site = site
        self._gpus = gpus
        self._library = nvml.library
        self._nvml = nvml
        self._handle = nvml.handle(site.uuid)
        self._unknown: dict[str, str] = {}

    def read(self) -> DeviceFacts:
        ask = self._ask
        active = ask("nvlink_count", self._active_links)
        plain = self._plain()
        figures: dict[str, Callable[[], int]] = {
            "nvlink_peak_bytes_per_s": lambda: self._nvlink_peak(active),
            "pcie_peak_bytes_per_s": lambda: _pcie_peak(
                plain["pcie_generation_max"], plain["pcie_width_max"]
            ),
            "memory_total_bytes": lambda: self._call("nvmlDeviceGetMemoryInfo").total,
            "sm_clock_max_hz": partial(self._clock_max, self._library.NVML_CLOCK_SM),
            "memory_clock_max_hz": partial(self._clock_max, self._library.NVML_CLOCK_MEM),
        }
        others: dict[str, Any] = {name: ask(name, figure) for name, figure in figures.items()}
        peers = (gpu.uuid for gpu in self._gpus if gpu.uuid != self._site.uuid)
        pcie_links = (GpuLink("pcie", uuid, None, "") for uuid in peers)
        return DeviceFacts(
            rank=self._rank,
            gpu_uuid=self._site.uuid,
            gpu_name=self._site.name,
            pci_bus_id=self._site.pci_bus_id,
            nvlink_version=ask("nvlink_version", lambda: self._nvlink_version(active)) or "",
            nvlink_count=None if active is None else len(active),
            **others,
            links=(*self._nvlinks(active), *pcie_links),
            **plain,
            unknown=self._reasons(),
        )

    def read_again(self, facts: DeviceFacts) -> DeviceFacts:
        return replace(facts, **self._plain(), unknown=self._reasons())

    def _plain(self) -> dict[str, Any]:
        return {field: self._ask(field, partial(self._call, name)) for field, name in _PLAIN.items()}

    def _reasons(self) -> tuple[Unknown, ...]:
        return tuple(Unknown(name, reason) for name, reason in self._unknown.items())

    def _call(self, function: str, *arguments: Any) -> Any:
        return self._nvml.call(function, self._handle, *arguments)

    def _ask(self, name: str, ask: Callable[[], T]) -> T | None:
        self._unknown.pop(name, None)
        try:
            return ask()
        except NvmlError as refusal:
            self._unknown[name] = str(refusal)
            return None

    def _clock_max(self, domain: int) -> int:
        return HZ_PER_MHZ * int(self._call("nvmlDeviceGetMaxClockInfo", domain))

    def _active_links(self) -> tuple[int, ...]:
        """Return the numbers of the active NVLinks; raises NvmlError if none of them answers.

        NVML refuses a link that the GPU lacks in one of two ways. Such links may lie between existing ones.
        """
        states: dict[int, int] = {}
        puzzling = None
        for link in range(self._library.NVML_NVLINK_MAX_LINKS):
            try:
                states[link] = self._call("nvmlDeviceGetNvLinkState", link)
            except NvmlError as refusal:
                if not refusal.means_none:
                    puzzling = refusal
        if puzzling is not None and not states:
            raise puzzling
        return tuple(link for link, state in states.items() if state == 1)

    def _nvlink_version(self, active: Sequence[int] | None) -> str:
        if not self._known(active):
            return ""
        capability = tuple(self._call("nvmlDeviceGetCudaComputeCapability"))
        if capability not in _NVLINK_VERSIONS:
            raise NvmlError(f"not known for compute capability {'.'.join(map(str, capability))}")
        return _NVLINK_VERSIONS[capability]

    def _nvlink_peak(self, active: Sequence[int] | None) -> int:
        links = self._known(active)
        if not links:
            raise NvmlError("no NVLink is up")
        field = self._library.NVML_FI_DEV_NVLINK_GET_SPEED
        values = self._call("nvmlDeviceGetFieldValues", [(field, link) for link in links])
        return sum(1_000_000 * self._nvml.number(value) for value in values)

    def _known(self, active: Sequence[int] | None) -> Sequence[int]:
        if active is None:
            raise NvmlError(self._unknown["nvlink_count"])
        return active

    def _nvlinks(self, active: Sequence[int] | None) -> list[GpuLink]:
        # All or none: some of the links would look like all of them.
        ends = self._ask("links", lambda: Counter(map(self._end_of, self._known(active))))
        return [GpuLink(kind, uuid, count, "") for (kind, uuid), count in (ends or {}).items()]

    def _end_of(self, link: int) -> tuple[str, str]:
        kind = self._call("nvmlDeviceGetNvLinkRemoteDeviceType", link)
        if kind == self._library.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return "nvswitch", ""
        if kind != self._library.NVML_NVLINK_DEVICE_TYPE_GPU:
            raise NvmlError(f"NVLink {link} leads to neither a GPU nor a switch")
        other = pci_bus_id(self._call("nvmlDeviceGetNvLinkRemotePciInfo", link).busId)
        for site in self._gpus:
            if site.pci_bus_id == other:
                return "nvlink", site.uuid
        raise NvmlError(f"NVLink {link} leads to a GPU that is not shown here, {other}")


def _pcie_peak(generation: int | None, width: int | None) -> int:
    """Return the peak payload rate in one direction, in full write packets."""
    if generation is None or width is None:
        raise NvmlError("generation or width is not known")
    if generation not in _PCIE_LANES:
        raise NvmlError(f"PCIe {generation}.0 is not known here")
    transfers_per_s, of_code, code = _PCIE_LANES[generation]
    packet_bytes = PAYLOAD_BYTES + WRITE_BYTES
    return transfers_per_s * width * of_code * PAYLOAD_BYTES // (code * 8 * packet_bytes)
