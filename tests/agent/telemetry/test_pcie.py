"""PCIe: what the lanes carry, and what of it is payload."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.telemetry import pcie

LANE_BYTES_PER_S = (
    2.5e9 * 0.1,
    5e9 * 0.1,
    8e9 / 8 * 128 / 130,
    16e9 / 8 * 128 / 130,
    32e9 / 8 * 128 / 130,
    8e9,
)


@given(st.integers(1, 6), st.sampled_from([1, 2, 4, 8, 16]))
def test_the_peak_is_the_lanes_bits_less_code_and_headers(generation: int, width: int) -> None:
    raw = LANE_BYTES_PER_S[generation - 1] * width
    assert pcie.peak_bytes_per_s(generation, width) == pytest.approx(raw * 256 / 280, abs=1)
    assert pcie.peak_bytes_per_s(7, width) is None, "a generation to come"


@pytest.mark.parametrize(
    ("name", "moved", "counted"),
    [
        # An H200 and pinned memory, copies of 256 MiB: bytes moved, and what the GPU counted.
        ("pcie_rx_bytes_per_s", 21_474_836_480, 23_153_000_000),
        ("pcie_tx_bytes_per_s", 21_474_836_480, 23_489_000_000),
    ],
)
def test_what_a_gpu_counted_is_what_was_moved(name: str, moved: int, counted: int) -> None:
    assert pcie.payload_of(name, counted) == pytest.approx(moved, rel=1e-3)
