"""Which source a rank gets, and why it is not a better one."""

import contextlib
import socket
from types import SimpleNamespace

import pytest
import torch

from overlaptop.agent.options import AgentOptions
from overlaptop.agent.sources import choice
from overlaptop.agent.sources.cupti.library import TOOLS
from overlaptop.agent.sources.events import MPS_CONNECTIONS, ONE_CONNECTION, EventsSource
from overlaptop.agent.sources.host import HostSource
from overlaptop.agent.sources.kernels import KernelsSource


@pytest.fixture
def tried(monkeypatch):
    """The sources that were to start, of which all can."""
    names = []
    for each in (KernelsSource, EventsSource, HostSource):
        monkeypatch.setattr(each, "start", lambda source: names.append(source.name))
    monkeypatch.setattr(choice, "computes_on_cuda", lambda optimizer: True)
    return names


def refuse(patch, source, reason):
    def start(self):
        raise RuntimeError(reason)

    patch.setattr(source, "start", start)


def choose(source="auto", instead_of=None, **options):
    return choice.choose(AgentOptions(source, **options), None, instead_of)


@pytest.mark.parametrize(
    ("gpu", "asked", "name", "reason"),
    [
        (True, {}, "events", "no CUPTI"),
        (True, {"source": "kernels"}, "events", "no CUPTI"),
        (True, {"source": "events"}, "events", ""),
        (True, {"source": "host"}, "host", "asked for"),
        (True, {"phases_only": True}, "events", ""),  # they cost less
        (False, {}, "host", "no CUDA device in use"),  # a job on the CPU begins no CUDA context
        (False, {"source": "host"}, "host", "no CUDA device in use; asked for"),
    ],
)
def test_a_job_gets_the_first_source_that_starts(monkeypatch, tried, gpu, asked, name, reason):
    monkeypatch.setattr(choice, "computes_on_cuda", lambda optimizer: gpu)
    refuse(monkeypatch, KernelsSource, "no CUPTI")
    chosen = choose(**asked)
    assert (tried, chosen.name, chosen.reason) == ([name], name, reason)


def test_source_that_gave_up_is_replaced_by_the_next(monkeypatch, tried):
    first = choose()
    first.gave_up = "another user of CUPTI in this process takes its records"
    second = choose(instead_of=first)
    assert (second.name, second.reason) == ("events", first.gave_up)
    refuse(monkeypatch, EventsSource, "no CUDA")
    assert choose(instead_of=first).name == "host"
    assert tried == ["kernels", "events", "host"]


# With the true sources, where there is no GPU.


def test_kernels_are_not_tried_under_a_profiling_tool(monkeypatch):
    monkeypatch.setattr(choice, "computes_on_cuda", lambda optimizer: True)
    for each in TOOLS:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/lib.so")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    chosen = choose()
    assert (chosen.name, chosen.reason) == ("events", "a CUDA profiler holds CUPTI")


@pytest.mark.parametrize(
    ("initialized", "devices", "backend", "expected"),
    [
        (False, ["cuda"], "", False),
        (True, [], "", True),
        (True, ["cpu"], "nccl 2.28.9", True),  # its parameters are offloaded
        (True, ["cpu"], "gloo", False),
        (True, ["cpu", "cuda"], "", True),
    ],
)
def test_job_computes_on_a_gpu_by_its_parameters_or_backend(
    monkeypatch, initialized, devices, backend, expected
):
    parameters = [SimpleNamespace(device=torch.device(kind)) for kind in devices]
    optimizer = SimpleNamespace(param_groups=({"params": parameters},))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(choice, "backend_name", lambda: backend)
    assert choice.computes_on_cuda(optimizer) is expected


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
