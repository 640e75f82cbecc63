"""What a PCIe link can carry, and how much of what it carried was not packets' headers.

Each of NVML's ways to measure PCIe (GPM, byte counters, throughput) counts packets whole. Of copies in
packets of 256 bytes between an H200 and pinned memory they tell 280/256 towards the host, where a packet
is a write, and 276/256 towards the GPU, where it answers a read: just what the specification puts around
them. So the figures here are less that, as if all packets were full; small ones leave less.
"""

from __future__ import annotations

import os
from pathlib import Path

from overlaptop.agent.telemetry.files import UnavailableError, opened

USUAL_PAYLOAD_BYTES = 256
"""Of a full packet, in servers; some desktops have 128."""

_FRAME_BYTES = 8
"""Start, sequence number and checksum, of generations 3 to 5."""
_WRITE_BYTES = 16 + _FRAME_BYTES
_ANSWER_BYTES = 12 + _FRAME_BYTES
_AROUND = {"pcie_tx_bytes_per_s": _WRITE_BYTES, "pcie_rx_bytes_per_s": _ANSWER_BYTES}
"""By field of DeviceSample, the bytes around the payload of one packet."""

_LANE = {
    1: (2_500_000_000, 8, 10),
    2: (5_000_000_000, 8, 10),
    3: (8_000_000_000, 128, 130),
    4: (16_000_000_000, 128, 130),
    5: (32_000_000_000, 128, 130),
    6: (64_000_000_000, 1, 1),
}
"""By generation: transfers per second, and how many bits of how many are left by the line's code."""

# Of a device's configuration space, which the kernel shows to root only beyond the first 64 bytes.
_STATUS, _HAS_CAPABILITIES, _FIRST_CAPABILITY = 0x06, 0x10, 0x34
_EXPRESS, _DEVICE_CONTROL = 0x10, 0x08
_MAX_CAPABILITIES = 48


def peak_bytes_per_s(generation: int, width: int, payload_bytes: int) -> int | None:
    """What the lanes carry in one direction in writes of so much payload; None: a generation to come."""
    if generation not in _LANE:
        return None
    transfers_per_s, of_code, code = _LANE[generation]
    packet_bytes = payload_bytes + _WRITE_BYTES
    return transfers_per_s * width * of_code * payload_bytes // (code * 8 * packet_bytes)


def payload_of(name: str, bytes_per_s: int, payload_bytes: int) -> int:
    """Of what was counted, the payload, where packets hold so much of it.

    ``name``: ``pcie_tx_bytes_per_s`` or ``pcie_rx_bytes_per_s``.
    """
    return round(bytes_per_s * payload_bytes / (payload_bytes + _AROUND[name]))


def max_payload_bytes(bus_id: str, root: Path = Path("/")) -> int | None:
    """Of one packet of this device's, as it is set up; None where that is not shown to us."""
    try:
        with opened(root / "sys/bus/pci/devices" / bus_id / "config") as descriptor:
            return _max_payload_bytes(descriptor)
    except (UnavailableError, IndexError):  # not there, or cut off
        return None


def _max_payload_bytes(descriptor: int) -> int | None:
    if not os.pread(descriptor, 1, _STATUS)[0] & _HAS_CAPABILITIES:
        return None
    at = os.pread(descriptor, 1, _FIRST_CAPABILITY)[0]
    for _ in range(_MAX_CAPABILITIES):
        if at == 0:
            return None
        entry = os.pread(descriptor, 2, at)
        if entry[0] == _EXPRESS:
            coded = os.pread(descriptor, 1, at + _DEVICE_CONTROL)[0] >> 5
            return 128 << coded if coded <= 5 else None
        at = entry[1] & ~0x03
    return None
