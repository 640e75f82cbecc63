"""GPUs, devices, the clock and bounds, on machines that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overlaptop.doctor.facts import KernelClock, kernel_clock
from overlaptop.doctor.findings import Status
from overlaptop.doctor.machine import check_clock, check_descriptors, check_devices, check_gpus

from .machines import GPM, H200, LAPTOP, NVML, by_check, machine, probe_report

OK, WARNING, UNKNOWN = Status.OK, Status.WARNING, Status.UNKNOWN
PARAMETERS = "proc/driver/nvidia/params"


def without(*beginnings: str) -> dict[str, str]:
    """The files of a machine with H200s but for those that begin so."""
    return {name: text for name, text in H200.items() if not name.startswith(beginnings)}


def refusal(reason: str) -> dict[str, object]:
    return {"of": "nvml", "error": reason}


@pytest.mark.parametrize(
    ("files", "changes", "check", "status", "words"),
    [
        (without("dev/"), {}, "devices", WARNING, "2 NVIDIA GPUs on the PCI bus, but no /dev/nvidia0"),
        (H200, {}, "devices", OK, "all 4 may be opened"),
        (
            H200, {"may_open": lambda path: path.name != "nvidiactl"},
            "devices", WARNING, "this user may not open /dev/nvidiactl: have root put them in the group",
        ),
        (H200, {}, "counters", OK, "only root may read the GPUs' counters"),
        ({**H200, PARAMETERS: "RmProfilingAdminOnly: 0\n"}, {}, "counters", OK, "any user may read"),
        ({**H200, PARAMETERS: "Something: 0\n"}, {}, "counters", UNKNOWN, "does not say who may read"),
    ],
)  # fmt: skip
def test_devices_are_as_this_user_may_use_them(
    tmp_path: Path, files: dict[str, str], changes: dict[str, Any], check: str, status: Status, words: str
) -> None:
    finding = by_check(check_devices(machine(tmp_path, files, **changes)))[check]
    assert finding.status is status
    assert words in finding.line


@pytest.mark.parametrize(
    ("files", "sections", "check", "status", "words"),
    [
        (H200, [NVML, GPM], "nvml", OK, "driver 580.95.05, 2x NVIDIA H200"),
        (H200, [NVML, GPM], "gpm", OK, "2 NVIDIA GPUs measured by GPM"),
        (H200, [NVML, {**GPM, "refused": ["it has no GPM"]}], "gpm", OK, "it has no GPM; links"),
        (H200, [NVML, {**GPM, "refused": ["no permission"]}], "gpm", WARNING, "no permission; links"),
        (LAPTOP, [refusal("no NVIDIA driver")], "nvml", OK, "no NVIDIA GPU here (no NVIDIA driver)"),
        (H200, [refusal("versions differ")], "nvml", WARNING, "versions differ: nvidia-smi"),
        (H200, [refusal("nvidia-ml-py is missing")], "nvml", WARNING, "pip install nvidia-ml-py"),
        (H200, [], "nvml", UNKNOWN, "asking it: not after 20 s"),
        (H200, [NVML], "gpm", UNKNOWN, "asking for a sample: not after 20 s"),
    ],
)
def test_nvml_is_as_its_probe_reports(
    tmp_path: Path, files: dict[str, str], sections: list[Any], check: str, status: Status, words: str
) -> None:
    report = probe_report(*sections, end="not after 20 s")
    finding = by_check(check_gpus(machine(tmp_path, files), report))[check]
    assert finding.status is status
    assert words in finding.line


@pytest.mark.parametrize(
    ("clock", "status"),
    [
        (KernelClock(kept=True, error_us=1_000), OK),
        (KernelClock(kept=False, error_us=16_000_000), WARNING),
        (None, UNKNOWN),
    ],
)
def test_the_clock_is_as_the_kernel_reports(
    tmp_path: Path, clock: KernelClock | None, status: Status
) -> None:
    assert check_clock(machine(tmp_path, LAPTOP, clock=lambda: clock)).status is status


def test_the_kernel_is_asked_without_any_right_and_answers_in_bounds() -> None:
    clock = kernel_clock()
    assert clock is None or clock.error_us >= 0


@pytest.mark.parametrize(("most", "status"), [(64, WARNING), (1024, OK), (-1, OK)])
def test_few_descriptors_are_a_warning(tmp_path: Path, most: int, status: Status) -> None:
    assert check_descriptors(machine(tmp_path, LAPTOP, descriptors=most)).status is status
