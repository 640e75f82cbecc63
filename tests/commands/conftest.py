"""What the tests of the command line share: private socket folders, and a count of what is left behind."""

import time
import uuid
from contextlib import ExitStack

import pytest

from overlaptop.commands import following
from overlaptop.workloads.catalog import find
from tests.hubs import private_sockets as private_sockets
from tests.warm import WarmRanks


@pytest.fixture
def quickly(monkeypatch):
    """A job without processes is looked at without a pause."""
    monkeypatch.setattr(following, "TICK_S", 0.0)


@pytest.fixture
def in_utc(monkeypatch):
    """Pages have times of day."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def start_ranks(warm, tmp_path):
    """``start_ranks(workload, *options, ranks=2)``: a bundled workload with its agent, without torchrun.

    Its ranks do not carry the test's marker; its hub does.
    """
    with ExitStack() as stack:

        def start(workload, *options, ranks=2):
            log = stack.enter_context((tmp_path / uuid.uuid4().hex).open("w+"))
            words = ["-m", "overlaptop.agent", str(find(workload).path), *options]
            job = WarmRanks(warm, words, ranks, tmp_path, log, log)
            stack.callback(job.wait, 20)
            stack.callback(job.kill)
            return job

        yield start
