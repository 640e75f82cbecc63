"""What the tests of the command line share: private socket folders, and a count of what is left behind."""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from overlaptop.workloads.catalog import find
from tests.warm import Warm, WarmRanks

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


StartRanks = Callable[..., WarmRanks]


@pytest.fixture(scope="session")
def unmarked_warm(warm: Warm) -> Warm:
    """Its server runs before a test has set its marker, which the server would carry for good."""
    with Path(os.devnull).open("w") as nowhere:
        warm.start([os.devnull], dict(os.environ), Path("/"), nowhere.fileno(), nowhere.fileno()).wait(100)
    return warm


@pytest.fixture
def start_ranks(unmarked_warm: Warm, tmp_path: Path) -> Iterator[StartRanks]:
    """``start_ranks(workload, *options, ranks=2)``: a bundled workload with its agent, without torchrun.

    For tests of who watches a job, however it was started: it takes a fraction of the time. Its ranks do
    not carry the test's marker; its hub does.
    """
    with ExitStack() as stack:

        def start(workload: str, *options: str, ranks: int = 2) -> WarmRanks:
            log = stack.enter_context((tmp_path / uuid.uuid4().hex).open("w+"))
            words = ["-m", "overlaptop.agent", str(find(workload).path), *options]
            job = WarmRanks(unmarked_warm, words, ranks, tmp_path, log, log)
            stack.callback(job.wait, 20)
            stack.callback(job.kill)
            return job

        yield start


@pytest.fixture(autouse=True)
def socket_dir(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Short: the path of a unix socket has 107 bytes.
    folder = tmp_path_factory.mktemp("ot")
    folder.chmod(0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(folder))
    return folder
