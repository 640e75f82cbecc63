"""A folder of traces as one job."""

import pytest

from overlaptop.formats import job, workers
from overlaptop.formats.files import TraceError
from overlaptop.formats.job import analyze
from overlaptop.timeline.lanes import LaneRules
from tests.formats.traces import event, kernel, launch, mark, nccl, write

EVENTS = (kernel(0, 10), nccl(5, 10))


def fault_of(path, **how):
    with pytest.raises(TraceError) as caught:
        analyze(path, LaneRules(), **how)
    return str(caught.value)


@pytest.mark.parametrize("cores", [1, 3])
def test_ranks_come_by_number_whatever_their_files_are_called(tmp_path, monkeypatch, cores):
    monkeypatch.setattr(workers, "cores", lambda: cores)
    for rank, name in ((1, "a.json.gz"), (2, "b.json"), (0, "c.json")):
        write(tmp_path / name, kernel(0, 10 + rank), nccl(0, 20), rank=rank, world_size=3)
    found = analyze(tmp_path, LaneRules())
    assert [summary.info.rank for summary in found.ranks] == [0, 1, 2]
    assert [whole.compute_ns for whole in found.whole] == [10_000, 11_000, 12_000]
    assert (found.name, found.world_size, found.missing) == (tmp_path.name, 3, [])


def test_one_file_is_a_job_as_well(tmp_path):
    found = analyze(write(tmp_path / "host_7.pt.trace.json.gz", *EVENTS, rank=5, world_size=8), LaneRules())
    assert (found.name, found.world_size) == ("host_7", 8)
    assert found.missing == [0, 1, 2, 3, 4, 6, 7]


def test_traces_without_a_rank_are_numbered_by_name(tmp_path):
    for name in ("b.json", "a.json"):
        write(tmp_path / name, kernel(0, 10 if name == "a.json" else 20), rank=None)
    found = analyze(tmp_path, LaneRules())
    assert [whole.compute_ns for whole in found.whole] == [10_000, 20_000]
    assert found.world_size == 2


@pytest.mark.parametrize(
    ("ranks", "at_fault", "words"),
    [
        ((1, 1), "b.json", "is of rank 1, and so is {folder}/a.json: one job at a time"),
        ((None, 0), "a.json", "tells no rank, but other traces here do"),
        ((0, None), "b.json", "tells no rank, but other traces here do"),
    ],
)
def test_traces_that_are_of_no_one_job_are_refused_by_name(tmp_path, ranks, at_fault, words):
    for name, rank in zip(("a.json", "b.json"), ranks, strict=True):
        write(tmp_path / name, *EVENTS, rank=rank)
    assert fault_of(tmp_path) == f"{tmp_path / at_fault}: {words.format(folder=tmp_path)}"


def test_one_bad_file_refuses_the_folder_and_is_named(tmp_path):
    write(tmp_path / "rank0.json", *EVENTS)
    (tmp_path / "rank1.json").write_text('{"traceEvents": [')
    assert fault_of(tmp_path) == f"{tmp_path / 'rank1.json'}: cut off: it ends in the middle of the JSON"


def test_a_process_that_is_killed_for_want_of_memory_names_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(job, "_read_trace", lambda file, *_, **__: workers.os._exit(9))
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", *EVENTS, rank=rank)
    assert fault_of(tmp_path).startswith(f"{tmp_path / 'rank0.json'}: the process that read it was killed")


def test_what_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    def too_much(*_):
        raise MemoryError

    monkeypatch.setattr(job.kineto, "load_each", too_much)
    path = write(tmp_path / "rank0.json", *EVENTS)
    assert fault_of(path) == f"{path}: does not fit into this machine's memory"


@pytest.mark.filterwarnings("error")
def test_numbers_that_add_up_to_more_than_a_message_holds_are_refused(tmp_path):
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


def test_large_traces_are_not_all_unpacked_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 8)
    small = [write(tmp_path / f"rank{rank}.json", *EVENTS, rank=rank) for rank in range(4)]
    assert job._worker_count(small) == 8
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(700 << 20)
    assert job._worker_count([*small, tmp_path / "large.json"]) == 2
    assert job._worker_count([tmp_path / "missing.json"]) == 8


@pytest.mark.parametrize("cores", [1, 2])
def test_a_trace_may_have_what_no_message_may(tmp_path, monkeypatch, cores):
    monkeypatch.setattr(workers, "cores", lambda: cores)
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", kernel(-5, 0), rank=rank, base_ns=None)
    found = analyze(tmp_path, LaneRules(), detailed=True)
    assert [(whole.step, whole.start_ns, whole.step_ns) for whole in found.whole] == [(-1, -5000, 0)] * 2


def test_hta_changes_the_whole_and_leaves_the_steps_alone(tmp_path):
    path = write(
        tmp_path / "rank0.json", kernel(20.0, 30.0, correlation=1), launch(10.0, 1),
        nccl(0.0, 5.0, correlation=99),
        mark(1, 0.0, 90.0), mark(2, 100.0, 50.0),
    )  # fmt: skip
    ours, theirs = (analyze(path, LaneRules(), by_hta=by_hta) for by_hta in (False, True))
    assert (ours.whole[0].comm_ns, theirs.whole[0].comm_ns) == (5000, 0)
    assert ours.ranks == theirs.ranks
