"""The interpreter and what is in it, by what a probe may report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overlaptop import __version__
from overlaptop.doctor.findings import Finding, Status
from overlaptop.doctor.installed import NEEDED, check_installation
from overlaptop.doctor.software import check_software
from overlaptop.wire.protocol import PROTOCOL_VERSION

from .machines import H200, LAPTOP, by_check, machine, probe_report

PYTHON = {"of": "python", "version": "3.12.3", "path": "/venv/bin/python"}
AGENT = {
    "of": "overlaptop",
    "version": "0.1.0",
    "protocol": PROTOCOL_VERSION,
    "path": "/venv/overlaptop",
    "missing": [],
}
TORCH = {
    "of": "torch",
    "version": "2.11.0+cu130",
    "cuda": "13.0",
    "hip": None,
    "distributed": True,
    "nccl": "2.28.9",
    "gpus": 2,
    "warning": "",
}
CUPTI = {"of": "cupti", "path": "/venv/libcupti.so.13", "version": 130000}
RECORDING = {"of": "recording", "status": 0, "refusal": ""}
CPU = {**TORCH, "version": "2.13.0+cpu", "cuda": None, "nccl": None, "gpus": 0}

WELL = [PYTHON, AGENT, TORCH, CUPTI, RECORDING]
LACKING = {**AGENT, "missing": ["msgpack", "zmq"]}
NEWER = PROTOCOL_VERSION + 1
NSYS = {"environ": {"NSYS_PROFILING_SESSION_ID": "7"}}
HIDDEN = {"environ": {"CUDA_VISIBLE_DEVICES": ""}}


class Look:
    """Checks an interpreter whose probe reports these sections; a later one replaces one of its name."""

    def __init__(self, tmp_path: Path) -> None:
        self._tmp_path = tmp_path

    def __call__(
        self, *sections: dict[str, Any], end: str = "", files: dict[str, str] = H200, **changes: Any
    ) -> dict[str, Finding]:
        facts = machine(self._tmp_path, files, **changes)
        return by_check(check_software(facts, probe_report(*sections, end=end)))


@pytest.fixture
def look(tmp_path: Path) -> Look:
    return Look(tmp_path)


def test_a_machine_that_trains_on_gpus_is_well(look: Look) -> None:
    found = look(*WELL)
    assert {name: finding.line for name, finding in found.items()} == {
        "python": "3.12.3, /venv/bin/python",
        "agent": "overlaptop 0.1.0, /venv/overlaptop",
        "torch": "2.11.0+cu130, CUDA 13.0, sees 2 GPUs",
        "nccl": "2.28.9",
        "cupti": "version 130000, its records are known, and it records",
    }
    assert {finding.status for finding in found.values()} == {Status.OK}


def test_a_laptop_that_trains_on_its_cpu_is_well(look: Look) -> None:
    found = look(PYTHON, AGENT, CPU, files=LAPTOP)
    assert list(found) == ["python", "agent", "torch", "nccl"]
    assert {finding.status for finding in found.values()} == {Status.OK}


OK, WARNING, FAULT, UNKNOWN = Status.OK, Status.WARNING, Status.FAULT, Status.UNKNOWN
NAMED = {"named": True}
NO_TORCH = {"of": "torch", "absent": True}
NO_OVERLAPTOP = {"of": "overlaptop", "error": "No module named 'overlaptop'"}
BROKEN_TORCH = {"of": "torch", "error": "libcudart.so.13: cannot open"}
REFUSED = {**RECORDING, "status": 1}
CRASHED = {"end": "a signal (11) ended it"}
BARE = {"files": LAPTOP}
NO_GPU = {**TORCH, "gpus": 0}


@pytest.mark.parametrize(
    ("sections", "changes", "check", "status", "words"),
    [
        ([], {"end": "cannot be run", **NAMED}, "python", FAULT, "cannot be run: name another one"),
        ([{**PYTHON, "version": "3.9.21"}], NAMED, "python", FAULT, "is Python 3.9.21"),
        # What lacks is a fault of an interpreter that the user named; jobs may have another one.
        ([PYTHON, NO_OVERLAPTOP, CPU], NAMED, "agent", FAULT, "'overlaptop'): pip install it"),
        ([PYTHON, NO_OVERLAPTOP, CPU], {}, "agent", WARNING, "'overlaptop'): pip install it"),
        ([PYTHON, AGENT, NO_TORCH], NAMED, "torch", FAULT, "has none"),
        ([PYTHON, AGENT, NO_TORCH], {}, "torch", WARNING, "has none"),
        ([PYTHON, AGENT, BROKEN_TORCH], NAMED, "torch", FAULT, "libcudart.so.13"),
        ([PYTHON, {**AGENT, "protocol": 3}, CPU], {}, "agent", FAULT, "update that one"),
        ([PYTHON, {**AGENT, "protocol": NEWER}, CPU], {}, "agent", FAULT, "update this one"),
        ([PYTHON, LACKING, CPU], {}, "agent", FAULT, "pip install msgpack pyzmq"),
        ([PYTHON, AGENT], CRASHED, "agent", OK, "overlaptop 0.1.0"),
        ([PYTHON, AGENT], CRASHED, "torch", UNKNOWN, "importing it: a signal (11) ended it"),
        ([*WELL, {**TORCH, "version": "2.6.0+cu124"}], {}, "torch", WARNING, "made for 2.8 and newer"),
        ([*WELL, CPU], {}, "torch", WARNING, "for CUDA"),
        ([*WELL, {**NO_GPU, "warning": "The driver is too old"}], {}, "torch", WARNING, "too old"),
        ([*WELL, NO_GPU], {}, "torch", WARNING, "have to fit each other"),
        ([*WELL, NO_GPU], HIDDEN, "torch", WARNING, "CUDA_VISIBLE_DEVICES is '', change it"),
        ([*WELL, {"of": "cupti", "absent": True}], {}, "cupti", WARNING, "not loaded libcupti"),
        ([*WELL, {**CUPTI, "version": None}], {}, "cupti", WARNING, "does not say its version"),
        ([*WELL, {**CUPTI, "version": 999999}], {}, "cupti", WARNING, "of CUPTI 999999 are not known"),
        ([PYTHON, AGENT, TORCH], CRASHED, "cupti", UNKNOWN, "looking for it"),
        ([PYTHON, AGENT, TORCH, CUPTI], CRASHED, "cupti", UNKNOWN, "asked to record"),
        (
            [*WELL, {**REFUSED, "refusal": "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"}],
            {}, "cupti", WARNING, "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (
            [*WELL, {**REFUSED, "refusal": "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS"}],
            {}, "cupti", WARNING, "does not record (CUPTI_ERROR_MULTIPLE_SUBSCRIBERS)",
        ),
        (
            [*WELL, NO_GPU, {**REFUSED, "refusal": "CUPTI_ERROR_NOT_INITIALIZED"}],
            BARE, "cupti", OK, "no GPU here",
        ),
        (WELL, NSYS, "cupti", WARNING, "Nsight Systems holds it"),
    ],
)  # fmt: skip
def test_each_thing_that_is_amiss_has_its_finding(
    look: Look,
    sections: list[dict[str, Any]],
    changes: dict[str, Any],
    check: str,
    status: Status,
    words: str,
) -> None:
    finding = look(*sections, **changes)[check]
    assert finding.status is status
    assert words in finding.line


def test_an_interpreter_that_cannot_be_run_ends_the_matter(look: Look) -> None:
    assert list(look(end="the interpreter cannot be run", named=True)) == ["python"]


def test_rocm_has_neither_nccl_nor_cupti(look: Look) -> None:
    found = look(PYTHON, AGENT, {**TORCH, "cuda": None, "hip": "6.4", "nccl": None}, files=LAPTOP)
    assert found["torch"].text == "2.11.0+cu130, ROCm 6.4, sees 2 GPUs"
    assert found["nccl"].text == "RCCL, by ROCm"
    assert "cupti" not in found


def test_an_installation_that_lacks_something_is_a_fault_with_its_remedy() -> None:
    finding = check_installation(lambda name: name not in ("zmq", "textual"))
    assert finding.status is FAULT
    assert finding.line == f"{__version__}, without textual, zmq: pip install textual pyzmq"
    assert set(NEEDED) >= {"zmq", "textual"}


def test_this_installation_is_whole() -> None:
    assert check_installation().line == f"{__version__}, protocol {PROTOCOL_VERSION}"
