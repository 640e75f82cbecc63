"""Every collective is seen, whoever issues it."""

import textwrap
from typing import NamedTuple

import pytest

from overlaptop.wire.messages import CollectiveSpan, GroupMembers, StepTotals
from tests.agent.conftest import COUNTS_MESSAGES

REPEATS = 2

# All bodies in one job, each in steps of its own. The agent sends the detail of the newest step that it
# finds, so each step waits until the agent has sent it.
PRELUDE = f"""
import time
{textwrap.dedent(COUNTS_MESSAGES)}
import torch, torch.distributed as dist, torch.distributed.nn
import overlaptop.agent

dist.init_process_group("gloo")
rank = dist.get_rank()
ones = torch.ones
model = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(8))
made = 0

def measure(issue):
    global made
    issue()
    overlaptop.agent.step()
    made += 1
    while sent["StepTotals"] < made:
        time.sleep(0.005)

overlaptop.agent.step()
while not sent["StepDetail"]:  # they are sent once a dashboard watches
    measure(lambda: None)
"""

COMPILED = """
import torch.distributed._functional_collectives as funcol
@torch.compile(backend="aot_eager", fullgraph=True)
def f(x):
    return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1
assert f(ones(16)).tolist() == [5] * 16
"""

COALESCED = """
from torch.distributed.distributed_c10d import _coalescing_manager
tensors = [ones(4), ones(8)]
with _coalescing_manager():
    for tensor in tensors:
        dist.all_reduce(tensor)
"""

POINT_TO_POINT = """
ops = [dist.P2POp(dist.isend, ones(8), 1 - rank), dist.P2POp(dist.irecv, ones(8), 1 - rank)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
"""


LATE_BUFFERS = """
dist.barrier()
if rank == 0:
    time.sleep(0.2)
model.require_forward_param_sync = True  # as after a backward pass
with torch.no_grad():
    model(ones(4, 8))  # rank 1 waits for the buffers in C++
"""

ALONE = """
alone = [dist.new_group([each]) for each in (0, 1)][rank]
dist.all_reduce(ones(4), group=alone)
"""


class Case(NamedTuple):
    body: str
    ops: dict[str, int | None]  # Bytes of each op
    count: int = 1
    link: tuple[int, int] | None = None
    """What a rank sends and receives in one step, by a ring's count."""


CASES = {
    "all_reduce": Case("dist.all_reduce(ones(256))", {"allreduce_": 1024}, link=(1024, 1024)),
    "broadcast": Case("dist.broadcast(ones(4), 0)", {"broadcast_": 16}, link=(8, 8)),
    "all_gather_into_tensor": Case(
        "dist.all_gather_into_tensor(ones(8), ones(4))", {"_allgather_base_": 32}, link=(16, 16)
    ),
    "all_gather": Case("dist.all_gather([ones(4), ones(4)], ones(4))", {"allgather_": 32}, link=(16, 16)),
    "all_to_all": Case("dist.all_to_all_single(ones(8), ones(8))", {"alltoall_base_": 32}, link=(16, 16)),
    "barrier": Case("dist.barrier()", {"barrier": None}, link=(0, 0)),
    "group of one": Case(ALONE, {"allreduce_": 16}, link=(0, 0)),
    "compiled": Case(COMPILED, {"allreduce_": 64}),
    "coalesced": Case(COALESCED, {"allreduce_coalesced_": 48}, link=(48, 48)),
    "async": Case("dist.all_reduce(ones(4), async_op=True).wait()", {"allreduce_": 16}),
    "point to point": Case(POINT_TO_POINT, {"send": None, "recv_": None}, 2),
    "late buffers": Case(LATE_BUFFERS, {"broadcast_": None}, 3),
}


@pytest.fixture(scope="module")
def job(run_ranks_once):
    parts = [PRELUDE]
    for case in CASES.values():
        parts += ["def issue():", textwrap.indent(case.body.strip(), "    ")]
        parts += ["measure(issue)"] * REPEATS
    script = "\n".join([*parts, "dist.destroy_process_group()"])
    done = run_ranks_once(script, options=("--every", "1"), forked=True)
    assert done.codes == [0, 0], done.errs
    assert done.logged == []
    return done


def steps_of(job, name: str, rank: int = 0) -> list[StepTotals]:
    first = len(job.steps(rank)) + REPEATS * (list(CASES).index(name) - len(CASES))
    return job.steps(rank)[first : first + REPEATS]


def collectives_of(job, name: str) -> list[CollectiveSpan]:
    """Those of one of the case's steps: not each one's detail is sent."""
    numbers = {step.step for step in steps_of(job, name)}
    detail = next(detail for detail in job.details() if detail.step in numbers)
    members = (0,) if name == "group of one" else (0, 1)
    assert set(detail.groups) == {GroupMembers(each.group, members) for each in detail.collectives}
    return list(detail.collectives)


@pytest.mark.parametrize("name", [name for name in CASES if name != "point to point"])
def test_collective_has_op_bytes_and_link_bytes(job, name: str) -> None:
    case, seen, steps = CASES[name], collectives_of(job, name), steps_of(job, name)
    assert set(case.ops) <= {each.op for each in seen}
    for each in seen:
        if case.ops.get(each.op) is not None:
            assert each.bytes == case.ops[each.op]
        assert each.group.startswith("0") or "group" in name
    assert [step.collectives for step in steps] == [case.count] * REPEATS
    if case.link is not None:
        assert [(step.link_tx_bytes, step.link_rx_bytes) for step in steps] == [case.link] * REPEATS
        assert [(step.nic_tx_bytes, step.nic_rx_bytes) for step in steps] == [(0, 0)] * REPEATS
    if name in ("all_reduce", "async"):
        assert [each.is_async for each in seen] == [name == "async"]


def test_sends_and_receives_last_until_they_are_waited_for(job) -> None:
    for step in steps_of(job, "point to point"):
        assert (step.collectives, step.link_tx_bytes, step.link_rx_bytes) == (2, 32, 32)
        assert 0 < (step.exposed_ns or 0) <= (step.comm_ns or 0)
    assert job.info().left_out == ""


def test_wait_for_a_late_rank_is_exposed_and_stall(job) -> None:
    waiting = max(steps_of(job, "late buffers", rank=1), key=lambda step: step.stall_ns)
    assert min(waiting.exposed_ns, waiting.stall_ns) > 100_000_000
    assert waiting.overlap < 0.15


NUMBERED = """
first_two = dist.new_group([0, 1])
dist.all_reduce(ones(1))
if rank < 2:
    (dist.send if rank else dist.recv)(ones(1), 1 - rank)

def issue():
    is_measured = made % 2 == 0
    dist.all_reduce(ones(100 + number if is_measured else 1))
    if rank < 2:
        dist.all_reduce(ones(500 + number if is_measured else 1), group=first_two)
        if not is_measured:
            (dist.send if rank else dist.recv)(ones(1), 1 - rank)

measure(lambda: None)  # the send is in this step, which is unknown then
if made % 2:
    measure(lambda: None)
for number in range(12):
    measure(issue)
dist.destroy_process_group()
"""


def test_collective_has_the_same_number_on_all_ranks(run_ranks) -> None:
    job = run_ranks(PRELUDE + NUMBERED, nproc=3, options=("--every", "2"), forked=True)
    assert job.codes == [0, 0, 0], job.errs
    numbers = {
        size + number: before + number
        for size, before in ((100, 2), (500, 1))
        for number in range(0, 12, 2)
    }
    for rank in range(3):
        seen = {
            each.bytes // 4: each.sequence
            for detail in job.details(rank)
            for each in detail.collectives
            if each.bytes > 4
        }
        assert seen == {size: at for size, at in numbers.items() if rank < 2 or size < 500}
