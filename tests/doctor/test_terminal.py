"""The terminal, Unicode and ssh."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlaptop.doctor.children import Ran
from overlaptop.doctor.findings import Status
from overlaptop.doctor.terminal import check_ssh, check_terminal, check_unicode

from .machines import LAPTOP, Answer, Programs, machine


@pytest.mark.parametrize(
    ("environ", "status", "words"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, Status.OK, "120x40, 16 million colours"),
        ({"TERM": "xterm-direct"}, Status.OK, "16 million colours"),
        ({"TERM": "screen-256color"}, Status.OK, "256 colours"),
        ({"TERM": "xterm"}, Status.OK, "16 colours"),
        ({"TERM": "xterm", "COLORTERM": "24bit", "NO_COLOR": "1"}, Status.OK, "NO_COLOR is set"),
        ({"TERM": "dumb"}, Status.WARNING, "TERM is 'dumb'"),
        ({}, Status.WARNING, "TERM is ''"),
    ],
)
def test_colours_are_as_the_environment_says(
    tmp_path: Path, environ: dict[str, str], status: Status, words: str
) -> None:
    [finding] = check_terminal(machine(tmp_path, LAPTOP, environ=environ))
    assert finding.status is status
    assert words in finding.line


def test_a_small_terminal_is_a_warning(tmp_path: Path) -> None:
    facts = machine(tmp_path, LAPTOP, environ={"TERM": "xterm"}, terminal=os.terminal_size((50, 40)))
    [finding] = check_terminal(facts)
    assert finding.status is Status.WARNING
    assert "50x40" in finding.text


def test_no_terminal_is_no_fault(tmp_path: Path) -> None:
    [finding] = check_terminal(machine(tmp_path, LAPTOP, terminal=None))
    assert finding.status is Status.UNKNOWN
    assert "--json" in finding.text


@pytest.mark.parametrize(
    ("environ", "status", "words"),
    [
        ({"LANG": "de_DE.UTF-8"}, Status.OK, "LANG is de_DE.UTF-8"),
        ({"LANG": "C", "LC_ALL": "C.utf8"}, Status.OK, "LC_ALL is C.utf8"),
        ({"LANG": "en_US.UTF-8", "LC_CTYPE": "POSIX"}, Status.WARNING, "LC_CTYPE is POSIX"),
        ({}, Status.WARNING, "no locale is set"),
        ({"LANG": "C.UTF-8", "TERM": "linux"}, Status.WARNING, "--ascii"),
    ],
)
def test_unicode_is_as_the_first_of_the_locales_variables_says(
    tmp_path: Path, environ: dict[str, str], status: Status, words: str
) -> None:
    [finding] = check_unicode(machine(tmp_path, LAPTOP, environ=environ))
    assert finding.status is status
    assert words in finding.line


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (Ran(0, "", "OpenSSH_9.2p1 Debian\n"), Status.OK, "OpenSSH_9.2p1 Debian"),
        (Ran(255, "", "unknown option -- V\n"), Status.UNKNOWN, "unknown option -- V"),
        (Ran(None, "", ""), Status.UNKNOWN, "no word"),
        (PermissionError(13, "Permission denied"), Status.WARNING, "Permission denied"),
    ],
)
def test_ssh_says_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, status: Status, words: str
) -> None:
    monkeypatch.delenv("OVERLAPTOP_SSH", raising=False)
    [finding] = check_ssh(machine(tmp_path, LAPTOP, start=Programs(lambda argv: answer)))
    assert finding.status is status
    assert words in finding.text


def test_without_ssh_no_host_is_reached_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERLAPTOP_SSH", "other-ssh")
    [finding] = check_ssh(machine(tmp_path, LAPTOP, which=lambda _name: None))
    assert finding.status is Status.WARNING
    assert "no other-ssh here" in finding.text
