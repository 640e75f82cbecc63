"""PCIe: what the lanes carry, and what of it is payload."""

import pytest

from overlaptop.agent.telemetry import pcie


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
