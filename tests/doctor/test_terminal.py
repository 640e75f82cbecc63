"""The terminal, Unicode and ssh."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from overlaptop.doctor.children import Completed
from overlaptop.doctor.facts import Facts
from overlaptop.doctor.findings import Finding, Status
from overlaptop.doctor.terminal import check_ssh, check_terminal, check_unicode

from .machines import LAPTOP, Answer, Programs, machine


@pytest.mark.parametrize(
    ("environ", "check", "status", "words"),
    [
        (
            {"TERM": "xterm-256color", "COLORTERM": "truecolor"},
            check_terminal, Status.OK, "120x40, 16 million colours",
        ),
        ({"TERM": "xterm-direct"}, check_terminal, Status.OK, "16 million colours"),
        ({"TERM": "screen-256color"}, check_terminal, Status.OK, "256 colours"),
        ({"TERM": "xterm"}, check_terminal, Status.OK, "16 colours"),
        (
            {"TERM": "xterm", "COLORTERM": "24bit", "NO_COLOR": "1"},
            check_terminal, Status.OK, "NO_COLOR is set",
        ),
        ({"TERM": "dumb"}, check_terminal, Status.WARNING, "TERM is 'dumb'"),
        ({}, check_terminal, Status.WARNING, "TERM is ''"),
        ({"LANG": "de_DE.UTF-8"}, check_unicode, Status.OK, "LANG is de_DE.UTF-8"),
        # The first of the locale's variables decides.
        ({"LANG": "C", "LC_ALL": "C.utf8"}, check_unicode, Status.OK, "LC_ALL is C.utf8"),
        (
            {"LANG": "en_US.UTF-8", "LC_CTYPE": "POSIX"},
            check_unicode, Status.WARNING, "LC_CTYPE is POSIX",
        ),
        ({}, check_unicode, Status.WARNING, "no locale is set"),
        ({"LANG": "C.UTF-8", "TERM": "linux"}, check_unicode, Status.WARNING, "--ascii"),
    ],
)  # fmt: skip
def test_colours_and_characters_are_as_the_environment_has_them(
    tmp_path: Path,
    environ: dict[str, str],
    check: Callable[[Facts], Finding],
    status: Status,
    words: str,
) -> None:
    finding = check(machine(tmp_path, LAPTOP, environ=environ))
    assert finding.status is status
    assert words in finding.line


@pytest.mark.parametrize(
    ("terminal", "status", "words"),
    [(os.terminal_size((50, 40)), Status.WARNING, "50x40"), (None, Status.UNKNOWN, "--json")],
)
def test_a_small_terminal_is_a_warning_and_none_is_no_fault(
    tmp_path: Path, terminal: os.terminal_size | None, status: Status, words: str
) -> None:
    finding = check_terminal(machine(tmp_path, LAPTOP, environ={"TERM": "xterm"}, terminal=terminal))
    assert finding.status is status
    assert words in finding.text


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (Completed(0, "", "OpenSSH_9.2p1 Debian\n"), Status.OK, "OpenSSH_9.2p1 Debian"),
        (Completed(255, "", "unknown option -- V\n"), Status.UNKNOWN, "unknown option -- V"),
        (Completed(None, "", ""), Status.UNKNOWN, "no output"),
        (PermissionError(13, "Permission denied"), Status.WARNING, "Permission denied"),
    ],
)
def test_ssh_has_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, status: Status, words: str
) -> None:
    monkeypatch.delenv("OVERLAPTOP_SSH", raising=False)
    finding = check_ssh(machine(tmp_path, LAPTOP, start=Programs(lambda argv: answer)))
    assert finding.status is status
    assert words in finding.text


def test_without_ssh_no_host_is_reached_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERLAPTOP_SSH", "other-ssh")
    finding = check_ssh(machine(tmp_path, LAPTOP, which=lambda _name: None))
    assert finding.status is Status.WARNING
    assert "no other-ssh here" in finding.text
