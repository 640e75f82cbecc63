"""The machine: its GPUs, what this user may do with them, its clock and its bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from overlaptop.doctor.facts import Facts
from overlaptop.doctor.findings import Finding, ok, unknown, warning
from overlaptop.doctor.probing import ProbeReport
from overlaptop.text import plural

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
                f"{plural(facts.nvidia_gpus, 'NVIDIA GPU')} on the PCI bus, but no /dev/nvidia0",
                "load NVIDIA's driver, or give the container its GPUs (docker run --gpus all)",
            )
        return
    if closed := [path.name for path in facts.nvidia_devices if not facts.may_open(path)]:
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
    values = [line.partition(":")[2].strip() for line in lines if line.startswith(f"{_ADMIN_ONLY}:")]
    if not values:
        return unknown("counters", f"/{_PARAMETERS} does not say who may read the GPUs' counters")
    who, need = ("any user", "") if values[0] == "0" else ("only root", "; CUPTI needs none")
    return ok("counters", f"{who} may read the GPUs' counters ({_ADMIN_ONLY}: {values[0]}){need}")


def check_gpus(facts: Facts, report: ProbeReport) -> Iterator[Finding]:
    """NVML, and the GPUs' own monitor, by what a probe has report."""
    nvml = report.sections.get("nvml")
    if nvml is None:
        yield unknown("nvml", f"asking it: {report.end}")
    elif "error" in nvml:
        yield _without_nvml(facts, nvml["error"])
    else:
        names: Counter[str] = Counter(nvml["gpus"])
        gpus = ", ".join(f"{count}x {name}" for name, count in names.items()) or "no GPU"
        yield ok("nvml", f"driver {nvml['driver']}, {gpus}")
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
    gpm = report.sections.get("gpm")
    if gpm is None:
        return unknown("gpm", f"asking for a sample: {report.end}")
    refused = gpm["refused"]
    if not refused:
        return ok("gpm", f"{plural(gpm['gpus'], 'NVIDIA GPU')} measured by GPM")
    text = f"{'; '.join(refused)}; links are measured by the driver's counters where it has them"
    return warning("gpm", text) if _NO_PERMISSION in refused else ok("gpm", text)


def check_clock(facts: Facts) -> Finding:
    """Whether something keeps the clock. A job's hosts are aligned by measurement, so it may be wrong."""
    clock = facts.clock()
    if clock is None:
        return unknown("clock", "the kernel does not say whether something keeps it")
    if clock.kept:
        return ok("clock", f"kept by NTP or the like, wrong by {clock.error_us / 1000:.0f} ms at most")
    return warning(
        "clock",
        "nothing keeps this machine's clock",
        "start chrony, ntpd or systemd-timesyncd; it matters for jobs on several hosts only",
    )


def check_descriptors(facts: Facts) -> Finding:
    """Whether a hub can serve all ranks of a large machine."""
    if 0 <= facts.descriptors < FEW_DESCRIPTORS:
        text = f"a process may have {facts.descriptors} open files"
        return warning("files", text, "raise it: ulimit -n 1024")
    return ok("files", "a process may have enough of them open")
