"""GPUs as NVML shows them on machines of several kinds, in place of the module pynvml.

A function whose name is in `refuse` answers that code.
"""

# ruff: noqa: N802 - the library's own names

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, SimpleNamespace

import pynvml

NOT_SUPPORTED, NO_PERMISSION, INVALID_ARGUMENT = 3, 4, 2
GPU_IS_LOST = 15
GPU_LINK, SWITCH_LINK = 0, 2
GIB = 1 << 30
CLOCKS_MHZ = {pynvml.NVML_CLOCK_SM: (1755, 1980), pynvml.NVML_CLOCK_MEM: (3201, 3201)}


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
    nvlink_mbps: int = 26562
    pcie: tuple[int, int, int, int] = (5, 5, 16, 16)  # Generation now, at most; lanes now, at most
    memory: tuple[int, int, int] = (150 * GIB, GIB, 40 * GIB)
    """Total, kept by the driver, used by processes."""
    throttle: int = 0
    gpm: dict[int, float | int] | None = None
    """Metric -> its value (a float) or the code (an int) of its refusal; None: no GPM."""
    pcie_kbps: tuple[int, int] = (0, 0)  # Sent, received
    counters: dict[int, int] = field(default_factory=dict)  # Field -> count; a missing one is not supported


ANSWERS = {
    "nvmlSystemGetDriverVersion": lambda: "580.95.05",
    "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
    "nvmlDeviceGetName": lambda gpu: gpu.name,
    "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(busId=gpu.bus_id),
    "nvmlDeviceGetCudaComputeCapability": lambda gpu: gpu.capability,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: gpu.pcie[0],
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: gpu.pcie[1],
    "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: gpu.pcie[2],
    "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: gpu.pcie[3],
    "nvmlDeviceGetMemoryAffinity": lambda gpu, words, scope: [1] + [0] * (words - 1),
    "nvmlDeviceGetPowerUsage": lambda gpu: 412_000,
    "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700_000,
    "nvmlDeviceGetClockInfo": lambda gpu, domain: CLOCKS_MHZ[domain][0],
    "nvmlDeviceGetMaxClockInfo": lambda gpu, domain: CLOCKS_MHZ[domain][1],
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.throttle,
    "nvmlDeviceGetPcieThroughput": lambda gpu, direction: gpu.pcie_kbps[direction],
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, link: gpu.nvlinks[link][0],
    "nvmlDeviceGetNvLinkRemotePciInfo": lambda gpu, link: SimpleNamespace(busId=gpu.nvlinks[link][1]),
    "nvmlGpmQueryDeviceSupport": lambda gpu: SimpleNamespace(isSupportedDevice=gpu.gpm is not None),
}
"""By function, what it answers about a GPU."""


class Driver(ModuleType):
    """Handles are the GPUs themselves; samples of GPM are the GPU and the time."""

    def __init__(self, *gpus: Gpu) -> None:
        super().__init__("pynvml")
        constants = {name: each for name, each in vars(pynvml).items() if not callable(each)}
        own = {name: partial(each, self) for name, each in vars(Driver).items() if name.startswith("nvml")}
        functions = {name: self._counted(name, each) for name, each in (ANSWERS | own).items()}
        vars(self).update(constants | functions, NVMLError=pynvml.NVMLError)
        self.gpus = list(gpus)
        self.refuse: dict[str, int] = {}
        self.calls: Counter[str] = Counter()
        self.opened = 0
        self.samples = 0  # Buffers that are allocated
        self.now_us = 1_700_000_000_000_000
        self.between_samples_us = 0
        """Time that passes before each sample of GPM, if the test does not move the clock itself."""

    def _counted(self, name: str, function):
        def call(*arguments):
            self.calls[name] += 1
            if name in self.refuse:
                raise pynvml.NVMLError(self.refuse[name])
            return function(*arguments)

        return call

    def nvmlInit(self):
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return next(gpu for gpu in self.gpus if gpu.uuid == uuid)

    def nvmlDeviceGetNumaNodeId(self, gpu):
        raise pynvml.NVMLError(NOT_SUPPORTED)

    def nvmlDeviceGetMemoryInfo(self, gpu, version=None):
        total, kept, used = gpu.memory
        return SimpleNamespace(total=total, used=used if version == pynvml.nvmlMemory_v2 else used + kept)

    def nvmlDeviceGetNvLinkState(self, gpu, link):
        if link >= gpu.places_for_nvlinks:
            raise pynvml.NVMLError(INVALID_ARGUMENT if gpu.places_for_nvlinks else NOT_SUPPORTED)
        return int(link in gpu.nvlinks)

    def nvmlDeviceGetFieldValues(self, gpu, fields):
        return [self._value_of(gpu, number) for number, _ in fields]

    def _value_of(self, gpu, number):
        count = gpu.counters.get(number)
        if number == pynvml.NVML_FI_DEV_NVLINK_GET_SPEED:
            count = gpu.nvlink_mbps
        return SimpleNamespace(
            nvmlReturn=NOT_SUPPORTED if count is None else 0,
            timestamp=self.now_us,
            valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
            value=SimpleNamespace(uiVal=count, ullVal=count),
        )

    def nvmlGpmSampleAlloc(self):
        self.samples += 1
        return []

    def nvmlGpmSampleFree(self, sample):
        self.samples -= 1

    def nvmlGpmSampleGet(self, gpu, sample):
        self.now_us += self.between_samples_us
        sample[:] = gpu, self.now_us

    def c_nvmlGpmMetricsGet_t(self):
        return SimpleNamespace(metrics=[SimpleNamespace() for _ in range(98)])

    def nvmlGpmMetricsGet(self, request):
        assert request.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        (gpu, earlier_us), (_, later_us) = request.sample1, request.sample2
        if later_us <= earlier_us:
            raise pynvml.NVMLError(INVALID_ARGUMENT)  # as the library, for samples in the wrong order
        for metric in request.metrics[: request.numMetrics]:
            answer = gpu.gpm.get(metric.metricId, NOT_SUPPORTED)
            metric.nvmlReturn = answer if isinstance(answer, int) else 0
            metric.value = answer


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-0000-0000-000000000000"


def h200_pair() -> Driver:
    """Two H200s of a virtual machine, 18 NVLinks each, all to switches.

    Addresses, links, speed, memory, limits and what is not supported were recorded there (driver 580); the
    metrics are ours.
    """
    gpm = {
        pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: 200_000.5,
        pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: 100_000.0,
        pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 20_000.0,
        pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: 10_000.25,
        pynvml.NVML_GPM_METRIC_SM_UTIL: 87.5,
        pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 50.0,
        pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 100.3,
    }
    gpus = [
        Gpu(
            uuid(number),
            f"00000000:00:{slot}.0",
            nvlinks=dict.fromkeys(range(18), (SWITCH_LINK, "FFFFFFFF:FF:FF.0")),
            memory=(150_754_820_096, GIB, 40 * GIB),
            gpm=dict(gpm),
        )
        for number, slot in ((1, "06"), (2, "07"))
    ]
    return Driver(*gpus)


def a100_bridge() -> Driver:
    """Two A100s for PCIe slots with bridges between them, and a third alone; no GPM."""
    addresses = ["00000000:01:00.0", "00000000:02:00.0", "00000000:81:00.0"]
    gpus = [
        Gpu(
            uuid(number + 1),
            address,
            "NVIDIA A100 80GB PCIe",
            (8, 0),
            places_for_nvlinks=12,
            nvlink_mbps=25000,
            pcie=(1, 4, 16, 16),
            pcie_kbps=(1_500_000, 2_500_000),
            counters={
                pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: 1000,
                pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 5000,
            },
        )
        for number, address in enumerate(addresses)
    ]
    for one, other in ((0, 1), (1, 0)):
        gpus[one].nvlinks = dict.fromkeys(range(12), (GPU_LINK, addresses[other]))
    return Driver(*gpus)
