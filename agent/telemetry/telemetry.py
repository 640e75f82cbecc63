"""The thread that watches the machine under the rank. The agent's own thread sends its messages.

Some NVML calls block for milliseconds. On the agent's thread they would delay measuring. A fault here ends
telemetry and nothing else.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from overlaptop.agent.isolation.fault_barrier import warn
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.isolation.threads import Thread
from overlaptop.agent.telemetry.gpu import GpuFacts, place, without_nvml
from overlaptop.agent.telemetry.nic import NicMonitor
from overlaptop.agent.telemetry.numa import GpuPlace, NumaMonitor, gpu_node
from overlaptop.agent.telemetry.nvml import Nvml, NvmlError, import_library
from overlaptop.agent.telemetry.rates import Rates
from overlaptop.agent.telemetry.topology import Topology
from overlaptop.wire.devices import DeviceFacts, DeviceSample, GpuSite, MachineFacts, Unknown
from overlaptop.wire.schema import Message

if TYPE_CHECKING:
    from overlaptop.agent.placement import RankPlacement

PERIOD_S = 0.5
FACTS_EVERY = 30
"""Periods between two reads of what may change (CPU placement, an idle link's speed): reading the placement
needs the GIL a hundred times."""
MAX_UNSENT = 64
STOP_S = 0.1  # Longest wait at the agent's end for a running NVML call
NO_GPU = "the job computes on no GPU"


@dataclass(frozen=True, slots=True)
class JobGpu:
    """The job's GPU, as torch names it."""

    uuid: str  # ``GPU-...`` as in NVML. A MIG slice has a UUID that NVML does not list. Empty: unknown.
    pci_bus_id: str  # ``0000:1b:00.0``; empty: unknown
    name: str


def until_next_s(now_s: float) -> float:
    """Return the time from this Unix time to the next sampling time, which all ranks share.

    The clock that ends a wait may be slightly early, so a sampling time just ahead counts as past.
    """
    left_s = PERIOD_S - now_s % PERIOD_S
    return left_s if left_s > PERIOD_S / 4 else left_s + PERIOD_S


class Telemetry:
    """Gathers facts and samples on a separate thread; the agent's thread passes them to the sender."""

    def __init__(self, notice: Callable[[str, str], None], *, enabled: bool) -> None:
        """``notice(level, text)`` is sent to the dashboard."""
        self._notice = notice
        self._over = not enabled
        self._followed: tuple[JobGpu | None] | None = None
        """The GPU to watch, once known. It is a new tuple each time the GPU may have changed."""
        self._ending = threading.Event()
        self._thread: Thread | None = None
        self._messages: deque[Message] = deque(maxlen=MAX_UNSENT)

    def follow(self, find: Callable[[], JobGpu | None]) -> None:
        """Watch the GPU that `find` returns, None for a job without one. On the job's thread."""
        if self._over:
            return
        try:
            found = (find(),)
            if found != (None,):
                import_library()
            if found != self._followed:
                self._followed = found
        except Exception as fault:  # torch may return anything
            if raised_by_job(fault):
                raise
            self._end(fault)

    def serve(self, put_state: Callable[[Message], None], place: "RankPlacement") -> None:
        """Start the thread if needed, and send its messages. In each round of the agent's thread."""
        if self._over or self._followed is None:
            return
        try:
            if self._thread is None and not self._ending.is_set():
                self._thread = Thread(partial(self._run, place))
            while self._messages:
                put_state(self._messages.popleft())
        except Exception as fault:  # noqa: BLE001 - the agent must go on measuring
            self._end(fault)

    def stop(self) -> None:
        """End the thread; gathered data can still be sent."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _end(self, fault: Exception) -> None:
        if self._over:
            return
        self._over = True
        self._ending.set()
        text = f"no telemetry: {type(fault).__name__}: {fault}"[:400]
        warn(text)
        self._notice("warning", text)

    def _run(self, place: "RankPlacement") -> None:
        try:
            while not self._ending.is_set():
                followed = self._followed
                assert followed is not None, "serve starts the thread when it is known"
                watch = MachineMonitor(place.rank, place.host, followed[0])
                try:
                    self._watch(watch, followed)
                finally:
                    watch.close()
        except Exception as fault:  # noqa: BLE001 - the job and the rest of the agent go on
            self._end(fault)

    def _watch(self, watch: "MachineMonitor", followed: tuple[JobGpu | None]) -> None:
        self._messages.extend(watch.first_facts())
        for period in count(1):
            if self._ending.wait(until_next_s(time())) or self._followed is not followed:
                return
            sample = watch.sample()
            if sample is not None:
                self._messages.append(sample)
            if period % FACTS_EVERY == 0:
                self._messages += (watch.device(), watch.numa.facts())


class MachineMonitor:
    """Monitors the machine under one rank: NVML for its GPU, the kernel for everything else.

    One thread uses it. A missing value is never an error.
    """

    def __init__(self, rank: int, host: str, gpu: JobGpu | None) -> None:
        self._rank = rank
        self._host = host
        self._topology = Topology.read()
        self._opened = ExitStack()
        self._gpus: tuple[GpuSite, ...] = ()
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

    def first_facts(self) -> Iterator[Message]:
        unknown = self._topology.unknown
        if not self._gpus:
            unknown = (*unknown, Unknown("gpus", self._why_no_gpus))
        yield MachineFacts(self._rank, self._host, (), self._topology.nics, self._gpus, unknown)
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
        self._opened.close()

    def _reach(self, gpu: JobGpu) -> GpuPlace:
        """Find the job's GPU in NVML and read its facts; raises NvmlError."""
        try:
            nvml = Nvml.open()
            self._opened.callback(nvml.close)
            sites = nvml.gpus()
        except NvmlError as refusal:
            self._why_no_gpus = str(refusal)
            raise
        self._why_no_gpus = "NVML shows none"
        places = {site.uuid: place(nvml, site) for site in sites}
        self._gpus = tuple(
            replace(site, numa_node=gpu_node(self._topology, places[site.uuid])) for site in sites
        )
        # By its UUID, else by its address.
        found = [site for site in self._gpus if site.uuid == gpu.uuid != ""]
        found += [site for site in self._gpus if site.pci_bus_id == gpu.pci_bus_id != ""]
        if not found:
            named = gpu.uuid or gpu.pci_bus_id or gpu.name
            raise NvmlError(f"NVML does not show the job's GPU ({named})")
        site = found[0]
        self._gpu_facts = GpuFacts(nvml, self._rank, site, self._gpus)
        self._device = self._gpu_facts.read()
        self._rates = Rates(nvml, self._rank, nvml.handle(site.uuid), self._device.nvlink_count)
        self._opened.callback(self._rates.close)
        return places[site.uuid]
