"""Samples a GPU and its links twice a second, by the best method the GPU and driver offer."""

from collections.abc import Callable
from functools import partial
from typing import Any

from overlaptop.agent.clock import now_ns
from overlaptop.agent.telemetry.gpm import METRICS, Figure, Gpm
from overlaptop.agent.telemetry.nvml import HZ_PER_MHZ, NOT_YET, Nvml, NvmlError
from overlaptop.agent.telemetry.pcie import payload_of
from overlaptop.wire.devices import DeviceSample, Unknown

ALL_LINKS = 0xFFFFFFFF

_COUNTERS = {
    "nvlink_rx_bytes_per_s": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", ALL_LINKS, 1 << 10),
    "nvlink_tx_bytes_per_s": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", ALL_LINKS, 1 << 10),
    "pcie_rx_bytes_per_s": ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0, 1),
    "pcie_tx_bytes_per_s": ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0, 1),
}
"""By field of DeviceSample: the driver's counter, its scope, and bytes of one count."""
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

Way = Callable[[], Any]
"""Reads one value; raises NvmlError."""


def throttle_words(reasons: int) -> tuple[str, ...]:
    """Return the bits of nvmlDeviceGetCurrentClocksEventReasons as text.

    Idle GPUs, and GPUs with clocks set by a user, are not throttled.
    """
    words = tuple(word for bit, word in _CAUSES.items() if reasons & bit)
    if reasons & _HARDWARE and not reasons & 0xC0:  # otherwise one of its two possible causes is listed
        words = ("hardware slowdown", *words)
    return words


class Rates:
    """Samples one GPU. A value that was refused for good is not read again."""

    def __init__(self, nvml: Nvml, rank: int, handle: Any, nvlinks: int | None) -> None:
        """``nvlinks``: number of active NVLinks; None: unknown."""
        self._nvml = nvml
        self._rank = rank
        self._handle = handle
        self._last: dict[str, tuple[int, int]] = {}
        """By counter: its count, and its time in Unix µs."""
        self._gpm: Gpm | None = None
        self._by_gpm: dict[str, Figure] | NvmlError
        try:
            self._gpm = Gpm(nvml, handle)
        except NvmlError as refusal:
            self._by_gpm = refusal
        self._ways: dict[str, list[Way]] = {
            **{name: [partial(self._from_gpm, name)] for name in METRICS},
            "memory_used_bytes": [self._memory_without_reserve, self._memory],
            "power_mw": [partial(self._call, "nvmlDeviceGetPowerUsage")],
            "sm_clock_hz": [partial(self._clock, nvml.library.NVML_CLOCK_SM)],
            "memory_clock_hz": [partial(self._clock, nvml.library.NVML_CLOCK_MEM)],
            "throttle_reasons": [
                partial(self._throttle, f"nvmlDeviceGetCurrentClocks{kind}Reasons")
                for kind in ("Event", "Throttle")  # the newer and the older name
            ],
        }
        """By field of DeviceSample, best method first; methods refused for good are removed."""
        self._refused: dict[str, str] = {}
        """Why fields without any method left are unknown."""
        for name in _COUNTERS:
            self._ways[name].append(partial(self._counted, name))
            if name in _PCIE_THROUGHPUTS:
                self._ways[name].append(partial(self._pcie_throughput, name))
                self._ways[name] = [partial(self._payload, name, way) for way in self._ways[name]]
            elif nvlinks == 0:
                self._ways[name].clear()
                self._refused[name] = "no NVLink is up"

    def sample(self) -> DeviceSample:
        """Return the activity of the last half second; fields that cannot be read are None."""
        if self._gpm is not None:
            self._read_gpm(self._gpm)
        at_ns = now_ns()
        missing: dict[str, str] = {}
        figures = {name: self._ask(name, missing) for name in self._ways}
        unknown = tuple(Unknown(name, reason) for name, reason in missing.items())
        return DeviceSample(self._rank, at_ns, **figures, unknown=unknown)

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None

    def _ask(self, name: str, missing: dict[str, str]) -> Any:
        ways = self._ways[name]
        while ways:
            try:
                return ways[0]()
            except NvmlError as refusal:
                if not refusal.lasting:
                    missing[name] = str(refusal)
                    return None
                self._refused[name] = str(refusal)
                ways.pop(0)
        missing[name] = self._refused[name]
        return None

    def _call(self, function: str, *arguments: Any) -> Any:
        return self._nvml.call(function, self._handle, *arguments)

    def _read_gpm(self, gpm: Gpm) -> None:
        try:
            self._by_gpm = gpm.read()
        except NvmlError as refusal:
            self._by_gpm = refusal
            if refusal.lasting:  # for example, a GPU divided by MIG
                self.close()

    def _from_gpm(self, name: str) -> int | float:
        figure = self._by_gpm if isinstance(self._by_gpm, NvmlError) else self._by_gpm[name]
        if isinstance(figure, NvmlError):
            raise figure.again()
        return figure

    def _counted(self, name: str) -> int:
        """Return bytes per second since the last call, by one of the driver's counters."""
        field, scope, bytes_of_one = _COUNTERS[name]
        last = self._last.pop(name, None)
        number = getattr(self._nvml.library, field, None)
        if number is None:
            raise NvmlError(f"this nvidia-ml-py has no {field}")
        value = self._call("nvmlDeviceGetFieldValues", [(number, scope)])[0]
        count = self._nvml.number(value)
        if value.valueType == self._nvml.library.NVML_VALUE_TYPE_UNSIGNED_INT:
            # A 32-bit PCIe counter can wrap more than once between two reads, which nothing would show.
            raise NvmlError("the counter has 32 bits only")
        self._last[name] = count, value.timestamp
        if last is None:
            raise NOT_YET.again()
        counted, passed_us = count - last[0], int(value.timestamp) - last[1]
        if passed_us <= 0 or counted < 0:
            raise NvmlError("the counter began anew", "NVML_ERROR_NOT_READY")
        return round(counted * bytes_of_one * 1_000_000 / passed_us)

    def _pcie_throughput(self, name: str) -> int:
        """Measure over 20 ms. The call blocks, but releases the GIL."""
        direction = getattr(self._nvml.library, _PCIE_THROUGHPUTS[name])
        return 1000 * int(self._call("nvmlDeviceGetPcieThroughput", direction))

    def _payload(self, name: str, way: Way) -> int:
        return payload_of(name, way())

    def _memory_without_reserve(self) -> int:
        """Return used memory as nvidia-smi counts it: without the driver's own reserve."""
        version = getattr(self._nvml.library, "nvmlMemory_v2", None)
        if version is None:
            raise NvmlError("this nvidia-ml-py is too old for it")
        return int(self._call("nvmlDeviceGetMemoryInfo", version).used)

    def _memory(self) -> int:
        return int(self._call("nvmlDeviceGetMemoryInfo").used)

    def _clock(self, domain: int) -> int:
        return HZ_PER_MHZ * int(self._call("nvmlDeviceGetClockInfo", domain))

    def _throttle(self, function: str) -> tuple[str, ...]:
        return throttle_words(int(self._call(function)))
