"""PCIe: what the lanes carry, what of it is payload, and how large packets may be."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.telemetry import pcie

BUS_ID = "0000:1b:00.0"
LANE_BYTES_PER_S = (
    2.5e9 * 0.1,
    5e9 * 0.1,
    8e9 / 8 * 128 / 130,
    16e9 / 8 * 128 / 130,
    32e9 / 8 * 128 / 130,
    8e9,
)


def config(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "sys/bus/pci/devices" / BUS_ID / "config"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return tmp_path


def space(*, size: int = 256, capabilities: dict[int, tuple[int, int]], control: int = 0) -> bytes:
    """A configuration space; of each capability its place, kind and the next one's place."""
    made = bytearray(256)
    made[0x06] = 0x10
    made[0x34] = next(iter(capabilities), 0)
    for at, (kind, following) in capabilities.items():
        made[at], made[at + 1] = kind, following
        if kind == 0x10:
            made[at + 8] = control
    return bytes(made[:size])


@pytest.mark.parametrize(("coded", "payload_bytes"), [(0, 128), (1, 256), (2, 512), (5, 4096), (7, None)])
def test_the_payload_is_read_behind_other_capabilities(tmp_path: Path, coded: int, payload_bytes) -> None:
    # As on an H200: power management, then MSI, then PCI Express.
    content = space(
        capabilities={0x60: (0x01, 0x68), 0x68: (0x05, 0x78), 0x78: (0x10, 0)}, control=coded << 5 | 0x0F
    )
    assert pcie.max_payload_bytes(BUS_ID, config(tmp_path, content)) == payload_bytes


@pytest.mark.parametrize(
    "content",
    [
        b"",
        space(size=64, capabilities={0x78: (0x10, 0)}),  # all that the kernel shows to others than root
        space(capabilities={}),
        space(capabilities={0x60: (0x01, 0x60)}),  # a list that never ends
        bytes(256),
    ],
)
def test_what_is_not_shown_is_unknown(tmp_path: Path, content: bytes) -> None:
    assert pcie.max_payload_bytes(BUS_ID, tmp_path) is None, "no such device"
    assert pcie.max_payload_bytes(BUS_ID, config(tmp_path, content)) is None


@given(st.integers(1, 6), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([128, 256, 512]))
def test_the_peak_is_the_lanes_bits_less_code_and_headers(
    generation: int, width: int, payload_bytes: int
) -> None:
    raw = LANE_BYTES_PER_S[generation - 1] * width
    peak = pcie.peak_bytes_per_s(generation, width, payload_bytes)
    assert peak == pytest.approx(raw * payload_bytes / (payload_bytes + 24), abs=1)
    assert pcie.peak_bytes_per_s(7, width, payload_bytes) is None, "a generation to come"


@pytest.mark.parametrize(
    ("name", "moved", "counted"),
    [
        # An H200 and pinned memory, copies of 256 MiB: bytes moved, and what the GPU counted.
        ("pcie_rx_bytes_per_s", 21_474_836_480, 23_153_000_000),
        ("pcie_tx_bytes_per_s", 21_474_836_480, 23_489_000_000),
    ],
)
def test_what_a_gpu_counted_is_what_was_moved(name: str, moved: int, counted: int) -> None:
    assert pcie.payload_of(name, counted, 256) == pytest.approx(moved, rel=1e-3)
