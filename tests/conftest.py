"""What the tests of all rooms share."""

import gc
import os
import signal
import uuid
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from tests.processes import MARKER, Traces
from tests.warm import Warm

# As torchrun has it for ranks: figures are compared to the last bit, and more threads add in another order.
# It is read when torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"
settings.register_profile("overlaptop", deadline=None)  # other processes may have the CPU
settings.load_profile("overlaptop")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what they leave in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage is looked for while thousands of tests are found, nor ever among them and torch's modules:
    each worker would look at all of them again and again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def warm() -> Warm:
    """Starts processes that have torch already: see warm.py."""
    return Warm()


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    """Finds what a test has started; what a failed one has left is killed."""
    marker = uuid.uuid4().hex
    monkeypatch.setenv(MARKER, marker)
    left = Traces(marker)
    yield left
    for pid in left.alive():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def socket_dir(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A socket directory of the test's own."""
    # Short: the path of a unix socket has 107 bytes.
    folder = tmp_path_factory.mktemp("ot")
    folder.chmod(0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(folder))
    return folder
