"""A folder of traces as one job."""

import os

import pytest

from overlaptop.formats import job
from overlaptop.formats.files import TraceError, ranks_of
from overlaptop.formats.job import analyze
from overlaptop.timeline.lanes import LaneRules
from tests.formats.traces import event, kernel, launch, mark, nccl, text, write

EVENTS = (kernel(0, 10), nccl(5, 10))


def fault_of(path, **how):
    with pytest.raises(TraceError) as caught:
        analyze(path, LaneRules(), **how)
    return str(caught.value)


@pytest.mark.parametrize("cores", [1, 3])
def test_ranks_come_by_number_whatever_their_files_are_called(tmp_path, monkeypatch, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    for rank, name in ((1, "a.json.gz"), (2, "b.json"), (0, "c.json")):
        write(tmp_path / name, kernel(0, 10 + rank), nccl(0, 20), rank=rank, world_size=3)
    found = analyze(tmp_path, LaneRules())
    assert [summary.info.rank for summary in found.ranks] == [0, 1, 2]
    assert [whole.compute_ns for whole in found.whole] == [10_000, 11_000, 12_000]
    assert (found.name, found.world_size, found.missing) == (tmp_path.name, 3, [])


def test_traces_without_a_rank_are_numbered_by_name(tmp_path):
    for name in ("b.json", "a.json"):
        write(tmp_path / name, kernel(0, 10 if name == "a.json" else 20), rank=None)
    found = analyze(tmp_path, LaneRules())
    assert [whole.compute_ns for whole in found.whole] == [10_000, 20_000]
    assert found.world_size == 2
    (said,) = found.remarks
    assert said.endswith("(0 a.json, 1 b.json)")


def test_of_several_traces_of_each_rank_the_last_is_taken(tmp_path):
    for rank in (0, 1):
        for cycle in (1, 2):
            of = kernel(cycle * 1e6, 10 * cycle)
            write(tmp_path / f"node_{40 + rank}.17{cycle}.pt.trace.json", of, rank=rank, world_size=2)
    found = analyze(tmp_path, LaneRules())
    assert [whole.compute_ns for whole in found.whole] == [20_000, 20_000]
    (said,) = found.remarks
    assert said.startswith("2 traces of each rank, at ")
    assert said.endswith("this is --cycle 2")
    assert analyze(tmp_path, LaneRules(), cycle=1).whole[1].compute_ns == 10_000
    assert "there is no cycle 3" in fault_of(tmp_path, cycle=3)
    late = kernel(9e6, 10)
    write(tmp_path / "node_41.172.pt.trace.json", late, rank=1, world_size=2)
    assert "is of another time than" in fault_of(tmp_path)
    (tmp_path / "node_41.171.pt.trace.json").unlink()
    assert "but of rank 1 there is 1: name the traces of one job" in fault_of(tmp_path)


def test_a_merged_file_beside_those_of_the_ranks_is_left_out(tmp_path):
    for name, rank in (("merged-1.5.json", 0), ("1.5-TP-0.json", 0), ("1.5-TP-1.json", 1)):
        write(tmp_path / name, kernel(0, 10 + len(name)), rank=rank, world_size=2)
    found = analyze(tmp_path, LaneRules())
    assert [whole.compute_ns for whole in found.whole] == [23_000, 23_000]
    assert found.remarks == ("left out merged-1.5.json: merged from others by its name",)


NO_GPU = event("cpu_op", "aten::add", 0, 5)
NO_TRACES = (b'{"schema": "1.1.0", "nodes": []}', b"[1, 2]", text(NO_GPU, rank=None))


def test_what_is_no_ranks_trace_is_left_out_and_named(tmp_path):
    for content in NO_TRACES:
        write(tmp_path / "a.json", *EVENTS)
        (tmp_path / "other.json").write_bytes(content)
        (said,) = analyze(tmp_path, LaneRules()).remarks
        assert said.startswith("left out other.json: ")
        (tmp_path / "a.json").unlink()
        assert fault_of(tmp_path).startswith(f"{tmp_path / 'other.json'}: ")


WHOLE, NAMELESS = text(*EVENTS), text(*EVENTS, rank=None)


@pytest.mark.parametrize(
    ("first", "second", "fault"),
    [
        (WHOLE, NAMELESS, "b.json: names no rank, but other traces here do"),
        (NAMELESS, WHOLE, "a.json: names no rank, but other traces here do"),
        (WHOLE, text(NO_GPU, rank=1), "b.json: no GPU activity in it: trace with ProfilerActivity.CUDA"),
        (WHOLE, b'{"traceEvents": [', "b.json: cut off: it ends in the middle of the JSON"),
    ],
)
def test_one_bad_file_refuses_the_folder_and_is_named(tmp_path, first, second, fault):
    (tmp_path / "a.json").write_bytes(first)
    (tmp_path / "b.json").write_bytes(second)
    assert fault_of(tmp_path) == f"{tmp_path}/{fault}"


def test_traces_may_be_named_one_by_one_or_lie_a_folder_below(tmp_path):
    below = tmp_path / "iteration_10"
    below.mkdir()
    for rank in (0, 1):
        write(below / f"rank{rank}.json", *EVENTS, rank=rank, world_size=2)
    assert len(analyze(tmp_path, LaneRules()).ranks) == 2
    assert len(analyze(sorted(below.iterdir()), LaneRules()).ranks) == 2
    (tmp_path / "iteration_20").mkdir()
    write(tmp_path / "iteration_20" / "rank0.json", *EVENTS)
    assert fault_of(tmp_path).endswith("name one of those in it: iteration_10, iteration_20")


@pytest.mark.parametrize(
    ("names", "ranks", "known"),
    [
        ([f"trace_{rank}.json" for rank in range(12)], range(12), True),
        ([f"1700000000.5-TP-{rank}.trace.json.gz" for rank in (0, 1, 10, 2)], (0, 1, 10, 2), True),
        ([f"worker{rank}.{1700 + rank}.json" for rank in (3, 2, 1)], (3, 2, 1), True),
        (["one.json"], [0], False),
        (["b.json", "a.json"], [1, 0], False),
        (["libkineto_10000.json", "libkineto_4711.json"], [1, 0], False),
    ],
)
def test_ranks_come_from_the_number_that_differs(names, ranks, known):
    found, are_ranks = ranks_of(names)
    assert ([*found], are_ranks) == ([*ranks], known)


def test_each_gpu_of_one_trace_is_a_row(tmp_path):
    events = [kernel(0, 50), nccl(60, 20), kernel(60, 90, device=1, stream=9)]
    found = analyze(write(tmp_path / "both.json", *events, rank=None), LaneRules())
    assert [whole.hidden_ns for whole in found.whole] == [0, 0]
    assert [summary.info.rank for summary in found.ranks] == [0, 1]
    assert found.ranks[0].remarks == ("2 GPUs in one trace: each row is a GPU",)
    write(tmp_path / "other.json", *EVENTS, rank=None)
    assert "1 other GPU in both.json" in analyze(tmp_path, LaneRules()).ranks[0].remarks[0]


def test_what_profilers_took_to_start_is_told_from_the_rest(tmp_path):
    """Rank 1's profiler is up 15 s later: rank 0 spins in the first all-reduce."""
    steps = [
        each for at in range(9) for each in (kernel(15.1e6 + 9e3 * at, 8e3), nccl(15.11e6 + 9e3 * at, 500))
    ]
    for rank, first in enumerate((nccl(0, 15e6), nccl(15e6 - 500, 500))):
        write(tmp_path / f"rank{rank}.json", first, *steps, rank=rank, world_size=2)
    found = analyze(tmp_path, LaneRules()).ranks
    assert [summary.steps[0].comm_ns for summary in found] == [9 * 500_000, 10 * 500_000]
    (said,) = found[0].remarks
    assert said.startswith("the first 15.0 s are one collective")
    assert not found[1].remarks


def test_too_little_memory_is_one_line(tmp_path, monkeypatch):
    def too_much(*_):
        raise MemoryError

    paths = [write(tmp_path / f"rank{rank}.json", *EVENTS, rank=rank) for rank in range(2)]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    monkeypatch.setattr(job.kineto, "load", too_much)
    assert fault_of(paths[0]) == f"{paths[0]}: does not fit into this machine's memory"
    monkeypatch.setattr(job.kineto, "load", lambda *_: os._exit(9))
    assert fault_of(tmp_path) == f"{tmp_path}: a reading process was killed: too little memory?"


@pytest.mark.filterwarnings("error")
def test_sums_larger_than_a_message_holds_are_refused(tmp_path):
    named = {"Collective name": "allreduce"}
    far = [nccl(-4.6e15, 4.6e15, stream=stream, **named) for stream in range(5)]
    path = write(tmp_path / "rank0.json", *far, mark(1, -4.6e15, 4.6e15), base_ns=0)
    assert fault_of(path) == f"{path}: a number in it is larger than any in a trace"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("far", [1e308, -1e308, 10**400], ids=["late", "early", "400 digits"])
def test_times_that_only_hta_looks_at_are_bounded_too(tmp_path, far):
    other = event("cpu_op", "aten::mm", far, far, {"correlation": 1})
    path = write(tmp_path / "rank0.json", *EVENTS, other)
    assert analyze(path, LaneRules()).whole[0].comm_ns == 10_000
    assert fault_of(path, by_hta=True) == f"{path}: a number in it is larger than any in a trace"


def test_hta_changes_the_whole_and_leaves_the_steps_alone(tmp_path):
    path = write(
        tmp_path / "rank0.json", kernel(20.0, 30.0, correlation=1), launch(10.0, 1),
        nccl(0.0, 5.0, correlation=99),
        mark(1, 0.0, 90.0), mark(2, 100.0, 50.0),
    )  # fmt: skip
    ours, theirs = (analyze(path, LaneRules(), by_hta=by_hta) for by_hta in (False, True))
    assert (ours.whole[0].comm_ns, theirs.whole[0].comm_ns) == (5000, 0)
    assert ours.ranks == theirs.ranks
    assert theirs.waits == {}  # they do not tell waiting from transfer
