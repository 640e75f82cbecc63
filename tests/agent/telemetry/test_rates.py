"""The samples: exact by whatever the GPU has, unknown with the reason where it has nothing."""

from __future__ import annotations

import gc
import math
import time

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.telemetry.nvml import Nvml
from overlaptop.agent.telemetry.rates import LINK_RATES, NVLINK_RATES, Rates, throttle_words
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.devices import DeviceSample

from . import machines
from .driver import GPU_IS_LOST, MIB, NOT_SUPPORTED, TIMEOUT, Driver, install

HALF_S_US = 500_000
PAYLOAD_BYTES = 256
BY_GPM = (*LINK_RATES, "sm_activity", "tensor_activity", "dram_activity")
RX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
TX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
PCIE_RX = pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
PCIE_TX = pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES


def rates(nvml: Nvml, nvlinks: int | None = 18) -> Rates:
    return Rates(nvml, 5, nvml.handle(machines.uuid(1)), nvlinks, PAYLOAD_BYTES)


def to_gpu(counted: float) -> int:
    """The payload of answers to reads: 20 bytes around each packet's."""
    return round(counted * PAYLOAD_BYTES / (PAYLOAD_BYTES + 20))


def to_host(counted: float) -> int:
    """The payload of writes: 24 bytes around each packet's."""
    return round(counted * PAYLOAD_BYTES / (PAYLOAD_BYTES + 24))


def sample(driver: Driver, of: Rates, after_us: int = HALF_S_US) -> DeviceSample:
    driver.now_us += after_us
    return of.sample()


def reasons(told: DeviceSample) -> dict[str, str]:
    return {unknown.name: unknown.reason for unknown in told.unknown}


def test_by_gpm_every_figure_is_exact(opened) -> None:
    driver = machines.h200_pair()
    of = rates(opened(driver))
    first, second = sample(driver, of), sample(driver, of)
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
    assert abs(second.at_ns - time.time_ns()) < 5e9


def test_two_buffers_serve_all_samples_and_are_given_back(opened) -> None:
    driver = machines.h200_pair()
    of = rates(opened(driver))
    for _ in range(5):
        told = sample(driver, of)
    assert told.nvlink_tx_bytes_per_s == 100_000 * MIB
    assert (driver.calls["nvmlGpmSampleAlloc"], driver.calls["nvmlGpmSampleGet"]) == (2, 5)
    assert len(driver.samples) == 2
    of.close()
    assert driver.samples == set()


def test_a_sample_asks_the_driver_seven_times(opened) -> None:
    driver = machines.h200_pair()
    of = rates(opened(driver))
    sample(driver, of)
    driver.calls.clear()
    sample(driver, of)
    assert sum(driver.calls.values()) == 7, driver.calls


def test_a_metric_that_gpm_refuses_comes_from_the_counters(opened) -> None:
    driver = machines.h200_pair()
    driver.gpus[0].gpm[pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC] = NOT_SUPPORTED
    driver.gpus[0].pcie_kbps = (7, 8)
    of = rates(opened(driver))
    sample(driver, of)
    told = sample(driver, of)
    assert (told.pcie_tx_bytes_per_s, told.pcie_rx_bytes_per_s) == (
        to_host(7000),
        to_gpu(20_000 * MIB),
    )
    assert told.unknown == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_what_is_no_number_is_unknown(opened, value: float) -> None:
    driver = machines.h200_pair()
    driver.gpus[0].gpm[pynvml.NVML_GPM_METRIC_SM_UTIL] = value
    of = rates(opened(driver))
    sample(driver, of)
    told = sample(driver, of)
    assert told.sm_activity is None
    assert set(reasons(told)) == {"sm_activity"}


def test_a_gpu_without_nvlink_has_no_rate_of_it(opened) -> None:
    driver = machines.h200_pair()
    of = rates(opened(driver), nvlinks=0)
    sample(driver, of)
    told = sample(driver, of)
    assert reasons(told) == dict.fromkeys(NVLINK_RATES, "no NVLink is up")
    assert told.pcie_rx_bytes_per_s == to_gpu(20_000 * MIB)


@pytest.mark.parametrize("function", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_after_a_passing_fault_of_gpm_the_rates_come_back(opened, function: str) -> None:
    driver = machines.h200_pair()
    of = rates(opened(driver))
    sample(driver, of)
    driver.refuse[function] = TIMEOUT
    lost = sample(driver, of)
    assert reasons(lost) == dict.fromkeys(BY_GPM, "the driver did not answer in time")
    assert lost.power_mw == 412_000
    driver.refuse.clear()
    assert sample(driver, of).power_mw == 412_000
    assert sample(driver, of).nvlink_tx_bytes_per_s == 100_000 * MIB


def test_a_gpu_cut_up_by_mig_goes_on_without_gpm(opened) -> None:
    driver = machines.h200_pair()
    driver.gpus[0].pcie_kbps = (1, 2)
    driver.refuse["nvmlGpmSampleGet"] = NOT_SUPPORTED
    of = rates(opened(driver))
    told = sample(driver, of)
    assert (told.pcie_tx_bytes_per_s, told.pcie_rx_bytes_per_s) == (to_host(1000), to_gpu(2000))
    assert told.sm_activity is None
    assert driver.samples == set()
    driver.calls.clear()
    sample(driver, of)
    assert "nvmlGpmSampleGet" not in driver.calls


def test_a_lost_gpu_is_unknown_from_then_on_and_asked_on(opened) -> None:
    driver = machines.h200_pair()
    of = rates(opened(driver))
    sample(driver, of)
    of_the_gpu = [name[1:] for name in dir(Driver) if name.startswith(("_nvmlDevice", "_nvmlGpmSampleGet"))]
    driver.refuse = dict.fromkeys(of_the_gpu, GPU_IS_LOST)
    for _ in range(3):
        told = sample(driver, of)
        assert set(reasons(told).values()) == {"the GPU is lost: it fell off the bus"}
        assert told.memory_used_bytes is told.power_mw is told.throttle_reasons is None
    driver.refuse = {}
    sample(driver, of)
    assert sample(driver, of).unknown == ()


def test_an_old_drivers_names_are_tried_once_and_the_older_ones_serve(opened) -> None:
    driver = machines.l40()
    driver.gpus[0].throttle = 0x04
    of = rates(opened(driver), nvlinks=0)
    told = sample(driver, of)
    assert (told.throttle_reasons, told.memory_used_bytes) == (("power cap",), 41 << 30)
    assert (told.pcie_tx_bytes_per_s, told.pcie_rx_bytes_per_s) == (to_host(1_000_000), to_gpu(2_000_000))
    assert reasons(told)["sm_activity"] == "this driver is too old for it"
    driver.calls.clear()
    again = sample(driver, of)
    assert reasons(again) == reasons(told)
    assert not set(driver.calls) & set(driver.refuse)


def test_the_counters_of_an_a100_give_bytes_by_their_own_time(opened) -> None:
    driver = machines.a100_bridge()
    counters = driver.gpus[0].counters
    of = rates(opened(driver))
    first = sample(driver, of)
    assert {name: reasons(first)[name] for name in NVLINK_RATES} == dict.fromkeys(
        NVLINK_RATES, "the first of two readings"
    )
    counters[RX] += 4_000_000
    counters[TX] += 1_000_000
    told = sample(driver, of, after_us=400_000)
    assert (told.nvlink_rx_bytes_per_s, told.nvlink_tx_bytes_per_s) == (10_240_000_000, 2_560_000_000)
    assert (told.pcie_tx_bytes_per_s, told.pcie_rx_bytes_per_s) == (
        to_host(1_500_000_000),
        to_gpu(2_500_000_000),
    )
    assert reasons(told)["sm_activity"] == "the GPU has no GPM: it came with Hopper"


def test_where_the_driver_counts_pcie_nothing_blocks_for_it(opened) -> None:
    driver = machines.a100_bridge()
    counters = driver.gpus[0].counters
    counters |= {PCIE_TX: 0, PCIE_RX: 1 << 50}
    of = rates(opened(driver))
    sample(driver, of)
    counters[PCIE_TX] += 10_000_000_000
    told = sample(driver, of)
    assert (told.pcie_tx_bytes_per_s, told.pcie_rx_bytes_per_s) == (to_host(20_000_000_000), to_gpu(0))
    assert driver.calls["nvmlDeviceGetPcieThroughput"] == 0


def test_a_counter_of_32_bits_is_not_trusted(opened) -> None:
    driver = machines.a100_bridge()
    driver.gpus[0].bits_of_counters = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    driver.gpus[0].counters |= {PCIE_TX: 5, PCIE_RX: 5}
    of = rates(opened(driver))
    told = sample(driver, of)
    assert told.pcie_tx_bytes_per_s == to_host(1_500_000_000)
    assert {reasons(told)[name] for name in NVLINK_RATES} == {"the counter has 32 bits only"}


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 10**7)), min_size=2, max_size=6))
def test_a_counter_gives_its_bytes_or_says_that_it_began_anew(readings: list[tuple[int, int]]) -> None:
    driver = machines.a100_bridge()
    with pytest.MonkeyPatch.context() as patch:
        install(driver, patch)
        of = rates(Nvml.open())
        last = None
        for count, after_us in readings:
            driver.gpus[0].counters[RX] = count
            told = sample(driver, of, after_us)
            if last is None or count < last:
                assert told.nvlink_rx_bytes_per_s is None
                assert "nvlink_rx_bytes_per_s" in reasons(told)
            else:
                expected = (count - last) * 1024 / (after_us / 1e6)
                assert told.nvlink_rx_bytes_per_s == pytest.approx(expected, rel=1e-9, abs=1)
            last = count


def test_a_counter_that_stood_still_in_time_is_unknown(opened) -> None:
    driver = machines.a100_bridge()
    of = rates(opened(driver))
    sample(driver, of)
    assert sample(driver, of, after_us=0).nvlink_rx_bytes_per_s is None


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, ()),
        (0x1, ()),  # idle
        (0x2, ()),  # the clocks that somebody has set
        (0x100, ()),  # display
        (0x4, ("power cap",)),
        (0x8, ("hardware slowdown",)),
        (0x8 | 0x40, ("thermal, by the hardware",)),
        (0x8 | 0x80 | 0x4, ("power cap", "power brake")),
        (0x8 | 0x4, ("hardware slowdown", "power cap")),
        (0x10 | 0x20 | 0x1, ("sync boost", "thermal, by the driver")),
        (0x600, ("board limit", "reliability")),
    ],
)
def test_throttling_is_told_in_words(bits: int, words: tuple[str, ...]) -> None:
    assert throttle_words(bits) == words


def test_a_sample_leaves_no_garbage_for_the_collector_of_a_job_that_turned_it_off(opened) -> None:
    driver = machines.h200_pair()
    of = rates(opened(driver))
    driver.refuse["nvmlGpmMetricsGet"] = TIMEOUT  # exceptions that are kept could hold their frames
    driver.refuse["nvmlDeviceGetPowerUsage"] = TIMEOUT
    sample(driver, of)
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            sample(driver, of)
        assert gc.collect() == 0
    finally:
        gc.enable()
