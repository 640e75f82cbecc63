"""An adapter's traffic and errors, from trees laid out as the kernel's documentation describes them."""

from pathlib import Path

import pytest

from overlaptop.agent.telemetry import nic as module
from overlaptop.agent.telemetry.nic import NicMonitor
from overlaptop.wire.devices import DeviceSample, NicErrors, Unknown

EMPTY = DeviceSample(0, 1, *[None] * 12)
PORT = "sys/class/infiniband/mlx5_0/ports/1"
ETHERNET = "sys/class/net/eth0"


class Adapter:
    """Files below a root, and a clock that goes on by half a second with each sample."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._now_ns = 0
        monkeypatch.setattr(module.time, "monotonic_ns", lambda: self._now_ns)

    def has(self, folder: str, **counts: object) -> None:
        for name, count in counts.items():
            path = self.root / folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{count}\n")

    def port(self, received: object, sent: object, layer: str = "InfiniBand") -> None:
        self.has(PORT, link_layer=layer, counters__port_rcv_data=received, counters__port_xmit_data=sent)

    def interface(self, folder: str, received: int, sent: int) -> None:
        self.has(folder, statistics__rx_bytes=received, statistics__tx_bytes=sent)

    def rates(self, monitor: NicMonitor) -> tuple[int | None, int | None]:
        self.sample = monitor.add_rates(EMPTY)
        self._now_ns += 500_000_000
        return self.sample.nic_rx_bytes_per_s, self.sample.nic_tx_bytes_per_s

    @property
    def reasons(self) -> set[str]:
        return {each.reason for each in self.sample.unknown}


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adapter:
    return Adapter(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("layer", "interface", "before", "rates"),
    [
        ("InfiniBand", "ib0", (1000, 500), (2000 * 4 * 2, 4 * 2)),  # words of four bytes
        (
            "Ethernet",
            "eth0",
            (1000, 500),
            (2 * (8000 + 10), 2 * (4 + 1)),
        ),  # RoCE, and its interface
    ],
)
def test_port_counts_words_and_for_roce_its_interface_too(
    adapter: Adapter, layer: str, interface: str, before: tuple[int, int], rates: tuple[int, int]
) -> None:
    folder = f"sys/class/infiniband/mlx5_0/device/net/{interface}"
    adapter.port(*before, layer)
    adapter.interface(folder, 7, 7)
    monitor = NicMonitor("mlx5_0", adapter.root)
    assert adapter.rates(monitor) == (None, None)
    assert adapter.reasons == {"the first of two readings"}
    adapter.port(3000, 501, layer)
    adapter.interface(folder, 17, 8)
    assert adapter.rates(monitor) == rates
    assert adapter.sample.unknown == ()


def test_ethernet_counts_bytes_and_one_unreadable_direction_is_unknown(adapter: Adapter) -> None:
    adapter.interface(ETHERNET, 0, 0)
    monitor = NicMonitor("eth0", adapter.root)
    adapter.rates(monitor)
    adapter.interface(ETHERNET, 1000, 50)
    (adapter.root / ETHERNET / "statistics/rx_bytes").unlink()
    assert adapter.rates(monitor) == (None, 100)
    reason = f"{adapter.root / ETHERNET}/statistics/rx_bytes: No such file or directory"
    assert adapter.sample.unknown == (Unknown("nic_rx_bytes_per_s", reason),)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ("N/A (no PMA)", "N/A (no PMA)"),
        ((1 << 32) - 1, "the counter has 32 bits only"),
        (5, "the counter began anew"),
    ],
)
def test_counters_that_do_not_count_are_unknown_and_not_zero(
    adapter: Adapter, second: object, why: str
) -> None:
    adapter.port(10, 10)
    monitor = NicMonitor("mlx5_0", adapter.root)
    adapter.rates(monitor)
    adapter.port(second, 10)
    assert adapter.rates(monitor) == (None, 0)
    assert [each.reason.endswith(why) for each in adapter.sample.unknown] == [True]


def test_only_new_errors_are_reported_and_a_reset_starts_from_zero(adapter: Adapter) -> None:
    adapter.port(0, 0)
    adapter.has(PORT, counters__symbol_error=40, counters__port_xmit_wait=1, hw_counters__packet_seq_err=0)
    monitor = NicMonitor("mlx5_0", adapter.root)
    adapter.has(PORT, counters__port_xmit_wait=10**6)
    assert monitor.errors() == ()
    adapter.has(PORT, counters__symbol_error=43, hw_counters__packet_seq_err=1)
    found = (NicErrors("symbol_error", 3), NicErrors("packet_seq_err", 1))
    assert monitor.errors() == found
    adapter.has(PORT, counters__symbol_error=2)
    assert monitor.errors() == (NicErrors("symbol_error", 5), found[1])


def test_errors_are_unknown_without_a_counter(adapter: Adapter) -> None:
    assert NicMonitor("eth0", adapter.root).errors() is None
    adapter.has(ETHERNET, statistics__rx_errors=0, carrier_down_count=1)
    monitor = NicMonitor("eth0", adapter.root)
    adapter.has(ETHERNET, carrier_down_count=2)
    assert monitor.errors() == (NicErrors("carrier_down_count", 1),)
