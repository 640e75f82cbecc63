"""The facts of a GPU: what NVML tells is told exactly, what it refuses is unknown, each for itself."""

import sys

import pynvml
import pytest

from overlaptop.agent.telemetry.gpu import GpuFacts
from overlaptop.agent.telemetry.nvml import Nvml, NvmlError, pci_bus_id
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.devices import DeviceFacts, GpuLink, GpuSite

from . import machines
from .machines import NO_PERMISSION, Driver


def reader(driver: Driver, at: int = 0) -> GpuFacts:
    nvml = Nvml(driver)
    sites = nvml.gpus()
    return GpuFacts(nvml, 3, sites[at], sites)


def reasons(facts: DeviceFacts) -> dict[str, str]:
    return {unknown.name: unknown.reason for unknown in facts.unknown}


@pytest.mark.parametrize("code", [9, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, 18, 999])
def test_without_a_driver_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    driver.refuse["nvmlInit"] = code
    with pytest.raises(NvmlError, match=r"^[^\n]+$"):
        Nvml.open()


def test_gpus_are_named_as_in_nvidia_smi_and_sysfs() -> None:
    driver = machines.h200_pair()
    nvml = Nvml(driver)
    first, second = nvml.gpus()
    assert first == GpuSite(0, machines.uuid(1), "NVIDIA H200", "0000:00:06.0", None)
    driver.gpus[0].bus_id = "lost\n/.."  # is no address on PCI
    assert nvml.gpus() == (second,)
    assert pci_bus_id("00010000:1B:00.0") == "10000:1b:00.0"


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
