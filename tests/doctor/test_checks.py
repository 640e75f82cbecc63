"""The doctor's checks, of a machine with two H200s on which all is well but for what a test changes."""

import os
import re
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

from overlaptop import __version__, doctor
from overlaptop.agent.sources.cupti.library import CuptiError
from overlaptop.doctor import Machine, examine
from overlaptop.jobs.folder import job_dir
from overlaptop.jobs.gather_key import VARIABLE, make_key
from overlaptop.jobs.processes import process_start_time
from overlaptop.jobs.record import write_job
from overlaptop.wire.protocol import PROTOCOL_VERSION
from tests.agent.telemetry.machines import h200_pair
from tests.fleet.fakes import record
from tests.snapshots import check_page

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
PAGES = Path(__file__).with_name("pages")


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
        self.root = self.root.with_name(f"{self.root.name}_")  # without what was there before
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


# Each thing that may be amiss: what a test changes of the machine.


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


def without_gpu(scene):
    scene.files = {"proc/self/mounts": "/dev/nvme0n1p2 / ext4 rw 0 0\n"}
    scene.nvml.refuse["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    scene.torch.version.cuda = None


def sockets_in(folder):
    """The socket directory lies in another folder, of which one is open to others."""

    def change(scene):
        base = Path(os.environ["OVERLAPTOP_DIR"])
        (base / "open").mkdir()
        (base / "open").chmod(0o770)
        scene.monkeypatch.setenv("OVERLAPTOP_DIR", str(base / folder))

    return change


def job(**changes):
    """A job whose hub is this process."""

    def change(scene):
        pid, ticks = os.getpid(), process_start_time(os.getpid())
        made = record(
            "abc", hub_pid=pid, hub_start_ticks=ticks, starter_pid=pid, starter_start_ticks=ticks,
            dashboard_socket=f"dash-{pid}.sock", protocol=PROTOCOL_VERSION, world_size=8,
            python="/venv/bin/python", rank_pids=(4242, 4243),
        )  # fmt: skip
        job_dir("abc", create=True)
        write_job(replace(made, **changes))

    return change


def profiled_job(scene):
    job()(scene)
    scene.files["proc/4243/environ"] = "PATH=/bin\0CUDA_INJECTION64_PATH=/opt/x.so\0"


def strange_record(_scene):
    (job_dir("abc", create=True) / "job.json").write_text('{"protocol": 99}')


def open_key(_scene):
    make_key().chmod(0o644)


SCENES = {
    "all is well": changed(),
    "no GPU": without_gpu,
    "a full disk": changed(free_bytes=8 << 20),
    "Lustre": changed(files={**H200, "proc/self/mounts": "server:/x / lustre rw 0 0\n"}),
    "a container without devices": changed(files={name: H200[name] for name in H200 if name[:3] != "dev"}),
    "a closed device": patched(os, "access", lambda path, _mode: Path(path).name != "nvidiactl"),
    "no ssh": patched(shutil, "which", lambda _name: None),
    "a small terminal": changed(size=os.terminal_size((50, 40))),
    "no terminal": changed(size=None),
    "a dumb terminal": changed(environ={"TERM": "dumb", "LANG": "C.UTF-8"}),
    "no locale": changed(environ={"TERM": "xterm"}),
    "the console": changed(environ={"TERM": "linux", "LANG": "C.UTF-8"}),
    "no driver": refused("nvmlInit", pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
    "GPM not supported": refused("nvmlGpmQueryDeviceSupport", pynvml.NVML_ERROR_NOT_SUPPORTED),
    "GPM not permitted": refused("nvmlGpmSampleGet", pynvml.NVML_ERROR_NO_PERMISSION),
    "no torch": changed(torch=None),
    "an old torch": lambda scene: setattr(scene.torch, "__version__", "2.6"),
    "a torch without CUDA": changed(torch__version__cuda=None),
    "a torch that sees no GPU": no_gpu_seen(),
    "a torch that says why it sees none": no_gpu_seen("the driver is too old"),
    "hidden GPUs": no_gpu_seen(CUDA_VISIBLE_DEVICES=""),
    "a torch without torch.distributed": changed(torch__distributed__is_available=lambda: False),
    "a torch without NCCL": changed(torch__distributed__is_nccl_available=lambda: False),
    "a new CUPTI": changed(cupti__version=lambda: 999999),
    "CUPTI not permitted": changed(cupti__enable=raising(CuptiError("INSUFFICIENT_PRIVILEGES"))),
    "CUPTI held": changed(cupti__enable=raising(CuptiError("HELD"))),
    "Nsight Systems": lambda scene: scene.environ.update(NSYS_PROFILING_SESSION_ID="7"),
    "a fault in a check": changed(torch__cuda__device_count=lambda: 1 / 0),
    "no socket directory yet": sockets_in("missing"),
    "a folder that cannot be made": sockets_in("/proc/nowhere/sockets"),
    "a folder open to others": sockets_in("open"),
    "a long folder": sockets_in("x" * 90),
    "a job": job(),
    "a job of an older protocol": job(protocol=PROTOCOL_VERSION - 1),
    "a job of a newer protocol": job(protocol=PROTOCOL_VERSION + 1),
    "a profiled job": profiled_job,
    "a strange record": strange_record,
    "a key": lambda _scene: make_key(),
    "a key that others can read": open_key,
}


def lines_of(found, socket_dir, tmp_path):
    for each in found.values():
        said = f"{each.finding}: {each.remedy}" if each.remedy else each.finding
        for place, name in (
            (socket_dir, "SOCKETS"),
            (tmp_path, "HOME"),
            (sys.executable, "PYTHON"),
            (__version__, "VERSION"),
        ):
            said = said.replace(str(place), name)
        said = re.sub(r"(protocol|this overlaptop|Python) [0-9.]+|[0-9]+( bytes long)", r"\1 N\2", said)
        yield f"{each.status:7}  {each.check:10}  {said}\n"


@pytest.mark.parametrize("name", SCENES)
def test_each_thing_that_is_amiss_is_found_as_in_its_page(scene, socket_dir, tmp_path, name):
    """The page has the difference from the page where all is well."""
    well = [*lines_of(scene.look(), socket_dir, tmp_path)]
    SCENES[name](scene)
    found = [*lines_of(scene.look(), socket_dir, tmp_path)]
    gone = [f"- {line}" for line in well if line not in found]
    come = [f"+ {line}" for line in found if line not in well]
    check_page(PAGES, name, "".join([*gone, *come] if name != "all is well" else well))


def test_port_of_a_gathered_job_out_of_reach_is_a_warning(scene):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        job(root_host="127.0.0.1", root_port=port)(scene)
        reached = scene.look()["gather"]
    closed = scene.look()["gather"]
    place = f"the first node's hub of abc, 127.0.0.1 port {port}"
    assert (reached.status, reached.finding) == ("ok", f"{place} can be reached")
    assert (closed.status, closed.finding) == ("warning", f"{place} cannot be reached (Connection refused)")
