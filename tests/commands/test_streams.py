"""Output into encodings and files that cannot take it."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from overlaptop.commands.output import needs_ascii

from .running import OVERLAPTOP, overlaptop

COMPLETION = ["completion", "bash"]


def printed(encoding, *words):
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    done = overlaptop(*words, env=environ, encoding=encoding.partition(":")[0])
    assert "Error" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("encoding", ["ascii:strict", "gbk"])
def test_output_fits_any_encoding(encoding, tmp_path):
    assert "complete" in printed(encoding, *COMPLETION)
    (tmp_path / "≥é–界").write_text("{")
    assert "overlaptop: " in printed(encoding, "analyze", str(tmp_path / "≥é–界"))


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "utf-8"])
def test_ascii_is_drawn_unless_the_encoding_is_utf(encoding, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    assert needs_ascii() == (encoding != "utf-8")


@pytest.mark.parametrize(("words", "unbuffered"), [(COMPLETION, ""), (["--help"], "1")])
def test_a_full_disk_is_one_line_and_status_1(words, unbuffered):
    with Path("/dev/full").open("w") as full:
        environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(
            [*OVERLAPTOP, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environ
        )
    assert done.stderr == f"overlaptop: stdout cannot be written: {os.strerror(errno.ENOSPC).lower()}\n"
    assert done.returncode == 1
