"""The peak rate of a PCIe link, and the payload part of its traffic.

All of NVML's PCIe measurements (GPM, byte counters, throughput) count whole packets. For copies in packets
of 256 bytes between an H200 and pinned memory they report 280/256 of the payload towards the host, where a
packet is a write, and 276/256 towards the GPU, where it answers a read. That is exactly the overhead in the
specification. So the rates here subtract it, as if all packets were full; small packets carry less payload.
"""

PAYLOAD_BYTES = 256
"""Payload of a full packet in servers. Some desktops have 128, with 4 % more headers."""

_FRAME_BYTES = 8
"""Start, sequence number and checksum, in generations 3 to 5."""
_WRITE_BYTES = 16 + _FRAME_BYTES
_ANSWER_BYTES = 12 + _FRAME_BYTES
_AROUND = {"pcie_tx_bytes_per_s": _WRITE_BYTES, "pcie_rx_bytes_per_s": _ANSWER_BYTES}
"""By field of DeviceSample, overhead bytes of one packet."""

_LANE = {
    1: (2_500_000_000, 8, 10),
    2: (5_000_000_000, 8, 10),
    3: (8_000_000_000, 128, 130),
    4: (16_000_000_000, 128, 130),
    5: (32_000_000_000, 128, 130),
    6: (64_000_000_000, 1, 1),
}
"""By generation: transfers per second, and the line code as payload bits of total bits."""


def peak_bytes_per_s(generation: int, width: int) -> int | None:
    """Return the peak payload rate in one direction, in full write packets; None: unknown generation."""
    if generation not in _LANE:
        return None
    transfers_per_s, of_code, code = _LANE[generation]
    packet_bytes = PAYLOAD_BYTES + _WRITE_BYTES
    return transfers_per_s * width * of_code * PAYLOAD_BYTES // (code * 8 * packet_bytes)


def payload_of(name: str, bytes_per_s: int) -> int:
    """Return the payload rate, assuming full packets.

    ``name``: ``pcie_tx_bytes_per_s`` or ``pcie_rx_bytes_per_s``.
    """
    return round(bytes_per_s * PAYLOAD_BYTES / (PAYLOAD_BYTES + _AROUND[name]))
