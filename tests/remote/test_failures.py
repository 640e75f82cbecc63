"""Why lines fail, by what their processes wrote."""

from __future__ import annotations

import time

import pytest

from overlaptop.remote import failures
from overlaptop.remote.targets import KINDS

WRITTEN_CHARS = 8192


@pytest.mark.parametrize(
    ("kind", "written", "reason"),
    [
        (
            "ssh",
            "hello\n/home/me/.ssh/config: line 3: Bad configuration option: foo\r\nmore\n",
            "ssh does not start: /home/me/.ssh/config: line 3: Bad configuration option: foo",
        ),
        (
            "via",
            "hello\nsudo: a password is required\n",
            "sudo asks for a password: allow the command without one (NOPASSWD)",
        ),
        (
            "docker",
            "hello\n/opt/venv/bin/python: No module named overlaptop.__main__; 'overlaptop' is a package\n",
            "/opt/venv/bin/python there has no overlaptop: pip install it there, or name another one with "
            "--python",
        ),
    ],
)
def test_the_line_that_says_why_is_found_among_others(kind: str, written: str, reason: str) -> None:
    assert failures.of_ending(kind, "far", 1, written, "").reason == reason


@pytest.mark.parametrize("piece", ["x", ":", "sudo: ", "Bad owner ", "Permission denied (a"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_long_line_takes_about_as_long_as_many_short_ones(kind: str, piece: str) -> None:
    long = (piece * WRITTEN_CHARS)[:WRITTEN_CHARS]
    short = "\n".join(long[at : at + 40] for at in range(0, WRITTEN_CHARS, 40))

    def took_s(written: str) -> float:
        began_s = time.thread_time()
        failures.of_ending(kind, "far", 1, written, written)
        return time.thread_time() - began_s

    # Searched from each character it was some hundred times as long.
    assert min(took_s(long) for _ in range(3)) < 30 * min(took_s(short) for _ in range(3)) + 0.01
