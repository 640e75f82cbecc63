"""An adapter's traffic and errors, from trees laid out as the kernel's documentation describes them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from overlaptop.agent.telemetry import nic as module
from overlaptop.agent.telemetry.nic import NicMonitor
from overlaptop.wire.devices import DeviceSample, NicErrors, Unknown

from .trees import write

EMPTY = DeviceSample(0, 1, *[None] * 12)
PORT = "sys/class/infiniband/mlx5_0/ports/1"
ETHERNET = "sys/class/net/eth0"


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Callable[[NicMonitor], DeviceSample]:
    """Take a monitor's sample, half a second after the last one."""
    now_ns = 0
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: now_ns)

    def sampled(monitor: NicMonitor) -> DeviceSample:
        nonlocal now_ns
        now_ns += 500_000_000
        return monitor.add_rates(EMPTY)

    return sampled


def port(root: Path, received: object, sent: object, layer: str = "InfiniBand") -> None:
    counts = {"link_layer": layer, "counters/port_rcv_data": received, "counters/port_xmit_data": sent}
    for name, content in counts.items():
        write(root, f"{PORT}/{name}", f"{content}\n")


def interface(root: Path, folder: str, received: int, sent: int) -> None:
    write(root, f"{folder}/statistics/rx_bytes", f"{received}\n")
    write(root, f"{folder}/statistics/tx_bytes", f"{sent}\n")


def rates(sample: DeviceSample) -> tuple[int | None, int | None]:
    return sample.nic_rx_bytes_per_s, sample.nic_tx_bytes_per_s


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ("InfiniBand", (2000 * 4 * 2, 4 * 2)),  # words of four bytes
        ("Ethernet", (2 * (8000 + 10), 2 * (4 + 1))),  # RoCE, and its interface
    ],
)
def test_port_counts_words_and_for_roce_its_interface_too(
    sample, layer: str, expected: tuple[int, int], tmp_path: Path
) -> None:
    folder = "sys/class/infiniband/mlx5_0/device/net/eth0"
    port(tmp_path, 1000, 500, layer)
    interface(tmp_path, folder, 7, 7)
    monitor = NicMonitor("mlx5_0", tmp_path)
    first = sample(monitor)
    assert rates(first) == (None, None)
    assert {each.reason for each in first.unknown} == {"the first of two readings"}
    port(tmp_path, 3000, 501, layer)
    interface(tmp_path, folder, 17, 8)
    second = sample(monitor)
    assert (rates(second), second.unknown) == (expected, ())


def test_ethernet_counts_bytes_and_one_unreadable_direction_is_unknown(sample, tmp_path: Path) -> None:
    interface(tmp_path, ETHERNET, 0, 0)
    monitor = NicMonitor("eth0", tmp_path)
    sample(monitor)
    interface(tmp_path, ETHERNET, 1000, 50)
    gone = tmp_path / ETHERNET / "statistics/rx_bytes"
    gone.unlink()
    found = sample(monitor)
    assert rates(found) == (None, 100)
    assert found.unknown == (Unknown("nic_rx_bytes_per_s", f"{gone}: No such file or directory"),)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ("N/A (no PMA)", "N/A (no PMA)"),
        ((1 << 32) - 1, "the counter has 32 bits only"),
        (5, "the counter began anew"),
    ],
)
def test_counters_that_do_not_count_are_unknown_and_not_zero(
    sample, second: object, why: str, tmp_path: Path
) -> None:
    port(tmp_path, 10, 10)
    monitor = NicMonitor("mlx5_0", tmp_path)
    sample(monitor)
    port(tmp_path, second, 10)
    found = sample(monitor)
    assert rates(found) == (None, 0)
    assert [each.reason.endswith(why) for each in found.unknown] == [True]


def test_only_new_errors_are_reported_and_a_reset_starts_from_zero(tmp_path: Path) -> None:
    def count_errors(symbols: int, sequences: int, waits: int) -> None:
        write(tmp_path, f"{PORT}/counters/symbol_error", f"{symbols}\n")
        write(tmp_path, f"{PORT}/counters/port_xmit_wait", f"{waits}\n")  # it grows on a healthy network
        write(tmp_path, f"{PORT}/hw_counters/packet_seq_err", f"{sequences}\n")

    assert NicMonitor("mlx5_0", tmp_path).errors() is None
    count_errors(40, 0, 1)
    monitor = NicMonitor("mlx5_0", tmp_path)
    count_errors(40, 0, 10**6)
    assert monitor.errors() == ()
    count_errors(43, 1, 10**6)
    assert monitor.errors() == (NicErrors("symbol_error", 3), NicErrors("packet_seq_err", 1))
    count_errors(2, 1, 10**6)
    assert monitor.errors() == (NicErrors("symbol_error", 5), NicErrors("packet_seq_err", 1))

    write(tmp_path, f"{ETHERNET}/carrier_down_count", "1\n")
    ethernet = NicMonitor("eth0", tmp_path)
    write(tmp_path, f"{ETHERNET}/carrier_down_count", "2\n")
    assert ethernet.errors() == (NicErrors("carrier_down_count", 1),)
