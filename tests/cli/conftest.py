"""What the tests of the command line share: private socket folders, and a count of what is left behind."""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

MARKER = "OVERLAPTOP_TEST_MARKER"


def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> bool:
    """Poll; True as soon as `condition` holds, False when it does not within `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


class Traces:
    """The processes that carry this test's marker in their environment: all that it started."""

    def __init__(self, marker: str) -> None:
        self._entry = f"{MARKER}={marker}".encode()

    def alive(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if self._entry in environment.split(b"\0"):
                found.append(int(entry.name))
        return found


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    marker = uuid.uuid4().hex
    monkeypatch.setenv(MARKER, marker)
    left = Traces(marker)
    yield left
    for pid in left.alive():  # of a test that failed
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def socket_dir(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Short: the path of a unix socket has 107 bytes.
    folder = tmp_path_factory.mktemp("ot")
    folder.chmod(0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(folder))
    return folder
