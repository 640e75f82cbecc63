"""Samples a GPU and its links twice a second, by the best method the GPU and driver offer.

All of NVML's PCIe measurements (GPM, throughput) count whole packets. For copies in packets
of 256 bytes between an H200 and pinned memory they report 280/256 of the payload towards the host, where a
packet is a write, and 276/256 towards the GPU, where it answers a read. That is exactly the overhead in the
specification. So the rates here subtract it, as if all packets were full; small packets carry less payload.
"""

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from overlaptop.agent.clock import now_ns
from overlaptop.agent.telemetry.nvml import HZ_PER_MHZ, NOT_YET, Nvml, NvmlError
from overlaptop.wire.devices import DeviceSample, Unknown

KIB, MIB = 1 << 10, 1 << 20
ALL_LINKS = 0xFFFFFFFF
PAYLOAD_BYTES = 256  # Payload of a full packet in servers. Some desktops have 128, with 4 % more headers.
_FRAME_BYTES = 8  # Start, sequence number and checksum, in generations 3 to 5
WRITE_BYTES = 16 + _FRAME_BYTES
_ANSWER_BYTES = 12 + _FRAME_BYTES
_AROUND = {"pcie_tx_bytes_per_s": WRITE_BYTES, "pcie_rx_bytes_per_s": _ANSWER_BYTES}
"""By field of DeviceSample, overhead bytes of one packet."""

_METRICS = {
    "nvlink_rx_bytes_per_s": "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC",
    "nvlink_tx_bytes_per_s": "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC",
    "pcie_rx_bytes_per_s": "NVML_GPM_METRIC_PCIE_RX_PER_SEC",
    "pcie_tx_bytes_per_s": "NVML_GPM_METRIC_PCIE_TX_PER_SEC",
    "sm_activity": "NVML_GPM_METRIC_SM_UTIL",
    "tensor_activity": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_activity": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
"""GPM's metric by field of DeviceSample."""
_NVLINK_COUNTERS = {
    "nvlink_rx_bytes_per_s": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
    "nvlink_tx_bytes_per_s": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
}
"""By field of DeviceSample: the driver's counter of KiB."""
_PCIE_THROUGHPUTS = {
    "pcie_rx_bytes_per_s": "NVML_PCIE_UTIL_RX_BYTES",
    "pcie_tx_bytes_per_s": "NVML_PCIE_UTIL_TX_BYTES",
}

_HARDWARE = 0x08
_CAUSES = {
    0x04: "power cap",
    0x10: "sync boost",
    0x20: "thermal, by the driver",
    0x40: "thermal, by the hardware",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}

Figure = int | float | NvmlError  # Bytes per second, a share in [0, 1], or why it is unknown


def payload_of(name: str, bytes_per_s: int) -> int:
    """Return the payload rate, assuming full packets.

    ``name``: ``pcie_tx_bytes_per_s`` or ``pcie_rx_bytes_per_s``.
    """
    return round(bytes_per_s * PAYLOAD_BYTES / (PAYLOAD_BYTES + _AROUND[name]))


def throttle_words(reasons: int) -> tuple[str, ...]:
    words = tuple(word for bit, word in _CAUSES.items() if reasons & bit)
    if reasons & _HARDWARE and not reasons & 0xC0:  # otherwise one of its two possible causes is listed
        words = ("hardware slowdown", *words)
    return words


class Gpm:
    """GPM, the GPU's performance monitor (Hopper and newer): its activity between two samples.

    Alternates two sample buffers. The request for all metrics is built once: it has 477 entries.
    """

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._buffers: list[Any] = []
        self._filled = False  # Whether the newer buffer holds a sample
        if not nvml.call("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice:
            raise NvmlError("the GPU has no GPM: it came with Hopper")
        library = nvml.library
        request = library.c_nvmlGpmMetricsGet_t()
        request.version = library.NVML_GPM_METRICS_GET_VERSION
        self._places: dict[str, Any] = dict(zip(_METRICS, request.metrics, strict=False))
        for name, place in self._places.items():
            place.metricId = getattr(library, _METRICS[name])
        request.numMetrics = len(self._places)
        self._request = request
        try:
            for _ in range(2):
                self._buffers.append(nvml.call("nvmlGpmSampleAlloc"))
        except NvmlError:
            self.close()
            raise

    def read(self) -> dict[str, Figure]:
        """Return the activity since the last read, by field of DeviceSample.

        Raises NvmlError if the GPU gives no sample. The next read then starts over.
        """
        has_earlier, self._filled = self._filled, False
        self._nvml.call("nvmlGpmSampleGet", self._handle, self._buffers[1])
        self._buffers.reverse()
        self._filled = True
        if not has_earlier:
            raise NvmlError(NOT_YET, "NVML_ERROR_NOT_READY")
        self._request.sample2, self._request.sample1 = self._buffers
        self._nvml.call("nvmlGpmMetricsGet", self._request)
        return {name: self._figure(name, place) for name, place in self._places.items()}

    def close(self) -> None:
        for buffer in self._buffers:
            with contextlib.suppress(NvmlError):
                self._nvml.call("nvmlGpmSampleFree", buffer)
        self._buffers.clear()

    def _figure(self, name: str, place: Any) -> Figure:
        if place.nvmlReturn != 0:
            return self._nvml.error(place.nvmlReturn)
        value: float = place.value
        if not math.isfinite(value) or value < 0:
            return NvmlError("NVML gave no number", "NVML_ERROR_UNKNOWN")
        return round(value * MIB) if name.endswith("_bytes_per_s") else min(1.0, value / 100)


def _no_nvlink() -> int:
    raise NvmlError("no NVLink is up")


class Rates:
    """Samples one GPU."""

    def __init__(self, nvml: Nvml, rank: int, handle: Any, nvlinks: int | None) -> None:
        """``nvlinks``: number of active NVLinks; None: unknown."""
        self._nvml = nvml
        self._rank = rank
        self._handle = handle
        self._last: dict[str, tuple[int, int]] = {}  # By counter: its count, and its time in Unix µs
        self._gpm: Gpm | None = None
        self._by_gpm: dict[str, Figure] = {}
        try:
            self._gpm = Gpm(nvml, handle)
        except NvmlError as refusal:
            self._by_gpm = dict.fromkeys(_METRICS, refusal)
        self._ways: dict[str, list[Callable[[], Any]]] = {
            **{name: [partial(self._from_gpm, name)] for name in _METRICS},
            "memory_used_bytes": [self._memory],
            "power_mw": [partial(self._call, "nvmlDeviceGetPowerUsage")],
            "sm_clock_hz": [partial(self._clock, nvml.library.NVML_CLOCK_SM)],
            "memory_clock_hz": [partial(self._clock, nvml.library.NVML_CLOCK_MEM)],
            "throttle_reasons": [self._throttle],
        }
        """By field of DeviceSample, best method first: the next one is for GPUs that lack it."""
        for name in _PCIE_THROUGHPUTS:
            self._ways[name].append(partial(self._pcie_throughput, name))
        for name in _NVLINK_COUNTERS:
            self._ways[name].append(partial(self._counted, name))
            if nvlinks == 0:
                self._ways[name] = [_no_nvlink]

    def sample(self) -> DeviceSample:
        """Return the activity of the last half second; fields that cannot be read are None."""
        if self._gpm is not None:
            try:
                self._by_gpm = self._gpm.read()
            except NvmlError as refusal:
                self._by_gpm = dict.fromkeys(_METRICS, refusal)
                if refusal.lasting:  # for example, a GPU divided by MIG
                    self.close()
        at_ns = now_ns()
        missing: dict[str, str] = {}
        figures = {name: self._ask(name, missing) for name in self._ways}
        for name in _PCIE_THROUGHPUTS:
            if figures[name] is not None:
                figures[name] = payload_of(name, figures[name])
        unknown = tuple(Unknown(name, reason) for name, reason in missing.items())
        return DeviceSample(self._rank, at_ns, **figures, unknown=unknown)

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None

    def _ask(self, name: str, missing: dict[str, str]) -> Any:
        for way in self._ways[name]:
            try:
                figure = way()
            except NvmlError as refusal:
                missing[name] = str(refusal)
                if not refusal.lasting:
                    break
            else:
                missing.pop(name, None)
                return figure
        return None

    def _call(self, function: str, *arguments: Any) -> Any:
        return self._nvml.call(function, self._handle, *arguments)

    def _from_gpm(self, name: str) -> int | float:
        figure = self._by_gpm[name]
        if isinstance(figure, NvmlError):
            raise figure.with_traceback(None)  # otherwise it would keep the frames of each raise
        return figure

    def _counted(self, name: str) -> int:
        last = self._last.pop(name, None)
        field = getattr(self._nvml.library, _NVLINK_COUNTERS[name])
        value = self._call("nvmlDeviceGetFieldValues", [(field, ALL_LINKS)])[0]
        now = self._last[name] = self._nvml.number(value), int(value.timestamp)
        if last is None:
            raise NvmlError(NOT_YET, "NVML_ERROR_NOT_READY")
        counted, passed_us = now[0] - last[0], now[1] - last[1]
        if passed_us <= 0 or counted < 0:
            raise NvmlError("the counter began anew", "NVML_ERROR_NOT_READY")
        return round(counted * KIB * 1_000_000 / passed_us)

    def _pcie_throughput(self, name: str) -> int:
        """Measure over 20 ms. The call blocks, but releases the GIL."""
        direction = getattr(self._nvml.library, _PCIE_THROUGHPUTS[name])
        return 1000 * int(self._call("nvmlDeviceGetPcieThroughput", direction))

    def _memory(self) -> int:
        """Return used memory as nvidia-smi counts it: without the driver's own reserve."""
        return int(self._call("nvmlDeviceGetMemoryInfo", self._nvml.library.nvmlMemory_v2).used)

    def _clock(self, domain: int) -> int:
        return HZ_PER_MHZ * int(self._call("nvmlDeviceGetClockInfo", domain))

    def _throttle(self) -> tuple[str, ...]:
        return throttle_words(int(self._call("nvmlDeviceGetCurrentClocksEventReasons")))
