"""The machine: its GPUs, what this user may do with them, its clock and its bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from overlaptop.doctor.facts import Facts
from overlaptop.doctor.findings import Finding, ok, unknown, warning
from overlaptop.doctor.probing import ProbeReport

FEW_DESCRIPTORS = 256
"""A hub has one open for each rank and each dashboard, and some more."""
_PARAMETERS = "proc/driver/nvidia/params"
_ADMIN_ONLY = "RmProfilingAdminOnly"
_NO_PERMISSION = "no permission"
"""As agent.telemetry.nvml has it."""


def check_devices(facts: Facts) -> Iterator[Finding]:
    """Whether this user may open the GPUs, and read their counters."""
    if not facts.nvidia_devices:
        if facts.nvidia_gpus:
            yield warning(
                "devices",
                f"{_gpus(facts.nvidia_gpus)} on the PCI bus, but no /dev/nvidia0",
                "load NVIDIA's driver, or give the container its GPUs (docker run --gpus all)",
            )
        return
    closed = [path.name for path in facts.nvidia_devices if not facts.may_open(path)]
    if closed:
        yield warning(
            "devices",
            f"this user may not open /dev/{', /dev/'.join(closed)}",
            "have root put them in the group that owns these (often video or render)",
        )
    else:
        yield ok("devices", f"/dev/nvidia*: all {len(facts.nvidia_devices)} may be opened")
    yield _counters(facts)


def _counters(facts: Facts) -> Finding:
    """CUPTI's timelines need no counters since CUDA 10.2; Nsight and other profilers do."""
    lines = (facts.text(_PARAMETERS) or "").splitlines()
    words = [line.partition(":")[2].strip() for line in lines if line.startswith(f"{_ADMIN_ONLY}:")]
    if not words:
        return unknown("counters", f"/{_PARAMETERS} does not say who may read the GPUs' counters")
    if words[0] == "0":
        return ok("counters", f"any user may read the GPUs' counters ({_ADMIN_ONLY}: 0)")
    return ok(
        "counters", f"only root may read the GPUs' counters ({_ADMIN_ONLY}: {words[0]}); CUPTI needs none"
    )


def check_gpus(facts: Facts, report: ProbeReport) -> Iterator[Finding]:
    """NVML, and the GPUs' own monitor, by what a probe has report."""
    nvml = report.section("nvml")
    if nvml is None:
        yield unknown("nvml", f"asking it: {report.end}")
        return
    driver = nvml.text("driver")
    if driver is None:
        yield _without_nvml(facts, nvml.text("error") or "it does not say why")
        return
    names = Counter(nvml.texts("gpus"))
    gpus = ", ".join(f"{count}x {name}" for name, count in names.items()) or "no GPU"
    yield ok("nvml", f"driver {driver}, {gpus}")
    if names:
        yield _gpm(report)


def _without_nvml(facts: Facts, reason: str) -> Finding:
    if not facts.nvidia_gpus and not facts.nvidia_devices:
        return ok("nvml", f"no NVIDIA GPU here ({reason})")
    if "nvidia-ml-py" in reason:
        return warning("nvml", reason, f"pip install nvidia-ml-py for {facts.python}")
    return warning(
        "nvml", reason, "nvidia-smi says the same; until the driver is mended, links and clocks are unknown"
    )


def _gpm(report: ProbeReport) -> Finding:
    gpm = report.section("gpm")
    if gpm is None:
        return unknown("gpm", f"asking for a sample: {report.end}")
    refused = gpm.texts("refused")
    if not refused:
        return ok("gpm", f"{_gpus(gpm.number('gpus') or 0)} measured by GPM")
    text = f"{'; '.join(refused)}; links are measured by the driver's counters where it has them"
    return warning("gpm", text) if _NO_PERMISSION in refused else ok("gpm", text)


def check_clock(facts: Facts) -> Iterator[Finding]:
    """Whether something keeps the clock. A job's hosts are aligned by measurement, so it may be wrong."""
    clock = facts.clock()
    if clock is None:
        yield unknown("clock", "the kernel does not say whether something keeps it")
    elif clock.kept:
        yield ok("clock", f"kept by NTP or the like, wrong by {clock.error_us / 1000:.0f} ms at most")
    else:
        yield warning(
            "clock",
            "nothing keeps this machine's clock",
            "start chrony, ntpd or systemd-timesyncd; it matters for jobs on several hosts only",
        )


def check_descriptors(facts: Facts) -> Iterator[Finding]:
    """Whether a hub can serve all ranks of a large machine."""
    if 0 <= facts.descriptors < FEW_DESCRIPTORS:
        yield warning(
            "files", f"a process may have {facts.descriptors} open files", "raise it: ulimit -n 1024"
        )
    else:
        yield ok("files", "a process may have enough of them open")


def _gpus(count: int) -> str:
    return f"{count} NVIDIA {'GPU' if count == 1 else 'GPUs'}"
