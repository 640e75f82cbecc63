"""Reads one rank's telemetry: NVML for its GPU, the kernel for everything else."""

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from overlaptop.agent.telemetry.gpu import GpuFacts, place, without_nvml
from overlaptop.agent.telemetry.nic import NicMonitor
from overlaptop.agent.telemetry.numa import GpuPlace, NumaMonitor, gpu_node
from overlaptop.agent.telemetry.nvml import Nvml, NvmlError
from overlaptop.agent.telemetry.rates import Rates
from overlaptop.agent.telemetry.topology import Topology
from overlaptop.wire.devices import DeviceFacts, DeviceSample, GpuSite, MachineFacts, NumaFacts, Unknown

NO_GPU = "the job computes on no GPU"

Facts = MachineFacts | DeviceFacts | NumaFacts


@dataclass(frozen=True, slots=True)
class JobGpu:
    """The job's GPU, as torch names it."""

    uuid: str
    """``GPU-...`` as in NVML. A MIG slice has a UUID that NVML does not list. Empty: unknown."""
    pci_bus_id: str
    """``0000:1b:00.0``; empty: unknown."""
    name: str


class MachineMonitor:
    """Monitors the machine under one rank. One thread uses it. A missing value is never an error."""

    def __init__(self, rank: int, host: str, gpu: JobGpu | None) -> None:
        """``gpu`` None: the job uses no GPU."""
        self._rank = rank
        self._host = host
        self._topology = Topology.read()
        self._nvml: Nvml | None = None
        self._gpus: tuple[GpuSite, ...] = ()
        """The GPUs that NVML shows."""
        self._gpu_facts: GpuFacts | None = None
        self._rates: Rates | None = None
        self._why_no_gpus = NO_GPU
        at: GpuPlace | None = None
        if gpu is None:  # NVML would wake idle GPUs
            self._device = without_nvml(rank, "", "", NO_GPU)
        else:
            at = GpuPlace(gpu.pci_bus_id) if gpu.pci_bus_id else None
            try:
                at = self._reach(gpu)
            except NvmlError as refusal:
                self.close()
                self._device = without_nvml(rank, gpu.name, gpu.pci_bus_id, str(refusal))
        self.numa = NumaMonitor(rank, self._topology, at)
        nic = self._topology.nic_near(at.pci_bus_id) if at is not None else None
        self._nic = NicMonitor(nic.name) if nic is not None else None

    def first_facts(self) -> Iterator[Facts]:
        """Yield all facts as they are read."""
        unknown = self._topology.unknown
        if not self._gpus:
            unknown = (*unknown, Unknown("gpus", self._why_no_gpus))
        topology = self._topology
        yield MachineFacts(self._rank, self._host, topology.nodes, topology.nics, self._gpus, unknown)
        yield self.device()
        yield self.numa.facts()

    def device(self) -> DeviceFacts:
        """Return the GPU's facts, with those that may change read again."""
        if self._gpu_facts is not None:
            self._device = self._gpu_facts.read_again(self._device)
            if self._nic is not None:
                self._device = replace(self._device, nic_errors=self._nic.errors())
        return self._device

    def sample(self) -> DeviceSample | None:
        """Return the activity of the GPU and its adapter; None if NVML shows no GPU."""
        sample = self._rates.sample() if self._rates is not None else None
        return self._nic.add_rates(sample) if sample is not None and self._nic is not None else sample

    def close(self) -> None:
        if self._rates is not None:
            self._rates.close()
        if self._nvml is not None:
            self._nvml.close()
        self._rates = self._gpu_facts = self._nvml = None

    def _reach(self, gpu: JobGpu) -> GpuPlace:
        """Find the job's GPU in NVML and read its facts; raises NvmlError."""
        try:
            self._nvml = nvml = Nvml.open()
            sites = nvml.gpus()
        except NvmlError as refusal:
            self._why_no_gpus = str(refusal)
            raise
        self._why_no_gpus = "NVML shows none"
        places = {site.uuid: place(nvml, site) for site in sites}
        self._topology = self._topology.with_gpu_memory({at.memory_node for at in places.values()})
        self._gpus = tuple(
            replace(site, numa_node=gpu_node(self._topology, places[site.uuid])) for site in sites
        )
        site = _site_of(gpu, self._gpus)
        self._gpu_facts = GpuFacts(nvml, self._rank, site, self._gpus)
        self._device = self._gpu_facts.read()
        self._rates = Rates(nvml, self._rank, nvml.handle(site.uuid), self._device.nvlink_count)
        return places[site.uuid]


def _site_of(gpu: JobGpu, sites: tuple[GpuSite, ...]) -> GpuSite:
    """Find the GPU by its UUID, else by its address; raises NvmlError if NVML shows neither."""
    for name in ("uuid", "pci_bus_id"):
        for site in sites:
            if getattr(site, name) == getattr(gpu, name) != "":
                return site
    raise NvmlError(f"NVML does not show the job's GPU ({gpu.uuid or gpu.pci_bus_id or gpu.name})")
