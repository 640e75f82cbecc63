"""Check this machine, and say how to fix problems: one function per check.

A check changes nothing, starts nothing and needs no root. torch is imported last, since it may take long or
end the process.
"""

import os
import platform
import re
import shutil
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from overlaptop import __version__
from overlaptop.agent.sources.cupti import library as cupti_library
from overlaptop.agent.sources.cupti.layouts import CONCURRENT_KERNEL, sizes_for
from overlaptop.agent.sources.cupti.library import tool_in
from overlaptop.agent.telemetry import nvml as nvml_library
from overlaptop.agent.telemetry.files import text_if_any
from overlaptop.agent.telemetry.nvml import Nvml, NvmlError
from overlaptop.agent.telemetry.rates import Gpm
from overlaptop.jobs.folder import WAY_OUT, JobFolderError, base_dir, why_not_writable
from overlaptop.jobs.gather_key import VARIABLE, GatherError, key_path, read_key
from overlaptop.jobs.record import JobRecord, list_jobs, read_job
from overlaptop.jobs.sockets import dashboards_socket
from overlaptop.records import CheckRecord
from overlaptop.remote.targets import ssh_program
from overlaptop.text import plural
from overlaptop.wire.protocol import PROTOCOL_VERSION

if TYPE_CHECKING:
    from types import ModuleType

FEW_FREE_BYTES = 16 << 20  # Least free space: the jobs' logs and the log of changes take some MB
FEW_COLUMNS, FEW_ROWS = 60, 15
REACH_LIMIT_S = 3.0
MAX_JOBS = 32  # Most jobs that are checked, newest first
OLDEST_TORCH = (2, 8)
_LONGEST_KEY, _LARGEST_PID = "0" * 12, 1 << 22
_NETWORK = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "9p", "afs", "fuse.sshfs")
_UNRESTRICT = (
    "have root set NVreg_RestrictProfilingToAdminUsers=0 for the module nvidia, or give the container "
    "CAP_SYS_ADMIN"
)
_WITHOUT_RECORDS = "timelines come from CUDA events meanwhile, which do not see single kernels"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that is checked."""

    root: Path = Path("/")  # Root of proc, sys and dev
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def nvidia_gpus(self) -> int:
        """Return the number of NVIDIA GPUs on the PCI bus, usable or not."""
        return sum(
            text_if_any(path) == "0x10de" and text_if_any(path.with_name("class")).startswith("0x03")
            for path in self.root.glob("sys/bus/pci/devices/*/vendor")
        )


def examine(machine: Machine) -> Iterator[CheckRecord]:
    """Check this machine. Yield each finding as soon as it is known."""
    for check in _CHECKS:
        try:
            yield from check(machine)
        except Exception as reason:  # noqa: BLE001 - a fault in one check must not hide others' findings
            text = f"the check itself failed ({type(reason).__name__}: {reason})"
            yield unknown(check.__name__.removeprefix("check_"), text)


def _finding(
    status: Literal["ok", "warning", "fault", "unknown"], check: str, text: str, remedy: str = ""
) -> CheckRecord:
    return CheckRecord(host="", check=check, status=status, finding=text, remedy=remedy)


ok = partial(_finding, "ok")
warning = partial(_finding, "warning")  # Monitoring works, with limits
fault = partial(_finding, "fault")  # It does not work
unknown = partial(_finding, "unknown")


def judged(check: str, text: str, remedy: str = "") -> CheckRecord:
    """Return a warning if there is a remedy."""
    return _finding("warning" if remedy else "ok", check, text, remedy)


# This program


def check_overlaptop(_machine: Machine) -> Iterator[CheckRecord]:
    version = f"{__version__}, protocol {PROTOCOL_VERSION}"
    yield ok("overlaptop", f"{version}, Python {platform.python_version()} at {sys.executable}")


# The socket directory, where ranks, hubs and dashboards find each other, and its jobs


def check_sockets(machine: Machine) -> Iterator[CheckRecord]:
    remedy = ""
    try:
        path = base_dir(create=False)
        dashboards_socket(_LONGEST_KEY, _LARGEST_PID)
        why = why_not_writable()
    except JobFolderError as reason:
        why = str(reason)
    except OSError as error:
        why, remedy = f"no temporary directory can be used ({error.strerror})", "set OVERLAPTOP_DIR"
    if why:
        yield fault("sockets", why, remedy)
        return
    there = path.exists()
    place = path if there else path.parent
    text = f"{path}, {'ours, mode 0700' if there else 'which the first job makes'}"
    if (kind := _file_system(text_if_any(machine.root / "proc/self/mounts"), place)) in _NETWORK:
        text = f"{place} is on a network file system ({kind}), where other hosts' jobs look like dead ones"
        remedy = "set OVERLAPTOP_DIR to a directory of this machine alone"
    elif (free_bytes := shutil.disk_usage(place).free) < FEW_FREE_BYTES:
        text, remedy = f"{place} has {free_bytes >> 20} MiB left", WAY_OUT
    yield judged("sockets", text, remedy)


def _file_system(mounts: str, place: Path) -> str:
    best, kind = -1, ""
    for words in map(str.split, mounts.splitlines()):
        point = Path(words[1].replace("\\040", " "))
        # If a folder has two mounts, the later one is visible.
        if (place == point or point in place.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), words[2]
    return kind


def check_jobs(machine: Machine) -> Iterator[CheckRecord]:
    try:
        jobs, base = list_jobs(), base_dir(create=False)
    except (JobFolderError, OSError):
        return  # check_sockets reports it
    for job in jobs[:MAX_JOBS]:
        yield _job(machine, job)
        if job.root_host:
            yield _gathered(job)
    strange = sorted(path for path in base.glob("*/job.json") if read_job(path.parent.name) is None)
    for path in strange[:MAX_JOBS]:
        remedy = "another version of overlaptop has written it, update the older one"
        yield warning("jobs", f"{path} cannot be read", remedy)
    if not jobs and not strange:
        yield ok("jobs", "none runs here")


def _job(machine: Machine, job: JobRecord) -> CheckRecord:
    name = f"{job.job}, {job.script}, {len(job.rank_pids)} of {job.world_size} ranks here"
    if job.protocol != PROTOCOL_VERSION:
        older = "this one" if job.protocol > PROTOCOL_VERSION else "that one"
        return fault(
            "jobs",
            f"{name}: it speaks protocol {job.protocol}, this overlaptop {PROTOCOL_VERSION}",
            f"watch it by `{job.python} -m overlaptop`, or update {older}",
        )
    for pid in job.rank_pids:
        if (tool := _tool_of(machine, pid)) is not None:
            text = f"{name}: {tool} holds CUPTI in process {pid}, so single kernels are not seen"
            return warning("jobs", text, "start it without that tool")
    return ok("jobs", f"{name}, protocol {job.protocol}")


def _tool_of(machine: Machine, pid: int) -> str | None:
    """Return the tool that uses CUPTI in a process, by its environment; None also if that is not ours."""
    data = b""
    with suppress(OSError):
        data = (machine.root / f"proc/{pid}/environ").read_bytes()
    pairs = (entry.partition("=") for entry in data.decode(errors="replace").split("\0"))
    return tool_in({name: value for name, _, value in pairs})


def _gathered(job: JobRecord) -> CheckRecord:
    place = f"the first node's hub of {job.job}, {job.root_host} port {job.root_port}"
    try:
        socket.create_connection((job.root_host, job.root_port), REACH_LIMIT_S).close()
    except OSError as error:
        why = error.strerror or "no answer"
        remedy = "let the job's nodes reach all ports of each other, as NCCL needs, too"
        return warning("gather", f"{place} cannot be reached ({why})", remedy)
    return ok("gather", f"{place} can be reached")


def check_key(_machine: Machine) -> Iterator[CheckRecord]:
    try:
        read_key()
    except GatherError as reason:
        none = "none: jobs with --gather need one on all nodes; `overlaptop key` makes it"
        is_there = VARIABLE in os.environ or key_path().exists()
        yield warning("key", str(reason)) if is_there else ok("key", none)
    else:
        yield ok("key", f"for --gather, in {'$' + VARIABLE if VARIABLE in os.environ else key_path()}")


# What the dashboard needs


def check_terminal(machine: Machine) -> Iterator[CheckRecord]:
    """Check the dashboard's terminal; no finding without one, as over ssh."""
    try:
        size = os.get_terminal_size()
    except OSError:
        return
    environ = machine.environ
    term = environ.get("TERM", "")
    text, remedy = f"{term}, {size.columns}x{size.lines}", ""
    if term in ("", "dumb", "unknown"):
        text, remedy = f"TERM is {term!r}", "set it to the terminal's type, such as xterm-256color"
    elif size.columns < FEW_COLUMNS or size.lines < FEW_ROWS:
        remedy = f"widen it to {FEW_COLUMNS}x{FEW_ROWS} or more to see all"
    yield judged("terminal", text, remedy)
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or "not set"
    if "utf8" in locale.lower().replace("-", "") and term != "linux":
        yield ok("unicode", f"the locale is {locale}")
    else:
        text = f"TERM is {term}, the locale is {locale}: blocks may not be drawn"
        yield warning("unicode", text, "set LANG=C.UTF-8 if the terminal has UTF-8, or use --ascii")


def check_ssh(_machine: Machine) -> Iterator[CheckRecord]:
    program = ssh_program()
    missing = f"there is no {program} here, so no host is reached by its name"
    path = shutil.which(program)
    yield judged("ssh", path or missing, "" if path else "install OpenSSH's client")


# The machine


def check_devices(machine: Machine) -> Iterator[CheckRecord]:
    found = sorted((machine.root / "dev").glob("nvidia*"))
    devices = [path for path in found if re.fullmatch(r"nvidia(ctl|-uvm|[0-9]+)", path.name)]
    closed = [path.name for path in devices if not os.access(path, os.R_OK | os.W_OK)]
    if not devices and machine.nvidia_gpus:
        text = f"{plural(machine.nvidia_gpus, 'NVIDIA GPU')} on the PCI bus, but no /dev/nvidia0"
        remedy = "load NVIDIA's driver, or give the container its GPUs (docker run --gpus all)"
        yield warning("devices", text, remedy)
    elif closed:
        text = f"this user may not open /dev/{', /dev/'.join(closed)}"
        remedy = "have root put them in the group that owns these (often video or render)"
        yield warning("devices", text, remedy)
    elif devices:
        yield ok("devices", f"/dev/nvidia*: all {len(devices)} may be opened")


def check_nvml(machine: Machine) -> Iterator[CheckRecord]:
    """Check that the GPUs' links and activity can be measured: by NVML, and by their own monitor (GPM)."""
    nvml_library.import_library()
    try:
        nvml = Nvml.open()
    except NvmlError as reason:
        if machine.nvidia_gpus:
            remedy = "until NVML works, links and clocks are unknown; nvidia-smi shows the same"
            yield warning("nvml", str(reason), remedy)
        else:
            yield ok("nvml", f"no NVIDIA GPU here ({reason})")
        return
    with closing(nvml):
        sites = nvml.gpus()
        driver = nvml.call("nvmlSystemGetDriverVersion")
        names = Counter(site.name for site in sites)
        gpus = ", ".join(f"{count}x {name}" for name, count in names.items()) or "no GPU"
        yield ok("nvml", f"driver {driver}, {gpus}")
        if refused := sorted({why for site in sites if (why := _gpm_refusal(nvml, site.uuid))}):
            text = f"{'; '.join(refused)}; links are measured by the driver's counters where it has them"
            yield warning("gpm", text) if "no permission" in refused else ok("gpm", text)
        elif sites:
            yield ok("gpm", f"{plural(len(sites), 'NVIDIA GPU')} measured by GPM")


def _gpm_refusal(nvml: Nvml, uuid: str) -> str:
    """Return why a GPU gives no sample; empty: it does."""
    try:
        with closing(Gpm(nvml, nvml.handle(uuid))) as gpm:
            gpm.read()
    except NvmlError as reason:
        # Expected: a first sample measures nothing yet.
        return "" if str(reason) == nvml_library.NOT_YET else str(reason)
    return ""


def check_torch(machine: Machine) -> Iterator[CheckRecord]:
    """Check that a job could train with this interpreter, and its kernels can be seen."""
    another = "run python -m overlaptop doctor with the interpreter that trains"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            import torch
        except ModuleNotFoundError:
            yield warning("torch", f"{sys.executable} has none, so nothing trains with it", another)
            return
        except Exception as reason:  # noqa: BLE001 - whatever a broken installation raises
            text = f"cannot be imported ({' '.join(str(reason).split())})"
            yield fault("torch", text, "install it again")
            return
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cuda, hip, there_are = torch.version.cuda, torch.version.hip, machine.nvidia_gpus
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "for the CPU"
    text = f"{torch.__version__}, {build}" + (f", sees {plural(gpus, 'GPU')}" if cuda or hip else "")
    hidden, remedy = machine.environ.get("CUDA_VISIBLE_DEVICES"), ""
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < OLDEST_TORCH:
        remedy = "the agent is made for 2.8 and newer, update it"
    elif there_are and not cuda:
        text, remedy = f"{text}, but this machine has GPUs", "install a build of torch for CUDA"
    elif there_are and not gpus and hidden is not None and not caught:
        text, remedy = f"{text} of {there_are}", f"CUDA_VISIBLE_DEVICES is {hidden!r}, change it"
    elif there_are and not gpus:
        why = f" ({caught[0].message})" if caught else ""
        text, remedy = f"{text} of {there_are}{why}", "this torch and the driver have to fit each other"
    yield judged("torch", text, remedy)
    yield _nccl(torch)
    if cuda:
        yield _cupti(machine)


def _nccl(torch: "ModuleType") -> CheckRecord:
    if not torch.distributed.is_available():
        return fault("nccl", "this torch has no torch.distributed", "install another build of it")
    if not torch.version.cuda:
        return ok("nccl", "RCCL, by ROCm" if torch.version.hip else "none: jobs on the CPU use gloo")
    if not torch.distributed.is_nccl_available():
        return warning("nccl", "this torch was built without it", "install another build of it")
    return ok("nccl", ".".join(map(str, torch.cuda.nccl.version())))


def _cupti(machine: Machine) -> CheckRecord:
    """Check that the kernels source could be used. No context is made on any GPU."""
    try:
        cupti = cupti_library.load()
        version = cupti.version()
        sizes_for(version)
    except RuntimeError as reason:
        return warning("cupti", str(reason), f"update overlaptop; {_WITHOUT_RECORDS}")
    if (tool := tool_in(machine.environ)) is not None:
        remedy = "start the job without that tool"
        return warning("cupti", f"{tool} holds it in processes started here", remedy)
    try:
        cupti.enable(CONCURRENT_KERNEL)
    except RuntimeError as reason:
        if "PRIVILEGE" in str(reason).upper():
            text = f"version {version} may not be used by this user ({reason})"
            return warning("cupti", text, f"{_UNRESTRICT}; {_WITHOUT_RECORDS}")
        if not machine.nvidia_gpus:
            return ok("cupti", f"version {version}, its records are known; there is no GPU here to record")
        return warning("cupti", f"version {version} does not record ({reason})", _WITHOUT_RECORDS)
    return ok("cupti", f"version {version}, its records are known, and it records")


_CHECKS: tuple[Callable[[Machine], Iterator[CheckRecord]], ...] = (
    check_overlaptop,
    check_sockets,
    check_jobs,
    check_key,
    check_terminal,
    check_ssh,
    check_devices,
    check_nvml,
    check_torch,
)
