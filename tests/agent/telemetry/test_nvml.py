"""A GPU by NVML: what it tells is told exactly, what it refuses is unknown, each for itself."""

import pynvml
import pytest

from overlaptop.agent.telemetry.gpu import GpuFacts
from overlaptop.agent.telemetry.nvml import Nvml
from overlaptop.agent.telemetry.rates import Rates
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.devices import DeviceFacts, DeviceSample, GpuLink

from . import machines
from .machines import GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, Driver

MIB = 1 << 20
HALF_S_US = 500_000
PAYLOAD_BYTES = 256
NVLINK_RATES = ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")
PCIE_RATES = ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")
BY_GPM = (*PCIE_RATES, *NVLINK_RATES, "sm_activity", "tensor_activity", "dram_activity")
RX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
TX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX


def reader(driver: Driver, at: int = 0) -> GpuFacts:
    nvml = Nvml(driver)
    sites = nvml.gpus()
    return GpuFacts(nvml, 3, sites[at], sites)


def reasons(message: DeviceFacts | DeviceSample) -> dict[str, str]:
    return {unknown.name: unknown.reason for unknown in message.unknown}


def test_h200s_behind_switches() -> None:
    facts = reader(machines.h200_pair()).read()
    assert facts == DeviceFacts(
        rank=3,
        gpu_uuid=machines.uuid(1),
        gpu_name="NVIDIA H200",
        pci_bus_id="0000:00:06.0",
        nvlink_version="4.0",
        nvlink_count=18,
        nvlink_peak_bytes_per_s=18 * 26_562_000_000,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        pcie_peak_bytes_per_s=57_614_065_934,  # 63.0 GB/s, 256 bytes of 280
        memory_total_bytes=150_754_820_096,
        power_limit_mw=700_000,
        sm_clock_max_hz=1_980_000_000,
        memory_clock_max_hz=3_201_000_000,
        links=(GpuLink("nvswitch", "", 18, ""), GpuLink("pcie", machines.uuid(2), None, "")),
    )
    assert decode(encode(facts)) == facts


def test_a100s_with_bridges() -> None:
    driver = machines.a100_bridge()
    facts = reader(driver).read()
    assert (facts.nvlink_version, facts.nvlink_count) == ("3.0", 12)
    assert facts.nvlink_peak_bytes_per_s == 12 * 25_000_000_000
    assert (facts.pcie_generation, facts.pcie_generation_max) == (1, 4)  # it is idle
    assert facts.pcie_peak_bytes_per_s == 28_807_032_967
    assert facts.links == (
        GpuLink("nvlink", machines.uuid(2), 12, ""),
        GpuLink("pcie", machines.uuid(2), None, ""),
        GpuLink("pcie", machines.uuid(3), None, ""),
    )
    assert facts.unknown == ()
    alone = reader(driver, at=2).read()
    assert (alone.nvlink_version, alone.nvlink_count, alone.nvlink_peak_bytes_per_s) == ("", 0, None)
    assert reasons(alone) == {"nvlink_peak_bytes_per_s": "no NVLink is up"}


def test_refusal_hurts_only_what_it_was_asked_for() -> None:
    driver = machines.h200_pair()
    facts = reader(driver)
    driver.calls.clear()
    whole = facts.read()
    for function in [*driver.calls]:
        driver.refuse = {function: NO_PERMISSION}
        rest = facts.read()
        names = (name for name in DeviceFacts.__struct_fields__ if name != "unknown")
        changed = {name for name in names if getattr(rest, name) != getattr(whole, name)}
        assert changed == reasons(rest).keys() != set()
    driver.refuse = {}
    assert facts.read() == whole


# Samples.


class Sampled:
    def __init__(self, driver: Driver, nvlinks: int = 18) -> None:
        self.driver = driver
        self.gpu = driver.gpus[0]
        nvml = Nvml(driver)
        self.rates = Rates(nvml, 5, nvml.handle(machines.uuid(1)), nvlinks)

    def sample(self, after_us: int = HALF_S_US) -> DeviceSample:
        self.driver.now_us += after_us
        return self.rates.sample()


def to_gpu(counted: float) -> int:
    """The payload of answers to reads, as measured on an H200: 20 bytes around each packet's."""
    return round(counted * PAYLOAD_BYTES / (PAYLOAD_BYTES + 20))


def to_host(counted: float) -> int:
    """The payload of writes: 24 bytes around each packet's."""
    return round(counted * PAYLOAD_BYTES / (PAYLOAD_BYTES + 24))


def test_by_gpm_every_figure_is_exact() -> None:
    of = Sampled(machines.h200_pair())
    first, second = of.sample(), of.sample()
    assert reasons(first) == dict.fromkeys(BY_GPM, "the first of two readings")
    assert second == DeviceSample(
        rank=5,
        at_ns=second.at_ns,
        nvlink_rx_bytes_per_s=200_000 * MIB + MIB // 2,
        nvlink_tx_bytes_per_s=100_000 * MIB,
        pcie_rx_bytes_per_s=to_gpu(20_000 * MIB),
        pcie_tx_bytes_per_s=to_host(10_000 * MIB + MIB // 4),
        sm_activity=0.875,
        tensor_activity=0.5,
        dram_activity=1.0,  # the GPU says 100.3 %
        memory_used_bytes=40 << 30,  # without what the driver keeps
        power_mw=412_000,
        sm_clock_hz=1_755_000_000,
        memory_clock_hz=3_201_000_000,
        throttle_reasons=(),
    )
    assert decode(encode(second)) == second


def test_a_gpu_cut_up_by_mig_goes_on_without_gpm() -> None:
    of = Sampled(machines.h200_pair())
    of.gpu.pcie_kbps = (1, 2)
    of.driver.refuse["nvmlGpmSampleGet"] = NOT_SUPPORTED
    for _ in range(2):
        told = of.sample()
        assert (told.pcie_tx_bytes_per_s, told.pcie_rx_bytes_per_s) == (to_host(1000), to_gpu(2000))
        assert told.sm_activity is None
    assert of.driver.samples == 0
    assert of.driver.calls["nvmlGpmSampleGet"] == 1


def test_a_lost_gpu_is_unknown_from_then_on_and_asked_on() -> None:
    of = Sampled(machines.h200_pair())
    of.driver.calls.clear()
    of.sample()
    of.driver.refuse = dict.fromkeys(of.driver.calls, GPU_IS_LOST)
    for _ in range(3):
        told = of.sample()
        assert set(reasons(told).values()) == {"the GPU is lost: it fell off the bus"}
        assert told.memory_used_bytes is told.power_mw is told.throttle_reasons is None
    of.driver.refuse = {}
    of.sample()
    assert of.sample().unknown == ()


def test_the_counters_of_an_a100_give_bytes_by_their_own_time() -> None:
    of = Sampled(machines.a100_bridge())
    first = reasons(of.sample())
    assert {first[name] for name in NVLINK_RATES} == {"the first of two readings"}
    of.gpu.counters[RX] += 4_000_000
    of.gpu.counters[TX] += 1_000_000
    told = of.sample(after_us=400_000)
    assert (told.nvlink_rx_bytes_per_s, told.nvlink_tx_bytes_per_s) == (10_240_000_000, 2_560_000_000)
    assert told.pcie_tx_bytes_per_s == to_host(1_500_000_000)
    assert told.pcie_rx_bytes_per_s == to_gpu(2_500_000_000)
    assert reasons(told)["sm_activity"] == "the GPU has no GPM: it came with Hopper"
    assert of.sample(after_us=0).nvlink_rx_bytes_per_s is None, "its time stood still"
    of.gpu.counters[RX] = 0
    assert reasons(of.sample())["nvlink_rx_bytes_per_s"] == "the counter began anew"
    assert of.driver.calls["nvmlGpmQueryDeviceSupport"] == 1
    alone = reasons(Sampled(machines.a100_bridge(), nvlinks=0).sample())
    assert {alone[name] for name in NVLINK_RATES} == {"no NVLink is up"}


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x1 | 0x2 | 0x100, ()),  # idle, clocks that somebody has set, display
        (0x8 | 0x40, ("thermal, by the hardware",)),
        (0x8 | 0x4, ("hardware slowdown", "power cap")),
    ],
)
def test_throttling_has_its_reasons(bits: int, words: tuple[str, ...]) -> None:
    of = Sampled(machines.h200_pair())
    of.gpu.throttle = bits
    assert of.sample().throttle_reasons == words
