"""``overlaptop relay``: how it is called; tests/relay and tests/remote have what it does."""

import os
import pty
import subprocess

from .running import OVERLAPTOP, run_here


def test_it_is_not_for_a_terminal_and_not_named_where_people_look() -> None:
    assert "relay" not in run_here("--help").stdout
    near, far = pty.openpty()
    try:
        command = [*OVERLAPTOP, "relay", "--stdio"]
        result = subprocess.run(command, stdin=far, capture_output=True, text=True, timeout=60)
    finally:
        os.close(near)
        os.close(far)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "not for a terminal" in result.stderr
