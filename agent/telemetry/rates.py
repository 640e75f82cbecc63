"""What a GPU and its links do, twice a second, by the best that the GPU and its driver have for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from overlaptop.agent.clock import now_ns
from overlaptop.agent.telemetry.byte_counters import ByteCounter, has_throughput, pcie_throughput
from overlaptop.agent.telemetry.gpm import METRICS, Figure, Gpm
from overlaptop.agent.telemetry.nvml import HZ_PER_MHZ, Nvml, NvmlError
from overlaptop.agent.telemetry.pcie import payload_of
from overlaptop.wire.devices import DeviceSample, Unknown

NVLINK_RATES = ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")
PCIE_RATES = ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")
LINK_RATES = (*NVLINK_RATES, *PCIE_RATES)

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
"""How to get one figure; raises NvmlError."""


def throttle_words(reasons: int) -> tuple[str, ...]:
    """The bits of nvmlDeviceGetCurrentClocksEventReasons in words.

    An idle GPU, or one whose clocks somebody has set, is not throttled.
    """
    words = tuple(word for bit, word in _CAUSES.items() if reasons & bit)
    if reasons & _HARDWARE and not reasons & 0xC0:  # else the two causes that it may have say it better
        words = ("hardware slowdown", *words)
    return words


class Rates:
    """The samples of one GPU. What has been refused for good is not asked again."""

    def __init__(
        self, nvml: Nvml, rank: int, handle: Any, nvlinks: int | None, pcie_payload_bytes: int
    ) -> None:
        """``nvlinks``: how many are up; None: not known. ``pcie_payload_bytes``: of a full packet."""
        self._nvml = nvml
        self._rank = rank
        self._handle = handle
        self._gpm: Gpm | None = None
        self._by_gpm: dict[str, Figure] | NvmlError
        try:
            self._gpm = Gpm(nvml, handle)
        except NvmlError as refusal:
            self._by_gpm = refusal
        self._ways: dict[str, list[Way]] = {
            **{name: [partial(self._from_gpm, name)] for name in METRICS},
            "memory_used_bytes": [self._memory_without_reserve, self._memory],
            "power_mw": [partial(nvml.call, "nvmlDeviceGetPowerUsage", handle)],
            "sm_clock_hz": [partial(self._clock, nvml.library.NVML_CLOCK_SM)],
            "memory_clock_hz": [partial(self._clock, nvml.library.NVML_CLOCK_MEM)],
            "throttle_reasons": [
                partial(self._throttle, f"nvmlDeviceGetCurrentClocks{kind}Reasons")
                for kind in ("Event", "Throttle")  # the newer name, and the older one
            ],
        }
        """By field of DeviceSample, the best first; those that were refused for good are gone."""
        for name in LINK_RATES:
            self._ways[name].append(ByteCounter(nvml, handle, name).bytes_per_s)
            if has_throughput(name):
                self._ways[name].append(partial(pcie_throughput, nvml, handle, name))
        for name in PCIE_RATES:
            self._ways[name] = [
                partial(_payload, name, way, pcie_payload_bytes) for way in self._ways[name]
            ]
        self._refused: dict[str, str] = {}
        """Why what has no ways left is never known here."""
        if nvlinks == 0:
            for name in NVLINK_RATES:
                self._ways[name].clear()
                self._refused[name] = "no NVLink is up"

    def sample(self) -> DeviceSample:
        """The half second before, or what of it is known."""
        if self._gpm is not None:
            self._read_gpm(self._gpm)
        at_ns = now_ns()
        missing: dict[str, str] = {}
        figures = {name: self._ask(name, missing) for name in self._ways}
        unknown = tuple(Unknown(name, reason) for name, reason in missing.items())
        return DeviceSample(self._rank, at_ns, **figures, unknown=unknown)

    def close(self) -> None:
        """Give back what the samples needed."""
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

    def _read_gpm(self, gpm: Gpm) -> None:
        try:
            self._by_gpm = gpm.read()
        except NvmlError as refusal:
            self._by_gpm = refusal
            if refusal.lasting:  # a GPU that is cut up by MIG, say
                self.close()

    def _from_gpm(self, name: str) -> int | float:
        if isinstance(self._by_gpm, NvmlError):
            raise self._by_gpm.again()
        figure = self._by_gpm[name]
        if isinstance(figure, NvmlError):
            raise figure.again()
        return figure

    def _memory_without_reserve(self) -> int:
        """As nvidia-smi counts: without what the driver keeps for itself."""
        version = getattr(self._nvml.library, "nvmlMemory_v2", None)
        if version is None:
            raise NvmlError("this nvidia-ml-py is too old for it")
        return int(self._nvml.call("nvmlDeviceGetMemoryInfo", self._handle, version).used)

    def _memory(self) -> int:
        return int(self._nvml.call("nvmlDeviceGetMemoryInfo", self._handle).used)

    def _clock(self, domain: int) -> int:
        return HZ_PER_MHZ * int(self._nvml.call("nvmlDeviceGetClockInfo", self._handle, domain))

    def _throttle(self, function: str) -> tuple[str, ...]:
        return throttle_words(int(self._nvml.call(function, self._handle)))


def _payload(name: str, way: Way, payload_bytes: int) -> int:
    return payload_of(name, way(), payload_bytes)
