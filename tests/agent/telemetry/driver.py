"""Stands where libnvidia-ml.so.1 does, so that pynvml's own wrappers and structs are what the tests run.

Machines are made of `Gpu`s; a function whose name is in `refuse` answers that code.
"""

# ruff: noqa: N802 - the library's own names

import ctypes
from collections import Counter
from dataclasses import dataclass, field

import pynvml

GPU_LINK, SWITCH_LINK = 0, 2
NOT_SUPPORTED, NO_PERMISSION, INVALID_ARGUMENT = 3, 4, 2
LIBRARY_NOT_FOUND, GPU_IS_LOST = 12, 15
MIB = 1 << 20


@dataclass
class Gpu:
    """What one GPU answers. Bytes are what crossed since the start; times go by `Driver.now_us`."""

    uuid: str
    bus_id: str
    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    nvlinks: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Link -> the kind of its other end and that end's bus id, of the links that are up."""
    places_for_nvlinks: int = 18
    nvlink_mbps: int | None = 26562
    pcie: tuple[int, int, int, int] = (5, 5, 16, 16)
    """Generation now, at most; lanes now, at most."""
    memory: tuple[int, int, int] = (150 << 30, 1 << 30, 40 << 30)
    """Total, kept by the driver, used by processes."""
    power_mw: int = 412_000
    power_limit_mw: int = 700_000
    clocks_mhz: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {1: (1755, 1980), 2: (3201, 3201)}
    )
    throttle: int = 0
    memory_affinity: tuple[int, ...] = (0,)
    memory_node: int | None = None
    gpm: dict[int, float | int] | None = field(default_factory=dict)
    """Metric -> its value (a float) or the code (an int) of its refusal; None: no GPM."""
    pcie_kbps: tuple[int, int] = (0, 0)
    """Sent, received."""
    counters: dict[int, int | None] = field(default_factory=dict)
    """Field -> count; a missing one is not supported."""
    short_counters: tuple[int, ...] = ()
    """Fields whose counts have 32 bits, whatever the others have."""


_NUMBERS = {
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: gpu.pcie[0],
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: gpu.pcie[1],
    "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: gpu.pcie[2],
    "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: gpu.pcie[3],
    "nvmlDeviceGetPowerUsage": lambda gpu: gpu.power_mw,
    "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: gpu.power_limit_mw,
    "nvmlDeviceGetClockInfo": lambda gpu, domain: gpu.clocks_mhz[domain.value][0],
    "nvmlDeviceGetMaxClockInfo": lambda gpu, domain: gpu.clocks_mhz[domain.value][1],
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.throttle,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.throttle,
    "nvmlDeviceGetPcieThroughput": lambda gpu, direction: gpu.pcie_kbps[direction.value],
    "nvmlDeviceGetNumaNodeId": lambda gpu: gpu.memory_node,
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, link: gpu.nvlinks[link][0],
}
"""What the functions write that give one number, by what comes before its place; None: not supported."""


class Driver:
    def __init__(self, *gpus: Gpu, topology: dict[frozenset[str], int] | None = None) -> None:
        self.gpus = list(gpus)
        self.topology = topology or {}
        self.refuse: dict[str, int] = {}
        self.calls: Counter[str] = Counter()
        self.opened = 0
        self.samples: set[int] = set()
        self.now_us = 1_700_000_000_000_000
        self.between_samples_us = 0
        """So much passes before each sample of GPM, where the test does not move the clock itself."""
        self._next_sample = 0x1000
        self._taken: dict[int, tuple[int, Gpu]] = {}

    def __getattr__(self, name: str):
        function = getattr(type(self), f"_{name}", None)
        if name not in _NUMBERS and (function is None or not name.startswith("nvml")):
            raise AttributeError(name)  # as a library without this function

        def call(*arguments) -> int:
            self.calls[name] += 1
            if name in self.refuse:
                return self.refuse[name]
            if function is not None:
                return function(self, *arguments) or 0
            handle, *more, number = arguments
            answer = _NUMBERS[name](self._gpu(handle), *more)
            if answer is not None:
                number._obj.value = answer
            return NOT_SUPPORTED if answer is None else 0

        return call

    def _gpu(self, handle) -> Gpu:
        return self.gpus[ctypes.cast(handle, ctypes.c_void_p).value - 1]

    def _point(self, reference, address: int) -> None:
        target = reference._obj
        ctypes.memmove(ctypes.byref(target), ctypes.byref(ctypes.c_void_p(address)), 8)

    def _nvmlInitWithFlags(self, flags) -> None:
        self.opened += 1

    def _nvmlShutdown(self) -> None:
        self.opened -= 1

    def _nvmlSystemGetDriverVersion(self, buffer, length) -> None:
        buffer.value = b"580.95.05"

    def _nvmlDeviceGetCount_v2(self, count) -> None:
        count._obj.value = len(self.gpus)

    def _nvmlDeviceGetHandleByIndex_v2(self, index, handle) -> None:
        self._point(handle, index.value + 1)

    def _nvmlDeviceGetHandleByUUID(self, uuid, handle) -> int:
        for at, gpu in enumerate(self.gpus):
            if gpu.uuid == uuid.value.decode():
                self._point(handle, at + 1)
                return 0
        return pynvml.NVML_ERROR_NOT_FOUND

    def _nvmlDeviceGetUUID(self, handle, buffer, length) -> None:
        buffer.value = self._gpu(handle).uuid.encode()

    def _nvmlDeviceGetName(self, handle, buffer, length) -> None:
        buffer.value = self._gpu(handle).name.encode()

    def _nvmlDeviceGetPciInfo_v3(self, handle, info) -> None:
        info._obj.busId = self._gpu(handle).bus_id.encode()

    def _nvmlDeviceGetCudaComputeCapability(self, handle, major, minor) -> None:
        major._obj.value, minor._obj.value = self._gpu(handle).capability

    def _nvmlDeviceGetNvLinkState(self, handle, link, state) -> int:
        gpu = self._gpu(handle)
        if gpu.places_for_nvlinks == 0:
            return NOT_SUPPORTED
        if link >= gpu.places_for_nvlinks:
            return INVALID_ARGUMENT
        state._obj.value = int(link in gpu.nvlinks)
        return 0

    def _nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle, link, info) -> None:
        info._obj.busId = self._gpu(handle).nvlinks[link][1].encode()

    def _nvmlDeviceGetTopologyCommonAncestor(self, one, other, level) -> None:
        pair = frozenset((self._gpu(one).uuid, self._gpu(other).uuid))
        level._obj.value = self.topology.get(pair, pynvml.NVML_TOPOLOGY_SYSTEM)

    def _nvmlDeviceGetMemoryInfo(self, handle, memory) -> None:
        total, reserved, used = self._gpu(handle).memory
        memory._obj.total, memory._obj.used = total, reserved + used

    def _nvmlDeviceGetMemoryInfo_v2(self, handle, memory) -> None:
        assert memory._obj.version == pynvml.nvmlMemory_v2
        memory._obj.total, memory._obj.reserved, memory._obj.used = self._gpu(handle).memory

    def _nvmlDeviceGetMemoryAffinity(self, handle, size, words, scope) -> None:
        assert scope.value == pynvml.NVML_AFFINITY_SCOPE_NODE
        for node in self._gpu(handle).memory_affinity:
            words._obj[node // 64] |= 1 << node % 64

    def _nvmlDeviceGetFieldValues(self, handle, count, values) -> None:
        gpu = self._gpu(handle)
        for value in list(values._obj)[: count.value]:
            value.timestamp = self.now_us
            if value.fieldId == pynvml.NVML_FI_DEV_NVLINK_GET_SPEED and gpu.nvlink_mbps is not None:
                value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
                value.value.uiVal = gpu.nvlink_mbps
            elif gpu.counters.get(value.fieldId) is not None:
                short = value.fieldId in gpu.short_counters
                kind = "UNSIGNED_INT" if short else "UNSIGNED_LONG_LONG"
                value.valueType = getattr(pynvml, f"NVML_VALUE_TYPE_{kind}")
                value.value.ullVal = gpu.counters[value.fieldId] & (0xFFFFFFFF if short else ~0)
            else:
                value.nvmlReturn = NOT_SUPPORTED

    def _nvmlGpmQueryDeviceSupport(self, handle, support) -> None:
        support._obj.isSupportedDevice = int(self._gpu(handle).gpm is not None)

    def _nvmlGpmSampleAlloc(self, sample) -> None:
        self._next_sample += 0x1000
        self.samples.add(self._next_sample)
        self._point(sample, self._next_sample)

    def _nvmlGpmSampleFree(self, sample) -> None:
        self.samples.remove(ctypes.cast(sample, ctypes.c_void_p).value)

    def _nvmlGpmSampleGet(self, handle, sample) -> None:
        self.now_us += self.between_samples_us
        self._taken[ctypes.cast(sample, ctypes.c_void_p).value] = (self.now_us, self._gpu(handle))

    def _nvmlGpmMetricsGet(self, request) -> int:
        get = request._obj
        assert get.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        addresses = [ctypes.cast(sample, ctypes.c_void_p).value for sample in (get.sample1, get.sample2)]
        (earlier_us, gpu), (later_us, _) = (self._taken[address] for address in addresses)
        if later_us <= earlier_us:
            return INVALID_ARGUMENT  # as the library, for samples in the wrong order
        for at in range(get.numMetrics):
            metric = get.metrics[at]
            answer = gpu.gpm.get(metric.metricId, NOT_SUPPORTED)
            if isinstance(answer, int):
                metric.nvmlReturn = answer
            else:
                metric.nvmlReturn, metric.value = 0, answer
        return 0


def install(driver: Driver, patch) -> None:
    """Put it in the place of the library; ``patch``: pytest's monkeypatch, or anything with its setattr."""
    patch.setattr(pynvml, "nvmlLib", driver)
    patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
