"""All checks together, on machines that are not there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from overlaptop.doctor.children import Completed
from overlaptop.doctor.findings import Status
from overlaptop.doctor.here import examine

from .machines import GPM, H200, NVML, Answer, Programs, by_check, machine, printed
from .test_software import AGENT, CUPTI, PYTHON, RECORDING, TORCH


@pytest.fixture(autouse=True)
def socket_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(folder))
    monkeypatch.delenv("OVERLAPTOP_SSH", raising=False)


def answers(argv: Sequence[str]) -> Answer:
    if argv[-1] == "gpus":
        return printed(NVML, GPM)
    if argv[-1] == "software":
        return printed(PYTHON, AGENT, TORCH, CUPTI, RECORDING)
    assert list(argv) == ["ssh", "-V"]
    return Completed(0, "", "OpenSSH_9.2p1\n")


def test_a_machine_that_is_well_has_a_line_for_each_thing(tmp_path: Path) -> None:
    programs = Programs(answers)
    environ = {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
    found = by_check(examine(machine(tmp_path / "root", H200, start=programs, environ=environ)))
    assert list(found) == [
        *("overlaptop", "sockets", "jobs", "terminal", "unicode", "ssh", "clock", "files"),
        *("devices", "counters", "nvml", "gpm", "python", "agent", "torch", "nccl", "cupti"),
    ]
    assert {finding.status for finding in found.values()} == {Status.OK}


def test_nothing_is_left_of_the_probes_when_nobody_listens_any_more(tmp_path: Path) -> None:
    programs = Programs(answers)
    findings = examine(machine(tmp_path / "root", H200, start=programs))
    next(findings)
    findings.close()  # type: ignore[attr-defined]
    assert [child.closed for child in programs.children] == [True, True]


def test_a_check_that_fails_hides_no_other(tmp_path: Path) -> None:
    def clock() -> None:
        raise RuntimeError("a strange kernel")

    found = by_check(examine(machine(tmp_path / "root", H200, start=Programs(answers), clock=clock)))
    assert found["clock"].status is Status.UNKNOWN
    assert "RuntimeError: a strange kernel" in found["clock"].text
    assert found["torch"].status is Status.OK
