"""Traces of jobs on CPUs: gloo's ranges communicate, operators compute."""

import json

import pytest

from overlaptop.formats import job
from overlaptop.formats.files import TraceError
from overlaptop.formats.summary import summarize
from overlaptop.timeline.lanes import LaneRules
from tests.formats import traces
from tests.formats.traces import US, kernel

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


def summary_of(*events, **more):
    return summarize(load(*events, **more), 1, "job", detailed=True)


def test_operators_compute_and_gloo_communicates_beside_them():
    found = summary_of(
        span("ProfilerStep#7", 0, 100), op("aten::mm", 0, 50), gloo(20, 50), op("aten::mul", 80, 10)
    )
    (step,) = found.steps
    assert (step.step, step.step_ns, step.collectives) == (7, 100 * US, 1)
    assert (step.compute_ns, step.comm_ns) == (60 * US, 50 * US)
    assert (step.hidden_ns, step.exposed_ns, step.idle_ns) == (30 * US, 20 * US, 20 * US)
    assert (found.info.source, found.info.compute_exact, found.info.device) == ("host", False, "cpu")
    assert found.info.source_reason == "torch.profiler trace"
    assert [each.op for each in found.details[-1].collectives] == ["gloo:all_reduce"]
    assert found.whole.overlap == 0.6


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
SEVERAL_THREADS = [op("aten::mm", 0, 30), op("aten::mm", 20, 30, 3)]


@pytest.mark.parametrize(
    ("events", "compute_us", "comm_us", "hidden_us"),
    [
        pytest.param(
            # As in FSDP's hooks, which run inside autograd's operators.
            [
                op("AddBackward0", 0, 90), span("FSDP::post_backward_reduce", 10, 70),
                op("aten::copy_", 20, 5), gloo(10, 70),
            ],
            25, 70, 5, id="a wait in a range within an operator is no compute",
        ),
        *(pytest.param([op(name, 0, 90), *WAITING], 5, 70, 0, id=name) for name in WAITS_IN_PYTHON),
        *(pytest.param([op(name, 0, 90), gloo(10, 70)], 90, 70, 70, id=name) for name in COMPUTES),
        pytest.param(
            [op("aten::mm", 0, 30), gloo(10, 70), op("aten::add_", 40, 10, GLOO)],
            30, 70, 20, id="what gloo's own thread adds up is communication",
        ),
        pytest.param(
            # A send is recorded where it was issued.
            [op("c10d::send", 5, 2), gloo(6, 60, "send", MAIN), op("aten::mm", 20, 30)],
            32, 60, 31, id="a thread that issues and records a collective still computes",
        ),
        pytest.param(SEVERAL_THREADS, 50, 0, 0, id="operators of several threads compute together"),
    ],
)  # fmt: skip
def test_innermost_operator_decides_what_a_thread_does(events, compute_us, comm_us, hidden_us):
    (step,) = summary_of(span("ProfilerStep#1", 0, 100), *events).steps
    times_ns = (step.compute_ns, step.comm_ns, step.hidden_ns)
    assert times_ns == (compute_us * US, comm_us * US, hidden_us * US)


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
