"""Runs a script without and with the agent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = ("-m", "overlaptop.agent")

Completed = subprocess.CompletedProcess[str]


def both(*words: str, folder: Path, **environment: str) -> tuple[Completed, Completed]:
    """What Python did with these words, and with the agent before them.

    ``-P`` or ``-X...`` as the first word is Python's own.
    """
    flags, rest = (words[:1], words[1:]) if words[0].startswith(("-P", "-X")) else ((), words)
    plain, with_agent = (
        subprocess.run(
            [sys.executable, *flags, *agent, *rest],
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=200,
            env={**os.environ, **environment},
        )
        for agent in ((), AGENT)
    )
    return plain, with_agent


def same(plain: Completed, with_agent: Completed, status: int = 0) -> None:
    assert plain.returncode == status, plain.stderr
    assert with_agent.stdout == plain.stdout
    assert with_agent.stderr == plain.stderr
    assert with_agent.returncode == plain.returncode


@pytest.fixture
def script(tmp_path: Path, sockets: Path):
    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write
