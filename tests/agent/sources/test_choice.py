"""Which source a rank gets, and why it is not a better one."""

from types import SimpleNamespace

import pytest
import torch

from overlaptop.agent.options import AgentOptions
from overlaptop.agent.sources import choice
from overlaptop.agent.sources.cupti.library import TOOLS


class Sources:
    def __init__(self, patch):
        self.tried = []
        self.refusals = {}
        for name in ("kernels", "events", "host"):
            patch.setattr(choice, f"{name.capitalize()}Source", self._stand_in(name))

    def _stand_in(self, name):
        sources = self

        class StandIn:
            def __init__(self, *arguments):
                self.name = name
                self.arguments = arguments
                self.gave_up = ""
                self.reason = arguments[2] if name == "host" else ""

            def start(self):
                sources.tried.append(name)
                if name in sources.refusals:
                    raise RuntimeError(sources.refusals[name])

        return StandIn


@pytest.fixture
def sources(monkeypatch):
    return Sources(monkeypatch)


def choose(source="auto", instead_of=None, **options):
    return choice.choose(AgentOptions(source, **options), None, instead_of)


NO_CUPTI, NO_CUDA = {"kernels": "no CUPTI"}, {"kernels": "no CUPTI", "events": "no CUDA"}


@pytest.mark.parametrize(
    ("gpu", "asked", "refusals", "tried", "reason"),
    [
        (True, {}, {}, ["kernels"], ""),
        (True, {}, NO_CUPTI, ["kernels", "events"], "no CUPTI"),
        (True, {"source": "kernels"}, NO_CUDA, ["kernels", "events", "host"], "no CUDA"),
        (True, {"source": "events"}, {}, ["events"], ""),
        (True, {"source": "host"}, {}, ["host"], "asked for"),
        (True, {"phases_only": True}, {}, ["events"], ""),  # they cost less
        (False, {}, NO_CUDA, ["host"], "no CUDA device in use"),  # a job on the CPU begins no CUDA context
        (False, {"source": "host"}, NO_CUDA, ["host"], "no CUDA device in use; asked for"),
    ],
)
def test_a_job_gets_the_first_source_that_starts(sources, monkeypatch, gpu, asked, refusals, tried, reason):
    monkeypatch.setattr(choice, "computes_on_cuda", lambda optimizer: gpu)
    sources.refusals |= refusals
    chosen = choose(**asked)
    assert (sources.tried, chosen.name, chosen.reason) == (tried, tried[-1], reason)


def test_source_that_gave_up_is_replaced_by_the_next(sources, monkeypatch):
    monkeypatch.setattr(choice, "computes_on_cuda", lambda optimizer: True)
    first = choose()
    first.gave_up = "another user of CUPTI in this process takes its records"
    second = choose(instead_of=first)
    assert (second.name, second.reason) == ("events", first.gave_up)
    assert sources.tried == ["kernels", "events"]
    sources.refusals["events"] = "no CUDA"
    assert choose(instead_of=first).name == "host"


# With the true sources, where there is no GPU.


def test_kernels_are_not_tried_under_a_profiling_tool(monkeypatch):
    monkeypatch.setattr(choice, "computes_on_cuda", lambda optimizer: True)
    for each in TOOLS:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/lib.so")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    chosen = choose()
    assert (chosen.name, chosen.reason) == ("events", "a CUDA profiler holds CUPTI")


@pytest.mark.parametrize("asked", ["auto", "kernels", "events", "host"])
def test_each_choice_without_a_gpu_is_the_hosts_clock(asked):
    chosen = choose(asked)
    assert chosen.name == "host"
    assert chosen.reason


@pytest.mark.parametrize(
    ("initialized", "devices", "backend", "expected"),
    [
        (False, ["cuda"], "", False),
        (True, ["cuda"], "", True),
        (True, [], "", True),
        (True, ["cpu"], "nccl 2.28.9", True),
        (True, ["cpu"], "gloo", False),
        (True, ["cpu", "cuda"], "", True),
    ],
)
def test_job_with_offloaded_parameters_computes_on_its_gpu(
    monkeypatch, initialized, devices, backend, expected
):
    parameters = [SimpleNamespace(device=torch.device(kind)) for kind in devices]
    optimizer = SimpleNamespace(param_groups=({"params": parameters},))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(choice, "backend_name", lambda: backend)
    assert choice.computes_on_cuda(optimizer) is expected
