"""Traces of jobs on CPUs: gloo's ranges communicate, operators compute."""

import json

import pytest

from overlaptop.formats import job
from overlaptop.formats.files import TraceError
from overlaptop.formats.summary import summarize
from overlaptop.timeline.lanes import LaneRules
from tests.formats import traces
from tests.formats.traces import PAGES, described, kernel
from tests.snapshots import check_page

MAIN, GLOO = 1, 2
GPUS = [{"id": 0, "name": "NVIDIA H200"}]


def op(name, ts, dur, thread=MAIN, cat="cpu_op"):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": ts, "dur": dur}


def span(name, ts, dur, thread=MAIN):
    return op(name, ts, dur, thread, "user_annotation")


def gloo(ts, dur, name="all_reduce", thread=GLOO):
    return span(f"gloo:{name}", ts, dur, thread)


def load(*events, backend="gloo", devices=(), **more):
    of_job = {"backend": backend, "rank": 1, "world_size": 2}
    return traces.load(*events, rank=None, distributedInfo=of_job, deviceProperties=list(devices), **more)


WAITS_IN_PYTHON = (
    "_c10d_functional::wait_tensor",
    "autograd::engine::evaluate_function: AddBackward0",
    "AllReduce",  # an autograd.Function, which waits for what it has asked for
    "AllReduceBackward",
    "CompiledFunctionBackward",
    "Torch-Compiled Region: 0/0",
)
COMPUTES = (
    "aten::mm",
    "my::op",
    "AddmmBackward0",
    "torch::autograd::AccumulateGrad",
    "## Call CompiledFxGraph f ##",
)
WAITING = [op("c10d::allreduce_", 5, 5), gloo(10, 70)]
TRACES = {
    "operators compute and gloo communicates": [
        op("aten::mm", 0, 50), gloo(20, 50), op("aten::mul", 80, 10),
    ],
    # As in FSDP's hooks, which run inside autograd's operators.
    "a wait in a range within an operator is no compute": [
        op("AddBackward0", 0, 90), span("FSDP::post_backward_reduce", 10, 70), op("aten::copy_", 20, 5),
        gloo(10, 70),
    ],
    **{f"waits in {each}": [op(each, 0, 90), *WAITING] for each in WAITS_IN_PYTHON},
    **{f"computes in {each}": [op(each, 0, 90), gloo(10, 70)] for each in COMPUTES},
    "gloo's own thread communicates while it adds": [
        op("aten::mm", 0, 30), gloo(10, 70), op("aten::add_", 40, 10, GLOO),
    ],
    # A send is recorded where it was issued.
    "a thread that issues and records a collective computes": [
        op("c10d::send", 5, 2), gloo(6, 60, "send", MAIN), op("aten::mm", 20, 30),
    ],
    "operators of several threads": [op("aten::mm", 0, 30), op("aten::mm", 20, 30, 3)],
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_innermost_operator_decides_what_a_thread_does(name):
    found = summarize(load(span("ProfilerStep#7", 0, 100), *TRACES[name]), 1, "job")
    assert (found.info.source, found.info.compute_exact) == ("host", False)
    check_page(PAGES, f"host {name}", "\n".join(described(found)))


@pytest.mark.parametrize("backend", ["nccl", None, "undefined"])
def test_a_trace_of_a_gpu_job_without_its_gpu_is_refused(backend):
    with pytest.raises(TraceError, match=r"no GPU activity in it: trace with ProfilerActivity\.CUDA"):
        load(op("aten::mm", 0, 1), gloo(0, 1, "barrier"), backend=backend, devices=GPUS)


def test_job_of_cpus_is_seen_by_backend_and_gpu_activity():
    assert load(op("aten::mm", 0, 1), gloo(0, 1), devices=GPUS).on_host
    found = load(kernel(0, 10), op("aten::mm", 0, 50), gloo(0, 100, "barrier"), backend="nccl")
    assert (found.on_host, found.activities.names) == (False, ["gemm"])


def test_trace_of_nothing_is_refused_in_one_line():
    with pytest.raises(TraceError, match=r"no operator in it: trace with ProfilerActivity\.CPU"):
        load(span("ProfilerStep#1", 0, 100))
    with pytest.raises(TraceError, match="trace: Expected"):
        load(op("aten::mm", 0, 1, thread=[1]))


def test_hta_which_looks_at_gpus_only_is_not_asked(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [op("aten::mm", 0, 1)], "deviceProperties": []}))
    with pytest.raises(TraceError, match="no GPU activity in it, and HolisticTraceAnalysis looks at"):
        job.analyze(path, LaneRules(), by_hta=True)
