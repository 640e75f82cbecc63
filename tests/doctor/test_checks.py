"""The doctor's checks, of a machine with two H200s on which all is well but for what a test changes."""

import os
import shutil
import socket
import sys
import warnings
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from msgspec.structs import replace

from overlaptop import doctor
from overlaptop.agent.sources.cupti.library import CuptiError
from overlaptop.doctor import Machine, examine
from overlaptop.jobs.folder import job_dir
from overlaptop.jobs.gather_key import VARIABLE, make_key
from overlaptop.jobs.processes import process_start_time
from overlaptop.jobs.record import write_job
from overlaptop.wire.protocol import PROTOCOL_VERSION
from tests.agent.telemetry.machines import h200_pair
from tests.fleet.fakes import record

H200 = {
    "dev/nvidia0": "",
    "dev/nvidia1": "",
    "dev/nvidiactl": "",
    "dev/nvidia-uvm": "",
    "dev/nvidia-caps": "",
    "sys/bus/pci/devices/0000:1b:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:1b:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:43:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:43:00.0/class": "0x030200\n",
    # An NVSwitch.
    "sys/bus/pci/devices/0000:05:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:05:00.0/class": "0x068000\n",
    "proc/self/mounts": "overlay / overlay rw 0 0\n",
}
"""Two H200s under driver 580, as sysfs and /dev show them; what no check reads is left out."""
LAPTOP = {"proc/self/mounts": "/dev/nvme0n1p2 / ext4 rw 0 0\n"}
RANK_PID = 4242


class Scene:
    """The machine. A test changes its parts, and looks."""

    def __init__(self, root, monkeypatch):
        self.root, self.monkeypatch = root, monkeypatch
        self.files = dict(H200)
        self.environ = {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
        self.size = os.terminal_size((120, 40))
        self.free_bytes = 1 << 30
        self.nvml = h200_pair()
        self.torch = SimpleNamespace(
            __version__="2.11.0+cu130",
            version=SimpleNamespace(cuda="13.0", hip=None),
            distributed=SimpleNamespace(is_available=lambda: True, is_nccl_available=lambda: True),
            cuda=SimpleNamespace(
                is_available=lambda: True,
                device_count=lambda: 2,
                nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
            ),
        )
        self.cupti = SimpleNamespace(version=lambda: 130000, enable=lambda _kind: None)

    def look(self):
        for name, text in self.files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.monkeypatch.setitem(sys.modules, "pynvml", self.nvml)
        patch = self.monkeypatch.setattr
        patch(os, "get_terminal_size", lambda: self.size or raising(OSError())())
        patch(shutil, "disk_usage", lambda _path: SimpleNamespace(free=self.free_bytes))
        patch(doctor.cupti_library, "load", lambda: self.cupti)
        self.monkeypatch.setitem(sys.modules, "torch", self.torch)
        found = {}
        for each in examine(Machine(self.root, self.environ)):
            assert each.check not in found
            found[each.check] = each
        return found


@pytest.fixture
def scene(tmp_path, monkeypatch, socket_dir):
    monkeypatch.delenv("OVERLAPTOP_SSH", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    return Scene(tmp_path / "root", monkeypatch)


def test_machine_on_which_all_is_well_has_a_line_each(scene, socket_dir):
    found = scene.look()
    found.pop("overlaptop")  # as this machine's is
    assert {name: check.finding for name, check in found.items()} == {
        "sockets": f"{socket_dir}, ours, mode 0700",
        "jobs": "none runs here",
        "key": "none: jobs with --gather need one on all nodes; `overlaptop key` makes it",
        "terminal": "xterm-256color, 120x40",
        "unicode": "the locale is C.UTF-8",
        "ssh": "/usr/bin/ssh",
        "devices": "/dev/nvidia*: all 4 may be opened",
        "nvml": "driver 580.95.05, 2x NVIDIA H200",
        "gpm": "2 NVIDIA GPUs measured by GPM",
        "torch": "2.11.0+cu130, CUDA 13.0, sees 2 GPUs",
        "nccl": "2.28.9",
        "cupti": "version 130000, its records are known, and it records",
    }
    assert {check.status for check in found.values()} == {"ok"}


def test_a_laptop_without_a_gpu_is_well(scene):
    scene.files = LAPTOP
    scene.nvml.refuse["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    scene.torch.version.cuda = None
    found = scene.look()
    assert not {"devices", "gpm", "cupti"} & set(found)
    assert found["nvml"].finding == "no NVIDIA GPU here (no NVIDIA driver is loaded)"
    assert found["nccl"].finding == "none: jobs on the CPU use gloo"
    assert {check.status for check in found.values()} == {"ok"}


# Each thing that may be amiss: what a test changes of the machine, and what is found then.


def changed(**values):
    """``torch__cuda__device_count=f`` is scene.torch.cuda.device_count = f."""

    def change(scene):
        for name, value in values.items():
            *path, last = name.split("__")
            setattr(reduce(getattr, path, scene), last, value)

    return change


def refused(function, code):
    return lambda scene: scene.nvml.refuse.update({function: code})


def no_gpu_seen(caught="", **environ):
    def is_available():
        if caught:
            warnings.warn(caught, stacklevel=1)
        return False

    def change(scene):
        scene.environ.update(environ)
        scene.torch.cuda.is_available = is_available

    return change


def raising(error):
    def fail(*_arguments):
        raise error

    return fail


def patched(place, name, value):
    return lambda scene: scene.monkeypatch.setattr(place, name, value)


LUSTRE = {**H200, "proc/self/mounts": "server:/x / lustre rw 0 0\n"}
UNSEEN = {name: text for name, text in H200.items() if not name.startswith("dev/")}


@pytest.mark.parametrize(
    ("change", "check", "status", "words"),
    [
        (changed(free_bytes=8 << 20), "sockets", "warning", "has 8 MiB left: make room"),
        (changed(files=LUSTRE), "sockets", "warning", "network file system (lustre)"),
        (changed(files=UNSEEN), "devices", "warning", "2 NVIDIA GPUs on the PCI bus, but no /dev/nvidia0"),
        (
            patched(os, "access", lambda path, _mode: Path(path).name != "nvidiactl"),
            "devices", "warning", "this user may not open /dev/nvidiactl",
        ),
        (patched(shutil, "which", lambda _name: None), "ssh", "warning", "there is no ssh here"),
        (changed(size=os.terminal_size((50, 40))), "terminal", "warning", "50x40: widen it"),
        (changed(environ={"TERM": "dumb", "LANG": "C.UTF-8"}), "terminal", "warning", "TERM is 'dumb'"),
        (changed(environ={"TERM": "xterm"}), "unicode", "warning", "the locale is not set"),
        (changed(environ={"TERM": "linux", "LANG": "C.UTF-8"}), "unicode", "warning", "use --ascii"),
        (refused("nvmlInit", 9), "nvml", "warning", "no NVIDIA driver is loaded: until NVML"),
        (refused("nvmlGpmQueryDeviceSupport", 3), "gpm", "ok", "not supported by this GPU"),
        (refused("nvmlGpmSampleGet", 4), "gpm", "warning", "no permission; links"),
        (changed(torch=None), "torch", "warning", "has none, so nothing trains with it"),
        (lambda scene: setattr(scene.torch, "__version__", "2.6"), "torch", "warning", "made for 2.8 and"),
        (changed(torch__version__cuda=None), "torch", "warning", "install a build of torch for CUDA"),
        (no_gpu_seen(), "torch", "warning", "sees 0 GPUs of 2: this torch and the driver have to fit"),
        (no_gpu_seen("the driver is too old"), "torch", "warning", "of 2 (the driver is too old)"),
        (no_gpu_seen(CUDA_VISIBLE_DEVICES=""), "torch", "warning", "CUDA_VISIBLE_DEVICES is ''"),
        (changed(torch__distributed__is_available=lambda: False), "nccl", "fault", "torch.distributed"),
        (changed(torch__distributed__is_nccl_available=lambda: False), "nccl", "warning", "without it"),
        (changed(cupti__version=lambda: 999999), "cupti", "warning", "of CUPTI 999999 are not known"),
        (
            changed(cupti__enable=raising(CuptiError("INSUFFICIENT_PRIVILEGES"))),
            "cupti", "warning", "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (changed(cupti__enable=raising(CuptiError("HELD"))), "cupti", "warning", "does not record (HELD)"),
        (changed(environ={"NSYS_PROFILING_SESSION_ID": "7"}), "cupti", "warning", "Nsight Systems holds"),
        # A fault in one check hides no other.
        (changed(torch__cuda__device_count=lambda: 1 / 0), "torch", "unknown", "failed (ZeroDivisionError"),
        (changed(size=None), "torch", "ok", "sees 2 GPUs"),
    ],
)  # fmt: skip
def test_each_thing_that_is_amiss_has_its_finding(scene, change, check, status, words):
    change(scene)
    found = scene.look()[check]
    assert found.status == status
    assert words in f"{found.finding}: {found.remedy}"


# The socket directory and the jobs in it


@pytest.mark.parametrize(
    ("folder", "status", "words"),
    [
        ("missing", "ok", "missing, which the first job makes"),
        ("/proc/nowhere/sockets", "fault", "cannot write to /proc/nowhere: "),
        ("open", "fault", "has mode 0770, not 0700: run chmod 700"),
        ("x" * 90, "fault", "a shorter directory"),
    ],
)
def test_a_directory_is_not_made_and_a_fault_if_it_cannot_be(
    scene, socket_dir, monkeypatch, folder, status, words
):
    (socket_dir / "open").mkdir()
    (socket_dir / "open").chmod(0o770)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(socket_dir / folder))
    found = scene.look()["sockets"]
    assert (found.status, words in found.finding) == (status, True)
    assert [path.name for path in socket_dir.iterdir()] == ["open"]


def write(key, **changes):
    """The record of a job whose hub is this process."""
    pid, ticks = os.getpid(), process_start_time(os.getpid())
    made = record(
        key, hub_pid=pid, hub_start_ticks=ticks, starter_pid=pid, starter_start_ticks=ticks,
        dashboard_socket=f"dash-{pid}.sock", protocol=PROTOCOL_VERSION, world_size=8,
        python="/venv/bin/python", rank_pids=(RANK_PID, RANK_PID + 1),
    )  # fmt: skip
    job_dir(key, create=True)
    write_job(replace(made, **changes))


OTHER = "watch it by `/venv/bin/python -m overlaptop`, or update"
PROFILED = {f"proc/{RANK_PID + 1}/environ": "PATH=/bin\0CUDA_INJECTION64_PATH=/opt/x.so\0"}


@pytest.mark.parametrize(
    ("protocol", "files", "status", "words"),
    [
        (0, {}, "ok", f"abc, train.py, 2 of 8 ranks here, protocol {PROTOCOL_VERSION}: "),
        (-1, {}, "fault", f"{OTHER} that one"),
        (1, {}, "fault", f"{OTHER} this one"),
        (0, PROFILED, "warning", f"a CUDA profiler holds CUPTI in process {RANK_PID + 1}"),
    ],
)
def test_a_job_is_a_line_with_its_protocol_or_its_profiler(scene, protocol, files, status, words):
    write("abc", protocol=PROTOCOL_VERSION + protocol)
    scene.files |= files
    found = scene.look()["jobs"]
    assert (found.status, words in f"{found.finding}: {found.remedy}") == (status, True)


def test_port_of_a_gathered_job_out_of_reach_is_a_warning(scene):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        write("abc", root_host="127.0.0.1", root_port=port)
        reached = scene.look()["gather"]
    closed = scene.look()["gather"]
    place = f"the first node's hub of abc, 127.0.0.1 port {port}"
    assert (reached.status, reached.finding) == ("ok", f"{place} can be reached")
    assert (closed.status, closed.finding) == ("warning", f"{place} cannot be reached (Connection refused)")


def test_a_key_that_others_can_read_or_a_strange_record_is_a_warning(scene):
    path = make_key()
    found = scene.look()["key"]
    assert (found.status, found.finding) == ("ok", f"for --gather, in {path}")
    path.chmod(0o644)
    (job_dir("abc", create=True) / "job.json").write_text('{"protocol": 99}')
    found = scene.look()
    assert {found[check].status for check in ("key", "jobs")} == {"warning"}
    assert "run chmod 600" in found["key"].finding
    assert "abc/job.json cannot be read" in found["jobs"].finding
