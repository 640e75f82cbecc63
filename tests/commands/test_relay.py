"""``overlaptop relay``: how it is called, and workloads that are started through it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "overlaptop", "relay", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_without_stdio_it_is_a_usage_error() -> None:
    result = run()
    assert (result.returncode, result.stdout) == (2, "")
    assert "required: --stdio" in result.stderr


def test_its_help_says_what_it_is_and_the_short_help_does_not_name_it() -> None:
    assert "What `overlaptop HOST` starts on that host" in run("--help").stdout
    short = subprocess.check_output([sys.executable, "-m", "overlaptop", "--help"], text=True)
    assert "relay" not in short


def test_it_is_not_for_a_terminal() -> None:
    near, far = pty.openpty()
    try:
        result = run("--stdio", stdin=far)
    finally:
        os.close(near)
        os.close(far)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "not for a terminal" in result.stderr
