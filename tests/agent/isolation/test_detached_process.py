"""A program that the agent starts is nobody's child here."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlaptop.agent.isolation.detached_process import start_detached

TELLS = """
import json, os, pathlib, signal, sys
status = pathlib.Path("/proc/self/status").read_text()
told = {
    "pid": os.getpid(),
    "session": os.getsid(0),
    "folder": os.getcwd(),
    "arguments": sys.argv[2:],
    "variables": {name: os.environ.get(name) for name in ("ONE", "HOME")},
    "descriptors": [os.readlink(f"/proc/self/fd/{number}") for number in range(3)],
    "inherited": os.path.exists(f"/proc/self/fd/{sys.argv[2]}"),
    "blocked": int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16),
    "usr1": signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL,
}
path = pathlib.Path(sys.argv[1])
path.with_suffix(".part").write_text(json.dumps(told))
path.with_suffix(".part").rename(path)
"""


@pytest.fixture(autouse=True)
def no_child_is_announced() -> Iterator[None]:
    signals: list[int] = []
    before = signal.signal(signal.SIGCHLD, lambda *_: signals.append(1))
    yield
    signal.signal(signal.SIGCHLD, before)
    assert signals == []


def test_it_is_a_process_of_its_own_and_no_child_of_this_one(tmp_path: Path) -> None:
    told = tmp_path / "told"
    ignored = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    inherited = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        words = [str(inherited), "two words", 'quo"tes', "ä"]
        pid = start_detached([sys.executable, "-I", "-c", TELLS, str(told), *words], {"ONE": "a=b ä"})
        deadline = time.monotonic() + 60
        while not told.exists():
            with pytest.raises(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            assert time.monotonic() < deadline
        seen = json.loads(told.read_text())
    finally:
        os.close(inherited)
        signal.signal(signal.SIGUSR1, ignored)
    assert seen == {
        "pid": pid,
        "session": pid,
        "folder": "/",
        "arguments": words,
        "variables": {"ONE": "a=b ä", "HOME": None},
        "descriptors": ["/dev/null"] * 3,
        "inherited": False,
        "blocked": 0,
        "usr1": True,
    }


def test_what_cannot_be_started_is_said() -> None:
    with pytest.raises(OSError, match="/no/such/program cannot be started"):
        start_detached(["/no/such/program"], {})
