"""The interpreter and what is in it, by what a probe may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overlaptop import __version__
from overlaptop.doctor.findings import Finding, Status, works
from overlaptop.doctor.installed import NEEDED, check_installation
from overlaptop.doctor.software import check_software
from overlaptop.wire.messages import PROTOCOL_VERSION

from .machines import H200, LAPTOP, by_check, machine, probed

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
    "said": "",
}
CUPTI = {"of": "cupti", "path": "/venv/libcupti.so.13", "version": 130000}
RECORDING = {"of": "recording", "status": 0, "refusal": ""}
CPU = {**TORCH, "version": "2.13.0+cpu", "cuda": None, "nccl": None, "gpus": 0}


class Look:
    """Checks an interpreter that says these things."""

    def __init__(self, tmp_path: Path) -> None:
        self._tmp_path = tmp_path

    def __call__(
        self, *sections: dict[str, Any], end: str = "", files: dict[str, str] = H200, **changes: Any
    ) -> dict[str, Finding]:
        facts = machine(self._tmp_path, files, **changes)
        return by_check(check_software(facts, probed(*sections, end=end)))


@pytest.fixture
def look(tmp_path: Path) -> Look:
    return Look(tmp_path)


def test_a_machine_that_trains_on_gpus_is_well(look: Look) -> None:
    found = look(PYTHON, AGENT, TORCH, CUPTI, RECORDING)
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


def test_an_interpreter_that_cannot_be_run_ends_the_matter(look: Look) -> None:
    found = look(end="the interpreter cannot be run (No such file or directory)", named=True)
    assert list(found) == ["python"]
    assert found["python"].status is Status.FAULT
    assert "cannot be run" in found["python"].text
    assert "--python" in found["python"].remedy


def test_an_old_python_is_named(look: Look) -> None:
    finding = look({**PYTHON, "version": "3.9.21"}, named=True)["python"]
    assert finding.status is Status.FAULT
    assert "is Python 3.9.21" in finding.text


@pytest.mark.parametrize(("named", "status"), [(True, Status.FAULT), (False, Status.WARNING)])
def test_what_lacks_is_a_fault_of_an_interpreter_that_was_named(
    look: Look, named: bool, status: Status
) -> None:
    absent = {"of": "torch", "absent": True}
    found = look(PYTHON, {"of": "overlaptop", "error": "No module named 'overlaptop'"}, absent, named=named)
    assert found["agent"].status is status
    assert "No module named 'overlaptop'" in found["agent"].text
    assert found["agent"].remedy == "pip install it there"
    assert found["torch"].status is status
    assert works(found.values()) is not named


@pytest.mark.parametrize(("protocol", "older"), [(3, "that one"), (PROTOCOL_VERSION + 1, "this one")])
def test_another_protocol_is_a_fault_that_says_which_is_older(
    look: Look, protocol: int, older: str
) -> None:
    finding = look(PYTHON, {**AGENT, "protocol": protocol}, CPU)["agent"]
    assert finding.status is Status.FAULT
    assert f"protocol {protocol}" in finding.text
    assert finding.remedy == f"update {older}"


def test_without_what_a_hub_needs_ranks_get_none(look: Look) -> None:
    finding = look(PYTHON, {**AGENT, "missing": ["msgpack", "zmq"]}, CPU)["agent"]
    assert finding.status is Status.FAULT
    assert finding.remedy == "pip install msgpack pyzmq"


def test_a_torch_that_crashes_takes_nothing_else_along(look: Look) -> None:
    found = look(PYTHON, AGENT, end="a signal (11) ended it")
    assert found["torch"].status is Status.UNKNOWN
    assert found["torch"].text == "importing it: a signal (11) ended it"
    assert found["agent"].status is Status.OK


def test_a_torch_that_cannot_be_imported_says_why(look: Look) -> None:
    finding = look(PYTHON, AGENT, {"of": "torch", "error": "libcudart.so.13: cannot open"}, named=True)[
        "torch"
    ]
    assert finding.status is Status.FAULT
    assert "libcudart.so.13" in finding.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "2.6.0+cu124"}, "made for 2.8 and newer"),
        ({"version": "2.13.0+cpu", "cuda": None, "nccl": None, "gpus": 0}, "for CUDA"),
        ({"gpus": 0, "said": "The NVIDIA driver on your system is too old"}, "too old"),
        ({"gpus": 0}, "have to fit each other"),
    ],
)
def test_a_torch_that_does_not_fit_the_machine_is_a_warning(
    look: Look, changes: dict[str, Any], words: str
) -> None:
    finding = look(PYTHON, AGENT, {**TORCH, **changes}, CUPTI, RECORDING)["torch"]
    assert finding.status is Status.WARNING
    assert words in finding.line


def test_hidden_gpus_are_laid_to_the_variable(look: Look) -> None:
    finding = look(
        PYTHON, AGENT, {**TORCH, "gpus": 0}, CUPTI, RECORDING, environ={"CUDA_VISIBLE_DEVICES": ""}
    )["torch"]
    assert finding.remedy == "CUDA_VISIBLE_DEVICES is '', change it"


def test_rocm_has_neither_nccl_nor_cupti(look: Look) -> None:
    found = look(PYTHON, AGENT, {**TORCH, "cuda": None, "hip": "6.4", "nccl": None}, files=LAPTOP)
    assert found["torch"].text == "2.11.0+cu130, ROCm 6.4, sees 2 GPUs"
    assert found["nccl"].text == "RCCL, by ROCm"
    assert "cupti" not in found


@pytest.mark.parametrize(
    ("sections", "status", "words"),
    [
        ([{"of": "cupti", "absent": True}], Status.WARNING, "not loaded libcupti"),
        ([{**CUPTI, "version": None}], Status.WARNING, "does not say its version"),
        ([{**CUPTI, "version": 999999}], Status.WARNING, "records of CUPTI 999999 are not known"),
        ([], Status.UNKNOWN, "looking for it"),
        ([CUPTI], Status.UNKNOWN, "asked to record"),
        (
            [CUPTI, {**RECORDING, "status": 35, "refusal": "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"}],
            Status.WARNING,
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (
            [CUPTI, {**RECORDING, "status": 39, "refusal": "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS"}],
            Status.WARNING,
            "does not record (CUPTI_ERROR_MULTIPLE_SUBSCRIBERS)",
        ),
    ],
)
def test_what_keeps_cupti_from_recording_is_told(
    look: Look, sections: list[dict[str, Any]], status: Status, words: str
) -> None:
    finding = look(PYTHON, AGENT, TORCH, *sections, end="a signal (6) ended it")["cupti"]
    assert finding.status is status
    assert words in finding.line


def test_where_there_is_no_gpu_cupti_has_nothing_to_record(look: Look) -> None:
    refused = {**RECORDING, "status": 15, "refusal": "CUPTI_ERROR_NOT_INITIALIZED"}
    finding = look(PYTHON, AGENT, {**TORCH, "gpus": 0}, CUPTI, refused, files=LAPTOP)["cupti"]
    assert finding.status is Status.OK
    assert "no GPU here" in finding.text


def test_a_tool_in_the_environment_holds_cupti(look: Look) -> None:
    environ = {"NSYS_PROFILING_SESSION_ID": "7"}
    finding = look(PYTHON, AGENT, TORCH, CUPTI, RECORDING, environ=environ)["cupti"]
    assert finding.status is Status.WARNING
    assert finding.text.startswith("Nsight Systems holds it")


def test_an_installation_that_lacks_something_is_a_fault_with_its_remedy() -> None:
    finding = check_installation(lambda name: name not in ("zmq", "textual"))
    assert finding.status is Status.FAULT
    assert finding.line == f"{__version__}, without textual, zmq: pip install textual pyzmq"
    assert set(NEEDED) >= {"zmq", "textual"}


def test_this_installation_is_whole() -> None:
    assert check_installation().line == f"{__version__}, protocol {PROTOCOL_VERSION}"
