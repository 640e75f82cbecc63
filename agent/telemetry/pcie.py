"""What a PCIe link can carry, and how much of what it carried was not packets' headers.

Each of NVML's ways to measure PCIe (GPM, byte counters, throughput) counts packets whole. Of copies in
packets of 256 bytes between an H200 and pinned memory they tell 280/256 towards the host, where a packet
is a write, and 276/256 towards the GPU, where it answers a read: just what the specification puts around
them. So the figures here are less that, as if all packets were full; small ones leave less.
"""

from __future__ import annotations

PAYLOAD_BYTES = 256
"""Of a full packet, in servers; some desktops have 128, of which 4 % more are headers."""

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


def peak_bytes_per_s(generation: int, width: int) -> int | None:
    """What the lanes carry in one direction in full packets' writes; None: a generation to come."""
    if generation not in _LANE:
        return None
    transfers_per_s, of_code, code = _LANE[generation]
    packet_bytes = PAYLOAD_BYTES + _WRITE_BYTES
    return transfers_per_s * width * of_code * PAYLOAD_BYTES // (code * 8 * packet_bytes)


def payload_of(name: str, bytes_per_s: int) -> int:
    """Of what was counted, the payload of full packets.

    ``name``: ``pcie_tx_bytes_per_s`` or ``pcie_rx_bytes_per_s``.
    """
    return round(bytes_per_s * PAYLOAD_BYTES / (PAYLOAD_BYTES + _AROUND[name]))
