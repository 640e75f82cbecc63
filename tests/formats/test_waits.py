"""The traces of all ranks, compared: who waited for whom."""

import pytest

from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.formats.job import analyze
from overlaptop.timeline.lanes import LaneRules
from tests.formats.traces import DATA, US, kernel, mark, nccl, write

WORLD = "[0, 1]"


def named(ts, dur, *, op="allreduce", group="0", ranks=WORLD, elements=1024, **more):
    """A kernel with the args of a recent torch."""
    args = {
        "Collective name": op, "Process Group Name": group, "Process Group Ranks": ranks,
        "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float",
    }  # fmt: skip
    return nccl(ts, dur, **args, **more)


def job_of(folder, *ranks, world_size=None):
    """A job of these ranks' events, as it is analyzed."""
    for rank, events in enumerate(ranks):
        write(folder / f"rank{rank}.json", *events, rank=rank, world_size=world_size or len(ranks))
    return analyze(folder, LaneRules())


def parts_of(job, rank, step=WHOLE_TRACE):
    times = job.waits[step].times[rank]
    return times.wait_ns // US, times.transfer_ns // US, times.not_attributed_ns // US


@pytest.mark.parametrize("name", ["ddp_25mb", "fsdp2", "tp", "ddp_gloo", "fsdp2_gloo"])
def test_parts_sum_to_each_step_to_the_nanosecond(name):
    job = analyze(DATA / name, LaneRules())
    for summary in job.ranks:
        for step in (summary.whole, *summary.steps):
            times = job.waits[step.step].times[summary.info.rank]
            assert times.wait_ns + times.transfer_ns + times.not_attributed_ns == step.comm_ns
            exposed_ns = times.exposed_wait_ns + times.exposed_transfer_ns + times.exposed_not_attributed_ns
            assert exposed_ns == step.exposed_ns


def test_a_wait_is_of_the_step_in_which_it_lies(tmp_path):
    steps = (mark(5, 0, 100), mark(6, 100, 100), kernel(0, 1), kernel(199, 1))
    job = job_of(tmp_path, [*steps, named(80, 60)], [*steps, named(130, 10)])
    assert [parts_of(job, 0, step) for step in (5, 6)] == [(20, 0, 0), (30, 10, 0)]
    assert [len(job.waits[step].collectives) for step in (5, 6)] == [0, 1]
    assert job.waits[6].late_rank(0) == 1


def test_groups_of_one_name_on_other_ranks_are_told_apart(tmp_path):
    groups = ["[0, 1]", "[0, 1]", "[2, 3]", "[2, 3]"]
    job = job_of(tmp_path, *([named(10 * rank, 50, ranks=of)] for rank, of in enumerate(groups)))
    assert len(job.waits[WHOLE_TRACE].collectives) == 2
    assert [parts_of(job, rank)[0] for rank in range(4)] == [10, 0, 10, 0]


def test_sequence_numbers_decide_where_they_are_written(tmp_path):
    job = job_of(
        tmp_path,
        [named(0, 50, Seq=7), named(100, 50, Seq=8)],
        [named(20, 30, Seq="7"), named(101, 49, Seq=8), named(200, 50, Seq=9)],
    )
    assert parts_of(job, 0) == (20 + 1, 30 + 49, 0)
    assert parts_of(job, 1) == (0, 30 + 49, 50)


def test_what_was_launched_before_the_trace_began_is_not_split(tmp_path):
    job = job_of(tmp_path, [nccl(0, 30), named(50, 50)], [nccl(0, 30), named(60, 40)])
    assert [parts_of(job, rank) for rank in (0, 1)] == [(10, 40, 30), (0, 40, 30)]


def test_kernels_without_names_are_taken_to_be_of_all_ranks(tmp_path):
    job = job_of(tmp_path, [nccl(0, 10), nccl(50, 50)], [nccl(60, 40)])
    assert [parts_of(job, rank) for rank in (0, 1)] == [(10, 40, 10), (0, 40, 0)]


@pytest.mark.parametrize(
    ("ranks", "size"),
    [("[0, 1, 2, 3]", 4), ("[0, 1, ..., 3]", 4), ([0, 1, 2, 3], None), (None, 4), ("[]", None)],
)
def test_group_with_a_rank_without_a_trace_is_not_split(tmp_path, ranks, size):
    more = {"Group size": size} if size else {}
    events = [[named(10 * rank, 50 - 10 * rank, ranks=ranks, **more)] for rank in range(3)]
    job = job_of(tmp_path, *events, world_size=4)
    (found,) = job.waits[WHOLE_TRACE].collectives
    assert found.not_attributed == "rank 3 is missing"
    assert parts_of(job, 0) == (0, 0, 50)


def test_a_receive_waits_for_its_send(tmp_path):
    job = job_of(
        tmp_path,
        [named(40, 5, op="send", **{"Dst Rank": 1})],
        [named(10, 40, op="recv", **{"Src Rank": "0"})],
    )
    assert [parts_of(job, rank) for rank in (0, 1)] == [(0, 0, 5), (30, 10, 0)]


def test_several_sends_and_receives_in_one_kernel_are_not_split(tmp_path):
    args = {"Collective name": "coalesced", "Process Group Name": "0", "Process Group Ranks": WORLD}
    events = [[kernel(10 * rank, 50, "ncclDevKernel_SendRecv(x)", **args)] for rank in (0, 1)]
    assert parts_of(job_of(tmp_path, *events), 0) == (0, 0, 50)


def test_kernels_that_old_nccl_calls_sendrecv_are_collectives(tmp_path):
    name = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
    ranks = [
        [kernel(3000 * at + 1000 + 300 * rank, 900 - 300 * rank, name, stream=20) for at in range(6)]
        for rank in (0, 1)
    ]
    job = job_of(tmp_path, *ranks)
    assert [parts_of(job, rank) for rank in (0, 1)] == [(1800, 3600, 0), (0, 3600, 0)]
