"""The traffic and the errors of a network adapter, by the kernel's counters in /sys."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from overlaptop.agent.telemetry.files import UnavailableError, names_in, read_int, read_text, text_if_any
from overlaptop.agent.telemetry.nvml import NOT_YET
from overlaptop.agent.telemetry.topology import MAX_PORTS
from overlaptop.wire.devices import DeviceSample, NicErrors, Unknown

WORD_BYTES = 4  # InfiniBand counts data in words
_STOPPED = (1 << 32) - 1  # InfiniBand's counters of 32 bits stop here
_PORT_ERRORS = (
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/port_rcv_errors",
    "counters/port_rcv_remote_physical_errors",
    "counters/port_xmit_discards",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rx_icrc_encapsulated",
)
"""Without counters of congestion, such as port_xmit_wait: these grow on a healthy network."""
_ETHERNET_ERRORS = (
    "statistics/rx_errors",
    "statistics/tx_errors",
    "statistics/rx_missed_errors",
    "carrier_down_count",
)

_Counters = Sequence[tuple[Path, int]]  # Files, and the bytes of one count


class NicMonitor:
    """Reads one adapter. For one thread. A counter that is missing is never an error."""

    def __init__(self, name: str, root: Path = Path("/")) -> None:
        device = root / "sys/class/infiniband" / name
        ports = _folders(device / "ports")[:MAX_PORTS]
        interfaces = [] if ports else [root / "sys/class/net" / name]
        if any(text_if_any(port / "link_layer") == "Ethernet" for port in ports):
            # A RoCE port counts RDMA only. An InfiniBand port counts its network interface's bytes, too.
            interfaces = _folders(device / "device/net")
        self._counters: dict[str, _Counters] = {
            way: [
                *((port / f"counters/{of_port}", WORD_BYTES) for port in ports),
                *((interface / f"statistics/{way}_bytes", 1) for interface in interfaces),
            ]
            for way, of_port in (("rx", "port_rcv_data"), ("tx", "port_xmit_data"))
        }
        self._last: dict[str, tuple[int, int]] = {}  # By direction: bytes, and monotonic time in ns
        errors = [port / each for port in ports for each in _PORT_ERRORS]
        errors = errors or [interface / each for interface in interfaces for each in _ETHERNET_ERRORS]
        counts = {path: read_int(path) for path in errors}
        self._error_counts = {path: count for path, count in counts.items() if count is not None}
        self._new_errors: Counter[str] = Counter()

    def add_rates(self, sample: DeviceSample) -> DeviceSample:
        """Return the sample with the adapter's mean rates since the last call, or why they are unknown."""
        rates, unknown = {}, list(sample.unknown)
        for way in self._counters:
            name = f"nic_{way}_bytes_per_s"
            try:
                rates[name] = self._rate(way)
            except UnavailableError as reason:
                unknown.append(Unknown(name, str(reason)))
        return replace(sample, **rates, unknown=tuple(unknown))

    def errors(self) -> tuple[NicErrors, ...] | None:
        """Return the errors since the start, by counters that have grown. None without counters."""
        for path, last in self._error_counts.items():
            count = read_int(path)
            if count is not None:
                self._new_errors[path.name] += count - last if count >= last else count  # or it was reset
                self._error_counts[path] = count
        found = tuple(NicErrors(name, count) for name, count in self._new_errors.items() if count)
        return found if self._error_counts else None

    def _rate(self, way: str) -> int:
        last = self._last.pop(way, None)
        now = self._last[way] = _total_bytes(self._counters[way]), time.monotonic_ns()
        if last is None:
            raise UnavailableError(NOT_YET)
        counted_bytes, passed_ns = now[0] - last[0], now[1] - last[1]
        if counted_bytes < 0 or passed_ns <= 0:
            raise UnavailableError("the counter began anew")
        return counted_bytes * 1_000_000_000 // passed_ns


def _folders(folder: Path) -> list[Path]:
    return [folder / name for name in names_in(folder)]


def _total_bytes(counters: Iterable[tuple[Path, int]]) -> int:
    total_bytes = 0
    for path, unit_bytes in counters:
        text = read_text(path)
        if not text.isdecimal():  # such as "N/A (no PMA)"
            raise UnavailableError(f"{path}: {text[:40]}")
        if unit_bytes == WORD_BYTES and int(text) == _STOPPED:
            raise UnavailableError(f"{path}: the counter has 32 bits only")
        total_bytes += int(text) * unit_bytes
    return total_bytes
