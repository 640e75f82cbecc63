"""Links without GPM: the driver's byte counters, read twice, else PCIe's throughput."""

from __future__ import annotations

from typing import Any

from overlaptop.agent.telemetry.nvml import NOT_YET, Nvml, NvmlError

KIB = 1 << 10
KB = 1000
ALL_LINKS = 0xFFFFFFFF

_FIELDS = {
    "nvlink_rx_bytes_per_s": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", ALL_LINKS, KIB),
    "nvlink_tx_bytes_per_s": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", ALL_LINKS, KIB),
    "pcie_rx_bytes_per_s": ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0, 1),
    "pcie_tx_bytes_per_s": ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0, 1),
}
"""By field of DeviceSample: the counter, its scope, and the bytes that one of it is worth."""

_THROUGHPUTS = {
    "pcie_rx_bytes_per_s": "NVML_PCIE_UTIL_RX_BYTES",
    "pcie_tx_bytes_per_s": "NVML_PCIE_UTIL_TX_BYTES",
}


class ByteCounter:
    """One of the driver's counters as a rate: bytes between two reads by the time between them."""

    def __init__(self, nvml: Nvml, handle: Any, name: str) -> None:
        """``name``: the field of DeviceSample that it fills."""
        self._nvml = nvml
        self._handle = handle
        self._field, self._scope, self._bytes_of_one = _FIELDS[name]
        self._last: tuple[int, int] | None = None

    def bytes_per_s(self) -> int:
        """Since the last read; raises NvmlError where it is not known, now or ever."""
        last, self._last = self._last, None
        self._last = count, at_us = self._read()
        if last is None:
            raise NOT_YET.again()
        counted, passed_us = count - last[0], at_us - last[1]
        if passed_us <= 0 or counted < 0:
            raise NvmlError("the counter began anew", "NVML_ERROR_NOT_READY")
        return round(counted * self._bytes_of_one * 1_000_000 / passed_us)

    def _read(self) -> tuple[int, int]:
        """The count, and when it was taken (Unix time in µs)."""
        number = getattr(self._nvml.library, self._field, None)
        if number is None:
            raise NvmlError(f"this nvidia-ml-py has no {self._field}")
        value = self._nvml.call("nvmlDeviceGetFieldValues", self._handle, [(number, self._scope)])[0]
        count = self._nvml.number(value)
        if value.valueType == self._nvml.library.NVML_VALUE_TYPE_UNSIGNED_INT:
            # PCIe can go round 32 bits more than once between two reads, and nothing would show it.
            raise NvmlError("the counter has 32 bits only")
        return count, int(value.timestamp)


def has_throughput(name: str) -> bool:
    """Whether `pcie_throughput` can fill this field of DeviceSample."""
    return name in _THROUGHPUTS


def pcie_throughput(nvml: Nvml, handle: Any, name: str) -> int:
    """Bytes per second across PCIe in 20 ms, for which the call blocks; the interpreter goes on meanwhile.

    Raises NvmlError.
    """
    direction = getattr(nvml.library, _THROUGHPUTS[name])
    return KB * int(nvml.call("nvmlDeviceGetPcieThroughput", handle, direction))
