"""GPUs, devices, the clock and bounds, on machines that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlaptop.doctor.facts import KernelClock, kernel_clock
from overlaptop.doctor.findings import Status
from overlaptop.doctor.machine import check_clock, check_descriptors, check_devices, check_gpus

from .machines import H200, LAPTOP, by_check, machine, probed

NVML = {"of": "nvml", "driver": "580.95.05", "gpus": ["NVIDIA H200", "NVIDIA H200"]}


def test_a_machine_without_nvidia_has_nothing_to_say_of_its_devices(tmp_path: Path) -> None:
    assert list(check_devices(machine(tmp_path, LAPTOP))) == []


def test_gpus_without_device_files_have_no_driver(tmp_path: Path) -> None:
    bare = {name: text for name, text in H200.items() if not name.startswith("dev/")}
    [finding] = check_devices(machine(tmp_path, bare))
    assert finding.status is Status.WARNING
    assert finding.text == "2 NVIDIA GPUs on the PCI bus, but no /dev/nvidia0"
    assert "driver" in finding.remedy


def test_devices_that_may_be_opened_are_counted(tmp_path: Path) -> None:
    found = by_check(check_devices(machine(tmp_path, H200)))
    assert found["devices"].status is Status.OK
    assert "all 4 may be opened" in found["devices"].text


def test_devices_that_may_not_be_opened_are_named(tmp_path: Path) -> None:
    facts = machine(tmp_path, H200, may_open=lambda path: path.name != "nvidiactl")
    finding = by_check(check_devices(facts))["devices"]
    assert finding.status is Status.WARNING
    assert finding.text == "this user may not open /dev/nvidiactl"
    assert "group" in finding.remedy


@pytest.mark.parametrize(
    ("parameters", "status", "words"),
    [
        ("RmProfilingAdminOnly: 1\n", Status.OK, "only root may read the GPUs' counters"),
        ("RmProfilingAdminOnly: 0\n", Status.OK, "any user may read the GPUs' counters"),
        ("Something: 0\n", Status.UNKNOWN, "does not say who may read"),
        (None, Status.UNKNOWN, "does not say who may read"),
    ],
)
def test_who_may_read_counters_is_the_drivers_word(
    tmp_path: Path, parameters: str | None, status: Status, words: str
) -> None:
    files = {**H200, "proc/driver/nvidia/params": parameters or ""}
    if parameters is None:
        del files["proc/driver/nvidia/params"]
    finding = by_check(check_devices(machine(tmp_path, files)))["counters"]
    assert finding.status is status
    assert words in finding.text


def test_nvml_tells_the_driver_and_the_gpus(tmp_path: Path) -> None:
    gpm = {"of": "gpm", "gpus": 2, "refused": [], "without": []}
    found = by_check(check_gpus(machine(tmp_path, H200), probed(NVML, gpm)))
    assert found["nvml"].line == "driver 580.95.05, 2x NVIDIA H200"
    assert found["gpm"].line == "2 NVIDIA GPUs measured by GPM"
    assert {finding.status for finding in found.values()} == {Status.OK}


@pytest.mark.parametrize(
    ("reason", "status"),
    [("the GPU has no GPM: it came with Hopper", Status.OK), ("no permission", Status.WARNING)],
)
def test_without_gpm_the_reason_is_told(tmp_path: Path, reason: str, status: Status) -> None:
    gpm = {"of": "gpm", "gpus": 2, "refused": [reason], "without": [0, 1]}
    finding = by_check(check_gpus(machine(tmp_path, H200), probed(NVML, gpm)))["gpm"]
    assert finding.status is status
    assert finding.text.startswith(reason)


def test_a_laptop_needs_no_nvml(tmp_path: Path) -> None:
    refusal = {"of": "nvml", "error": "no NVIDIA driver (libnvidia-ml.so.1 is missing)"}
    [finding] = check_gpus(machine(tmp_path, LAPTOP), probed(refusal))
    assert finding.status is Status.OK


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("the NVIDIA driver and libnvidia-ml.so.1 differ in version", "nvidia-smi says the same"),
        ("the package nvidia-ml-py is missing, or cannot be imported", "pip install nvidia-ml-py"),
    ],
)
def test_with_gpus_a_refusal_of_nvml_is_a_warning(tmp_path: Path, reason: str, remedy: str) -> None:
    [finding] = check_gpus(machine(tmp_path, H200), probed({"of": "nvml", "error": reason}))
    assert finding.status is Status.WARNING
    assert finding.text == reason
    assert remedy in finding.remedy


def test_a_driver_that_hangs_leaves_it_unknown(tmp_path: Path) -> None:
    [finding] = check_gpus(machine(tmp_path, H200), probed(end="it had not ended after 20 s"))
    assert finding.status is Status.UNKNOWN
    assert "20 s" in finding.text
    last = list(check_gpus(machine(tmp_path, H200), probed(NVML, end="it had not ended after 20 s")))[-1]
    assert (last.check, last.status) == ("gpm", Status.UNKNOWN)


@pytest.mark.parametrize(
    ("clock", "status"),
    [
        (KernelClock(kept=True, error_us=1_000), Status.OK),
        (KernelClock(kept=False, error_us=16_000_000), Status.WARNING),
        (None, Status.UNKNOWN),
    ],
)
def test_the_clock_is_as_the_kernel_says(tmp_path: Path, clock: KernelClock | None, status: Status) -> None:
    [finding] = check_clock(machine(tmp_path, LAPTOP, clock=lambda: clock))
    assert finding.status is status


def test_the_kernel_is_asked_without_any_right_and_answers_in_bounds() -> None:
    clock = kernel_clock()
    assert clock is None or clock.error_us >= 0


@pytest.mark.parametrize(("most", "status"), [(64, Status.WARNING), (1024, Status.OK), (-1, Status.OK)])
def test_few_descriptors_are_a_warning(tmp_path: Path, most: int, status: Status) -> None:
    [finding] = check_descriptors(machine(tmp_path, LAPTOP, descriptors=most))
    assert finding.status is status
