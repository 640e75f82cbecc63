"""A rank's last word says what ended its script."""

from __future__ import annotations

import pytest

from overlaptop.agent.script.failure import failure_of
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
