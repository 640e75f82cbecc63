"""GPM, the GPU's performance monitor (Hopper and newer): its activity between two samples."""

import contextlib
import math
from typing import Any

from overlaptop.agent.telemetry.nvml import NOT_YET, Nvml, NvmlError

MIB = 1 << 20

METRICS = {
    "nvlink_rx_bytes_per_s": "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC",
    "nvlink_tx_bytes_per_s": "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC",
    "pcie_rx_bytes_per_s": "NVML_GPM_METRIC_PCIE_RX_PER_SEC",
    "pcie_tx_bytes_per_s": "NVML_GPM_METRIC_PCIE_TX_PER_SEC",
    "sm_activity": "NVML_GPM_METRIC_SM_UTIL",
    "tensor_activity": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_activity": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
"""Metric by field of DeviceSample."""

Figure = int | float | NvmlError
"""Bytes per second, a share in [0, 1], or why it is unknown."""


class Gpm:
    """Alternates two sample buffers. The request for all metrics is built once: it has 477 entries."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        """Raises NvmlError if the GPU or the driver has no GPM."""
        self._nvml = nvml
        self._handle = handle
        self._buffers: list[Any] = []
        self._filled = False
        """Whether the newer buffer holds a sample."""
        if not nvml.call("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice:
            raise NvmlError("the GPU has no GPM: it came with Hopper")
        library = nvml.library
        request = library.c_nvmlGpmMetricsGet_t()
        request.version = library.NVML_GPM_METRICS_GET_VERSION
        self._places: dict[str, Any] = dict(zip(METRICS, request.metrics, strict=False))
        for name, place in self._places.items():
            place.metricId = getattr(library, METRICS[name])
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
            raise NOT_YET.again()
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
