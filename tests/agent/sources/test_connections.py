"""When the events source measures phases only, for want of hardware connections."""

import contextlib
import socket

import pytest

from overlaptop.agent.sources.events import MPS_CONNECTIONS, ONE_CONNECTION, EventsSource


@pytest.mark.parametrize(
    ("mps", "connections", "reason"),
    [
        (False, None, ""), (True, None, MPS_CONNECTIONS), (True, "8", ""), (True, "1", ONE_CONNECTION),
        (False, "1", ONE_CONNECTION),
    ],
)  # fmt: skip
def test_few_connections_mean_phases_only(monkeypatch, tmp_path, mps, connections, reason):
    with socket.socket(socket.AF_UNIX) as daemon, contextlib.chdir(tmp_path):
        if mps:
            daemon.bind("control")  # a path of its own may be too long
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
        monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
        if connections:
            monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
        source = EventsSource(False, None, 0)
    assert (source.reason, source.detail_every == 0) == (reason, bool(reason))
