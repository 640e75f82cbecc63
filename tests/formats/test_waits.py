"""The traces of all ranks, compared: who waited for whom."""

import pytest

from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.formats.job import analyze
from overlaptop.timeline.lanes import LaneRules
from tests.formats.traces import DATA, PAGES, US, kernel, mark, named, nccl, write
from tests.snapshots import check_page


@pytest.mark.parametrize("name", ["ddp_25mb", "fsdp2", "tp", "ddp_gloo", "fsdp2_gloo"])
def test_parts_sum_to_each_step_to_the_nanosecond(name):
    job = analyze(DATA / name, LaneRules())
    for summary in job.ranks:
        for step in (summary.whole, *summary.steps):
            times = job.waits[step.step].times[summary.info.rank]
            assert times.wait_ns + times.transfer_ns + times.not_attributed_ns == step.comm_ns
            exposed_ns = times.exposed_wait_ns + times.exposed_transfer_ns + times.exposed_not_attributed_ns
            assert exposed_ns == step.exposed_ns


STEPS = (mark(5, 0, 100), mark(6, 100, 100), kernel(0, 1), kernel(199, 1))
COALESCED = {"Collective name": "coalesced", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
OLD_NAME = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
FIRST_THREE = [(10 * rank, 50 - 10 * rank) for rank in range(3)]
JOBS = {
    "a wait is of the step in which it lies": [[*STEPS, named(80, 60)], [*STEPS, named(130, 10)]],
    "groups of one name on other ranks": [
        [named(10 * rank, 50, ranks=of)] for rank, of in enumerate(["[0, 1]", "[0, 1]", "[2, 3]", "[2, 3]"])
    ],
    "sequence numbers decide": [
        [named(0, 50, Seq=7), named(100, 50, Seq=8)],
        [named(20, 30, Seq="7"), named(101, 49, Seq=8), named(200, 50, Seq=9)],
    ],
    "what was launched before the trace is not attributed": [
        [nccl(0, 30), named(50, 50)], [nccl(0, 30), named(60, 40)],
    ],
    "kernels without names are of all ranks": [[nccl(0, 10), nccl(50, 50)], [nccl(60, 40)]],
    "a receive waits for its send": [
        [named(40, 5, op="send", **{"Dst Rank": 1})], [named(10, 40, op="recv", **{"Src Rank": "0"})],
    ],
    "several sends and receives in one kernel are not attributed": [
        [kernel(10 * rank, 50, "ncclDevKernel_SendRecv(x)", **COALESCED)] for rank in (0, 1)
    ],
    "kernels that old NCCL calls SendRecv are collectives": [
        [kernel(3000 * at + 1000 + 300 * rank, 900 - 300 * rank, OLD_NAME, stream=20) for at in range(6)]
        for rank in (0, 1)
    ],
    # Of a group of four the last rank has no trace. Its ranks are written in several ways.
    "all ranks written": [[named(*when, ranks="[0, 1, 2, 3]")] for when in FIRST_THREE],
    "ranks written with an ellipsis": [
        [named(*when, ranks="[0, 1, ..., 3]", **{"Group size": 4})] for when in FIRST_THREE
    ],
    "ranks written as a list": [[named(*when, ranks=[0, 1, 2, 3])] for when in FIRST_THREE],
    "only a size written": [[named(*when, ranks=None, **{"Group size": 4})] for when in FIRST_THREE],
    "no ranks written": [[named(*when, ranks="[]")] for when in FIRST_THREE],
}  # fmt: skip


def described(job):
    """Each step: waiting, transfer and the rest of each rank in µs, and its collectives."""
    for number, waits in sorted(job.waits.items()):
        yield "whole trace" if number == WHOLE_TRACE else f"step {number}"
        for rank, times in sorted(waits.times.items()):
            parts_us = (ns / US for ns in (times.wait_ns, times.transfer_ns, times.not_attributed_ns))
            yield "  rank {}: waiting {:g}, transfer {:g}, not attributed {:g}".format(rank, *parts_us)
        for each in waits.collectives:
            late = each.not_attributed or f"rank {each.late_rank} is late"
            yield f"  {each.op} of ranks {sorted(each.spans)}: {late}"


@pytest.mark.parametrize("name", JOBS)
def test_ranks_wait_for_each_other_as_in_their_page(name, tmp_path):
    ranks = JOBS[name]
    for rank, events in enumerate(ranks):
        world_size = 4 if len(ranks) == 3 else len(ranks)
        write(tmp_path / f"rank{rank}.json", *events, rank=rank, world_size=world_size)
    check_page(PAGES, f"waits {name}", "\n".join(described(analyze(tmp_path, LaneRules()))))
