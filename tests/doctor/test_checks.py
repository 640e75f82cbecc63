"""All checks of a machine that is not there: it is well, but for what a test changes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overlaptop import __version__
from overlaptop.doctor.children import Completed
from overlaptop.doctor.facts import KernelClock, kernel_clock
from overlaptop.doctor.findings import Finding, Status
from overlaptop.doctor.here import examine
from overlaptop.doctor.installed import check_installation
from overlaptop.wire.protocol import PROTOCOL_VERSION

from .machines import H200, LAPTOP, Answer, Programs, by_check, machine, printed

OK, WARNING, FAULT, UNKNOWN = Status.OK, Status.WARNING, Status.FAULT, Status.UNKNOWN
PARAMETERS = "proc/driver/nvidia/params"

# What the probes report.
NVML = {"of": "nvml", "driver": "580.95.05", "gpus": ["NVIDIA H200", "NVIDIA H200"]}
GPM = {"of": "gpm", "gpus": 2, "refused": []}
PYTHON = {"of": "python", "version": "3.12.3"}
AGENT = {
    "of": "overlaptop", "version": "0.1.0", "protocol": PROTOCOL_VERSION, "path": "/venv/overlaptop",
    "missing": [],
}  # fmt: skip
TORCH = {
    "of": "torch", "version": "2.11.0+cu130", "cuda": "13.0", "hip": None, "distributed": True,
    "nccl": "2.28.9", "gpus": 2, "warning": "",
}  # fmt: skip
CUPTI = {"of": "cupti", "path": "/venv/libcupti.so.13", "version": 130000}
RECORDING = {"of": "recording", "refusal": ""}
SECTIONS = {"gpus": (NVML, GPM), "software": (PYTHON, AGENT, TORCH, CUPTI, RECORDING)}
OF_CPU = {**TORCH, "version": "2.13.0+cpu", "cuda": None, "nccl": None, "gpus": 0}
NO_GPU = {**TORCH, "gpus": 0}
NO_OVERLAPTOP = {"of": "overlaptop", "error": "No module named 'overlaptop'"}


class Scene:
    """Looks at a machine with two H200s, a terminal, ssh and a torch for CUDA, all of which is well."""

    def __init__(self, tmp_path: Path) -> None:
        self._root = tmp_path / "root"

    def __call__(
        self,
        *sections: Mapping[str, object],
        lacks: Iterable[str] = (),
        end: str = "",
        ssh: Answer = Completed(0, "", "OpenSSH_9.2p1\n"),  # noqa: B008
        files: Mapping[str, str] = H200,
        **changes: Any,
    ) -> dict[str, Finding]:
        """`sections` replace those of their names. `lacks`: what a probe had not told by its `end`."""
        replaced = {section["of"]: section for section in sections}

        def answers(argv: Sequence[str]) -> Answer:
            if argv[-1] not in SECTIONS:
                assert argv[-1] == "-V"
                return ssh
            told = [
                replaced.get(each["of"], each) for each in SECTIONS[argv[-1]] if each["of"] not in lacks
            ]
            return printed(*told, status=1 if end else 0, errors=end)

        environ = {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
        made = {"start": Programs(answers), "environ": environ, **changes}
        return by_check(examine(machine(self._root, files, **made)))


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    (tmp_path / "sockets").mkdir(mode=0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(tmp_path / "sockets"))
    monkeypatch.delenv("OVERLAPTOP_SSH", raising=False)
    return Scene(tmp_path)


def test_a_machine_that_is_well_has_a_line_for_each_thing(look: Scene) -> None:
    found = look()
    assert {name: finding.line for name, finding in found.items() if name != "sockets"} == {
        "overlaptop": f"{__version__}, protocol {PROTOCOL_VERSION}",
        "jobs": "none runs here",
        "terminal": "xterm-256color, 120x40, 256 colours",
        "unicode": "LANG is C.UTF-8",
        "ssh": "OpenSSH_9.2p1",
        "clock": "kept by NTP or the like, wrong by 2 ms at most",
        "files": "a process may have enough of them open",
        "devices": "/dev/nvidia*: all 4 may be opened",
        "counters": "only root may read the GPUs' counters (RmProfilingAdminOnly: 1); CUPTI needs none",
        "nvml": "driver 580.95.05, 2x NVIDIA H200",
        "gpm": "2 NVIDIA GPUs measured by GPM",
        "python": "3.12.3, /venv/bin/python",
        "agent": "overlaptop 0.1.0, /venv/overlaptop",
        "torch": "2.11.0+cu130, CUDA 13.0, sees 2 GPUs",
        "nccl": "2.28.9",
        "cupti": "version 130000, its records are known, and it records",
    }
    assert {finding.status for finding in found.values()} == {OK}


def test_a_laptop_that_trains_on_its_cpu_is_well_and_rocm_has_neither_nccl_nor_cupti(look: Scene) -> None:
    found = look({"of": "nvml", "error": "no NVIDIA driver"}, OF_CPU, files=LAPTOP)
    assert not {"devices", "counters", "gpm", "cupti"} & set(found)
    assert found["nvml"].text == "no NVIDIA GPU here (no NVIDIA driver)"
    assert {finding.status for finding in found.values()} == {OK}
    found = look({**TORCH, "cuda": None, "hip": "6.4", "nccl": None}, files=LAPTOP)
    assert found["torch"].text == "2.11.0+cu130, ROCm 6.4, sees 2 GPUs"
    assert found["nccl"].text == "RCCL, by ROCm"
    assert "cupti" not in found


def without(*beginnings: str) -> dict[str, dict[str, str]]:
    """The files of H200 but for those that begin so."""
    return {"files": {name: text for name, text in H200.items() if not name.startswith(beginnings)}}


def counters(text: str) -> dict[str, dict[str, str]]:
    return {"files": {**H200, PARAMETERS: text}}


def environ(**variables: str) -> dict[str, dict[str, str]]:
    return {"environ": variables}


def ended_after(*told: str) -> dict[str, object]:
    """The probes crashed once they had told of these."""
    every = [each["of"] for sections in SECTIONS.values() for each in sections]
    return {"end": "it crashed", "lacks": [name for name in every if name not in told]}


def space(free_bytes: int, flag: int = 0, files: int = 1000, free_files: int = 10) -> dict[str, Any]:
    room = SimpleNamespace(
        f_bavail=free_bytes // 4096, f_frsize=4096, f_flag=flag, f_files=files, f_favail=free_files
    )
    return {"space": lambda _path: room}


def mounted(kind: str) -> dict[str, dict[str, str]]:
    """A network file system, and another one of this kind on the temporary directory."""
    mounts = f"server:/x / nfs4 rw 0 0\nnone {tempfile.gettempdir()} {kind} rw 0 0\n"
    return {"files": {**H200, "proc/self/mounts": mounts}}


NAMED = {"named": True}
BEFORE_TORCH = ("python", "overlaptop")


@pytest.mark.parametrize(
    ("sections", "changes", "check", "status", "words"),
    [
        ([], space(1 << 30), "sockets", OK, "/sockets, ours, mode 0700"),
        ([], space(8 << 20), "sockets", WARNING, "has 8 MiB left"),
        ([], space(4096), "sockets", FAULT, "is full"),
        ([], space(1 << 30, free_files=0), "sockets", FAULT, "is full"),
        ([], space(1 << 30, files=0, free_files=0), "sockets", OK, "mode 0700"),
        ([], space(1 << 30, flag=os.ST_RDONLY), "sockets", FAULT, "can only be read"),
        ([], mounted("lustre"), "sockets", WARNING, "network file system (lustre)"),
        ([], mounted("tmpfs"), "sockets", OK, "mode 0700"),
        ([], without("dev/"), "devices", WARNING, "2 NVIDIA GPUs on the PCI bus, but no /dev/nvidia0"),
        (
            [], {"may_open": lambda path: path.name != "nvidiactl"},
            "devices", WARNING, "this user may not open /dev/nvidiactl: have root put them in the group",
        ),
        ([], counters("RmProfilingAdminOnly: 0\n"), "counters", OK, "any user may read"),
        ([], counters("Something: 0\n"), "counters", UNKNOWN, "does not say who may read"),
        ([{**GPM, "refused": ["it has no GPM"]}], {}, "gpm", OK, "it has no GPM; links"),
        ([{**GPM, "refused": ["no permission"]}], {}, "gpm", WARNING, "no permission; links"),
        ([{"of": "nvml", "error": "versions differ"}], {}, "nvml", WARNING, "versions differ: nvidia-smi"),
        ([{"of": "nvml", "error": "nvidia-ml-py is missing"}], {}, "nvml", WARNING, "pip install"),
        ([], ended_after(), "nvml", UNKNOWN, "asking it: it crashed"),
        ([], ended_after("nvml"), "gpm", UNKNOWN, "asking for a sample: it crashed"),
        (
            [], {"clock": lambda: KernelClock(kept=False, error_us=16_000_000)},
            "clock", WARNING, "nothing keeps this machine's clock",
        ),
        ([], {"clock": lambda: None}, "clock", UNKNOWN, "does not say"),
        # A fault in one check hides no other.
        ([], {"clock": lambda: 1 / 0}, "clock", UNKNOWN, "failed (ZeroDivisionError: division by zero)"),
        ([], {"clock": lambda: 1 / 0}, "torch", OK, "sees 2 GPUs"),
        ([], {"descriptors": 64}, "files", WARNING, "64 open files"),
        ([], {"descriptors": -1}, "files", OK, "enough"),
        ([], environ(TERM="xterm-256color", COLORTERM="truecolor"), "terminal", OK, "16 million colours"),
        ([], environ(TERM="xterm-direct"), "terminal", OK, "16 million colours"),
        ([], environ(TERM="xterm"), "terminal", OK, "16 colours"),
        ([], environ(TERM="xterm", COLORTERM="24bit", NO_COLOR="1"), "terminal", OK, "NO_COLOR is set"),
        ([], environ(TERM="dumb"), "terminal", WARNING, "TERM is 'dumb'"),
        ([], environ(), "terminal", WARNING, "TERM is ''"),
        ([], {"terminal": os.terminal_size((50, 40))}, "terminal", WARNING, "50x40"),
        ([], {"terminal": None}, "terminal", UNKNOWN, "--json"),
        # The first of the locale's variables decides.
        ([], environ(LANG="C", LC_ALL="C.utf8"), "unicode", OK, "LC_ALL is C.utf8"),
        ([], environ(LANG="en_US.UTF-8", LC_CTYPE="POSIX"), "unicode", WARNING, "LC_CTYPE is POSIX"),
        ([], environ(), "unicode", WARNING, "no locale is set"),
        ([], environ(LANG="C.UTF-8", TERM="linux"), "unicode", WARNING, "--ascii"),
        ([], {"ssh": Completed(255, "", "unknown option -- V\n")}, "ssh", UNKNOWN, "unknown option -- V"),
        ([], {"ssh": Completed(None, "", "")}, "ssh", UNKNOWN, "no output"),
        ([], {"ssh": PermissionError(13, "Permission denied")}, "ssh", WARNING, "Permission denied"),
        ([], {"which": lambda _name: None}, "ssh", WARNING, "no ssh here, so no host is reached"),
        ([], {**ended_after(), **NAMED}, "python", FAULT, "it crashed: name another one"),
        ([{**PYTHON, "version": "3.9.21"}], NAMED, "python", FAULT, "is Python 3.9.21"),
        # What lacks is a fault of an interpreter that the user named; jobs may have another one.
        ([NO_OVERLAPTOP], NAMED, "agent", FAULT, "'overlaptop'): pip install it"),
        ([NO_OVERLAPTOP], {}, "agent", WARNING, "'overlaptop'): pip install it"),
        ([{"of": "torch", "absent": True}], NAMED, "torch", FAULT, "has none"),
        ([{"of": "torch", "error": "libcudart.so.13"}], NAMED, "torch", FAULT, "libcudart.so.13"),
        ([{**AGENT, "protocol": 3}], {}, "agent", FAULT, "update that one"),
        ([{**AGENT, "protocol": PROTOCOL_VERSION + 1}], {}, "agent", FAULT, "update this one"),
        ([{**AGENT, "missing": ["msgpack", "zmq"]}], {}, "agent", FAULT, "pip install msgpack pyzmq"),
        ([], ended_after(*BEFORE_TORCH), "agent", OK, "overlaptop 0.1.0"),
        ([], ended_after(*BEFORE_TORCH), "torch", UNKNOWN, "importing it: it crashed"),
        ([{**TORCH, "version": "2.6.0+cu124"}], {}, "torch", WARNING, "made for 2.8 and newer"),
        ([OF_CPU], {}, "torch", WARNING, "for CUDA"),
        ([{**NO_GPU, "warning": "The driver is too old"}], {}, "torch", WARNING, "too old"),
        ([NO_GPU], {}, "torch", WARNING, "have to fit each other"),
        ([NO_GPU], environ(CUDA_VISIBLE_DEVICES=""), "torch", WARNING, "CUDA_VISIBLE_DEVICES is ''"),
        ([{**TORCH, "nccl": None}], {}, "nccl", WARNING, "built without it"),
        ([{**TORCH, "distributed": False}], NAMED, "nccl", FAULT, "no torch.distributed"),
        ([{"of": "cupti", "absent": True}], {}, "cupti", WARNING, "not loaded libcupti"),
        ([{**CUPTI, "version": None}], {}, "cupti", WARNING, "does not say its version"),
        ([{**CUPTI, "version": 999999}], {}, "cupti", WARNING, "of CUPTI 999999 are not known"),
        ([], ended_after(*BEFORE_TORCH, "torch"), "cupti", UNKNOWN, "looking for it"),
        ([], ended_after(*BEFORE_TORCH, "torch", "cupti"), "cupti", UNKNOWN, "asked to record"),
        (
            [{**RECORDING, "refusal": "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"}],
            {}, "cupti", WARNING, "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (
            [{**RECORDING, "refusal": "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS"}],
            {}, "cupti", WARNING, "does not record (CUPTI_ERROR_MULTIPLE_SUBSCRIBERS)",
        ),
        ([NO_GPU, {**RECORDING, "refusal": "NOT_INITIALIZED"}], {"files": LAPTOP}, "cupti", OK, "no GPU"),
        ([], environ(NSYS_PROFILING_SESSION_ID="7"), "cupti", WARNING, "Nsight Systems holds it"),
    ],
)  # fmt: skip
def test_each_thing_that_is_amiss_has_its_finding(
    look: Scene, sections: list[Any], changes: dict[str, Any], check: str, status: Status, words: str
) -> None:
    finding = look(*sections, **changes)[check]
    assert finding.status is status
    assert words in finding.line


def test_nothing_is_left_of_the_probes_when_nobody_listens_any_more(tmp_path: Path) -> None:
    programs = Programs(lambda _argv: printed())
    findings = examine(machine(tmp_path, H200, start=programs))
    next(findings)
    findings.close()  # type: ignore[attr-defined]
    assert [child.closed for child in programs.children] == [True, True]


def test_the_kernel_is_asked_without_any_right_and_answers_in_bounds() -> None:
    clock = kernel_clock()
    assert clock is None or clock.error_us >= 0


def test_an_installation_that_lacks_something_is_a_fault_with_its_remedy() -> None:
    finding = check_installation(lambda name: name not in ("zmq", "textual"))
    assert finding.status is FAULT
    assert finding.line == f"{__version__}, without textual, zmq: pip install textual pyzmq"
