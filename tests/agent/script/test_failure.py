"""A rank's last word says what ended its script."""

from __future__ import annotations

import subprocess
import sys

import pytest

from overlaptop.agent.script.failure import failure_of
from overlaptop.wire import last_end
from overlaptop.wire.messages import RankEnd


class Mute(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (SystemExit(), ""), (SystemExit(0), ""), (SystemExit(False), ""),
        (SystemExit(3), "exit status 3"), (SystemExit(True), "exit status 1"),
        (SystemExit("no data"), "exit status 1: no data"), (ValueError("boom\nmore"), "ValueError: boom"),
        (KeyboardInterrupt(), "KeyboardInterrupt"), (Mute(), "Mute"), (ValueError("x" * 9000), None),
    ],
)  # fmt: skip
def test_an_end_is_told_in_one_line(end, words):
    told = failure_of(end)
    assert len(told) < 300
    assert words is None or told == words


STEPS = "import sys, torch, overlaptop.agent\nfor _ in range(3): overlaptop.agent.step()\n"
ATTACHES = "import overlaptop.agent\noverlaptop.agent.attach()\n"


@pytest.mark.parametrize(
    ("agent", "script", "code", "failure"),
    [
        (True, STEPS, 0, ""),
        (True, f"{STEPS}raise ValueError('boom')", 1, "ValueError: boom"),
        (True, f"{STEPS}sys.exit(3)", 3, "exit status 3"),
        (False, f"{ATTACHES}{STEPS}raise ValueError('boom')", 1, "ValueError: boom"),
    ],
)
def test_the_goodbye_says_how_the_script_ended(run_ranks, agent, script, code, failure):
    job = run_ranks(script, nproc=1, agent=agent, forked=agent)
    assert job.codes == [code], job.errs
    last = job.messages[-1]
    assert isinstance(last, RankEnd)
    assert (last.clean, last.failure) == (True, failure)


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ("def main(:\n", "SyntaxError: invalid syntax (train.py, line 1)"),
        ("import nosuch, torch\n", "ModuleNotFoundError: No module named 'nosuch'"),
        ("import sys; sys.exit(0)\n", None),
    ],
)
def test_an_end_before_torch_is_there_is_known_to_who_looks_for_the_job(
    tmp_path, sockets, monkeypatch, script, failure
):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "overlaptop.agent", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == (failure is not None)
    known = last_end.read()
    told = [(known.script, end.rank, end.failure) for end in known.ends] if known else []
    assert told == ([("train.py", 3, failure)] if failure else [])
