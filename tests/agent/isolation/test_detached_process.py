"""A program that the agent starts is nobody's child here."""

import json
import os
import signal
import sys

import pytest

from overlaptop.agent.isolation.detached_process import start_detached
from tests.processes import eventually

TELLS = """
import json, os, pathlib, sys
path, *words = map(pathlib.Path, sys.argv[1:])
descriptors = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
told = os.getpid(), list(map(str, words)), dict(os.environ), descriptors
path.with_suffix(".part").write_text(json.dumps(told))
path.with_suffix(".part").rename(path)
"""


@pytest.fixture(autouse=True)
def no_child_is_announced():
    signals = []
    before = signal.signal(signal.SIGCHLD, lambda *_: signals.append(1))
    yield
    signal.signal(signal.SIGCHLD, before)
    assert signals == []


def test_it_is_a_process_of_its_own_and_no_child_of_this_one(tmp_path):
    told, words = tmp_path / "told", ["two words", 'quo"tes', "ä"]
    start_detached([sys.executable, "-I", "-c", TELLS, str(told), *words], {"ONE": "a=b ä"})
    eventually(told.exists)
    pid, arguments, variables, descriptors = json.loads(told.read_text())
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    assert (arguments, descriptors) == (words, ["/dev/null"] * 3)
    assert variables.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # Python's own
    assert variables == {"ONE": "a=b ä"}


def test_what_cannot_be_started_is_said():
    with pytest.raises(OSError, match="/no/such/program cannot be started"):
        start_detached(["/no/such/program"], {})
