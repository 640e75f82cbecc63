"""One trace's text, taken apart."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.formats import kineto
from overlaptop.formats.activities import LANES
from overlaptop.formats.files import TraceError
from overlaptop.timeline.lanes import Lane, LaneRules
from tests.formats.traces import BASE_NS, PATH, event, kernel, launch, load, mark, nccl, read, text


def fault_of(content):
    with pytest.raises(TraceError) as caught:
        read(content)
    message = str(caught.value)
    assert message.startswith("some/trace.json: ")
    assert "\n" not in message
    return message


def raw(ts="1.0", dur="1.0", name='"k"', more=""):
    """One kernel, its values as JSON text."""
    fields = f'"ph": "X", "cat": "kernel", "name": {name}, "ts": {ts}, "dur": {dur}'
    return f'{{"traceEvents": [{{{fields}, "args": {{"stream": 7}}}}]{more}}}'.encode()


NEAR_NS = 2**43 * 1000 - 1  # A hundred days from the base


@given(start_ns=st.integers(-NEAR_NS, NEAR_NS), length_ns=st.integers(0, NEAR_NS))
def test_no_nanosecond_is_lost(start_ns, length_ns):
    found = read(raw(_us(start_ns), _us(length_ns))).activities
    assert (found.start_ns.tolist(), found.end_ns.tolist()) == ([start_ns], [start_ns + length_ns])


def _us(ns):
    sign, ns = "-" if ns < 0 else "", abs(ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03}"


def test_each_category_of_gpu_event_has_its_lane():
    found = load(
        kernel(1, 1),
        nccl(2, 1),
        kernel(3, 1, "Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy"),
        kernel(4, 1, "Memcpy PtoP (Device -> Device)", cat="gpu_memcpy"),
        kernel(5, 1, "Memset (Device)", cat="gpu_memset"),
        kernel(6, 1, cat="Kernel"),
        kernel(7, 1, "Memcpy DtoH (Device -> Pageable)", cat="Memcpy"),
        event("gpu_user_annotation", "nccl:all_reduce", 0, 100),
        event("cpu_op", "aten::mm", 0, 100, args={"Input Dims": [[1, 2], []]}),
        {"ph": "f", "id": 1, "ts": 3.0, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"ph": "M", "name": "process_name", "ts": 0.0, "pid": "Spans", "args": {"name": "python"}},
    ).activities
    assert [LANES[code] for code in found.lane] == [
        Lane.COMPUTE, Lane.COMM, Lane.COPY, Lane.COMM, Lane.COPY, Lane.COMPUTE, Lane.COPY,
    ]  # fmt: skip
    assert found.is_kernel.tolist() == [True, True, False, False, False, True, False]


def test_each_gpu_of_a_trace_is_read_by_itself():
    events = kernel(1, 1, "a"), kernel(3, 9, "c", device=1), kernel(2, 1, "b"), nccl(1, 50)
    found = kineto.load(PATH, text(*events), LaneRules())
    assert [each.activities.names for each in found] == [["c"], ["a", nccl(0, 0)["name"], "b"]]


def test_in_a_merged_trace_each_gpu_has_its_own_process():
    """Numbers of launches and of steps are those of each process, and both have the same."""
    events = [
        {**each, "pid": pid}
        for pid, at_us in (("[TP00] 7", 0), ("[TP01] 8", 400))
        for each in (
            mark(1, at_us, 90), launch(at_us + 5, 1), kernel(at_us + 10, 50, f"of {pid}", correlation=1),
        )
    ]  # fmt: skip
    first, second = kineto.load(PATH, text(*events), LaneRules())
    assert (first.activities.names, second.activities.names) == (["of [TP00] 7"], ["of [TP01] 8"])
    assert [each.annotations[0].start_ns - BASE_NS for each in (first, second)] == [0, 400_000]
    assert second.activities.launched_ns.tolist() == [BASE_NS + 405_000]


def xpu(ts, name, queue, number):
    return event("kernel", name, ts, 10, {"device": 0, "sycl queue": queue, "correlation": number})


@pytest.mark.parametrize(
    "events",
    [
        [
            *(event("xpu_runtime", "urEnqueueKernelLaunch", at, 4, {"correlation": at}) for at in (1, 2)),
            xpu(20, "gemm_kernel", 1, 1), xpu(25, "oneccl_reduce_base<x>", 2, 2),
        ],
        [
            event("user_annotation", "gloo:barrier", 50, 8), event("mtia_runtime", "runtime_launch", 20, 5),
            event("mtia_ccp_events", "fc-dtype_Float", 100, 300),
            event("mtia_ccp_events", "hccl::all_reduce", 300, 400),
        ],
    ],
    ids=["Intel's XPU", "MTIA"],
)  # fmt: skip
def test_device_events_of_other_accelerators_are_read(events):
    found = load(*events, deviceProperties=[]).activities
    assert [LANES[code] for code in found.lane] == [Lane.COMPUTE, Lane.COMM]
    if events[0]["cat"] == "xpu_runtime":
        assert found.launched_ns.tolist() == [BASE_NS + 1000, BASE_NS + 2000]
        assert found.queue.tolist() == [0, 1]


def test_device_events_that_are_not_read_are_named():
    content = text(event("cpu_op", "aten::mm", 1, 9), event("npu_kernel", "x", 1, 9), deviceProperties=[])
    assert "its device events (npu_kernel) are not read" in fault_of(content)


@pytest.mark.parametrize(
    ("name", "rank"),
    [("rank3.json.gz", 3), ("trace_rank_12.json", 12), ("Rank-0.pt.trace.json", 0), ("host_17.json", None),
     ("drank.json", None), ("rank1234567.json", None)],
)  # fmt: skip
def test_rank_is_in_the_name_where_the_trace_does_not_tell(name, rank):
    assert load(kernel(1, 1), rank=None, path=Path(name)).rank == rank
    assert load(kernel(1, 1), rank=5, path=Path(name)).rank == 5


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cut off"),
        (b"[1, 2]", "Expected `object`, got `array`"),
        (b'{"traceEvents": null}', "Expected `array`"),
        (b'{"traceEvents": []}', "no GPU activity"),
        (text(event("cpu_op", "aten::mm", 1, 1)), "trace with ProfilerActivity.CUDA"),
        (text(kernel(1, 1)) + b"}", "not JSON"),
        (b'{"traceEvents": [{"name": "\xff"}]}', "no GPU activity"),
        (raw(ts='"1"'), "Expected `int | float | null`, got `str`"),
        (raw(ts="NaN"), "no GPU activity"),
        (raw(ts="1e999"), "out of range"),
        (raw(ts="1e300"), "centuries away"),
        (raw(dur="1e308"), "centuries away"),
        (raw(ts="9" * 400), "centuries away"),
        (raw(ts="9" * 100_000), "out of range"),
        (raw(ts="4e15", dur="4e15"), "centuries away"),
        (raw(dur="-0.001"), "ends before it starts: 'k' at 1.0 µs"),
        (raw(more=', "baseTimeNanoseconds": 1' + "0" * 30), "centuries away"),
        (raw(more=', "baseTimeNanoseconds": ' + "9" * 400), "centuries away"),
        (raw(more=', "distributedInfo": {"rank": -1}'), "no possible rank"),
        (raw(more=', "distributedInfo": {"rank": 0, "world_size": 1000000000}'), "no possible world size"),
        (raw(more=', "x": ' + "[" * 1_000_000), "nested too deeply"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_what_is_no_trace_is_refused_in_one_line(content, words):
    assert words in fault_of(content)


STACK = event("python_function", "torch/_inductor/config.py(0): XXX", 3, 4, {"Python id": 7})


@pytest.mark.parametrize(
    ("was", "broken"),
    [
        pytest.param(b"XXX", b"\xf0\xc7\x80(0): \xb88c\xff", id="no UTF-8"),
        pytest.param(b"XXX", b"\x01\x7f\x1b[2J\n", id="control characters"),
        pytest.param(b"XXX", b"a\0b", id="a zero"),
        pytest.param(b'"Python id": 7', b'"GB/s": inf, "b": -nan, "c": [NaN]', id="no numbers"),
        pytest.param(b'"Python id": 7', b'"occupancy %": N/A', id="N/A"),
        pytest.param(b"torch/_inductor", rb"C:\users\torch\q", id="backslashes"),
    ],
)
@pytest.mark.parametrize("last", [False, True], ids=["amid others", "at the end"])
def test_broken_text_of_an_event_that_does_not_count_is_passed(was, broken, last):
    counts = [mark(1, 0, 90), launch(5, 1), kernel(10, 50, correlation=1), nccl(30, 40)]
    content = text(*([*counts, STACK] if last else [STACK, *counts]))
    assert was in content
    fine, found = map(read, (content, content.replace(was, broken)))
    assert found.activities.names == fine.activities.names
    assert found.activities.start_ns.tolist() == fine.activities.start_ns.tolist()
    assert found.activities.launched_ns.tolist() == fine.activities.launched_ns.tolist()
    assert (found.rank, found.annotations) == (fine.rank, fine.annotations)
