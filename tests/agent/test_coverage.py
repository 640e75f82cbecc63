"""Every collective is seen, whoever issues it."""

from __future__ import annotations

import pytest

PRELUDE = """
    import torch, torch.distributed as dist, torch.distributed.nn
    import overlaptop.agent
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ones = lambda *shape: torch.ones(*shape)

    def issue():
{body}

    for step in range(4):
        overlaptop.agent.step()
        issue()
    overlaptop.agent.step()
    dist.destroy_process_group()
"""

FSDP2 = """
from torch.distributed.fsdp import fully_shard
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8, bias=False) for _ in range(3)])
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model(ones(2, 8)).sum().backward()
"""

DDP = """
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(torch.nn.Linear(8, 8, bias=False), broadcast_buffers=False)
model(ones(2, 8)).sum().backward()
"""

TENSOR_PARALLEL = """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
model(ones(2, 8)).sum().backward()
"""

ZERO = """
from torch.distributed.optim import ZeroRedundancyOptimizer
model = torch.nn.Linear(8, 8, bias=False)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
model(ones(2, 8)).sum().backward()
optimizer.step()
"""

COMPILED = """
import torch.distributed._functional_collectives as funcol
f = torch.compile(lambda x: funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1, backend="aot_eager")
f(ones(16))
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


@pytest.mark.parametrize(
    ("body", "ops", "count"),
    [
        ("dist.all_reduce(ones(256))", {"allreduce_": 1024}, 1),
        ("dist.broadcast(ones(4), 0)", {"broadcast_": 16}, 1),
        ("dist.all_gather_into_tensor(ones(8), ones(4))", {"_allgather_base_": 32}, 1),
        ("dist.all_gather([ones(4), ones(4)], ones(4))", {"allgather_": 32}, 1),
        ("dist.all_to_all_single(ones(8), ones(8))", {"alltoall_base_": 32}, 1),
        ("dist.barrier()", {"barrier": None}, 1),
        (DDP, {"allreduce_": None}, None),
        (FSDP2, {"_allgather_base_": None, "_reduce_scatter_base_": None}, None),
        (TENSOR_PARALLEL, {"allreduce_": None}, None),
        (ZERO, {"broadcast_": None}, None),
        (COMPILED, {"allreduce_": 64}, 1),
        (COALESCED, {"allreduce_coalesced_": 48}, 1),
    ],
    ids=lambda value: None,
)
def test_collectives_are_seen_with_op_and_bytes(run_ranks, body: str, ops: dict, count: int | None) -> None:
    indented = "\n".join(f"        {line}" for line in body.strip().splitlines())
    job = run_ranks(PRELUDE.format(body=indented))

    assert job.codes == [0, 0], job.errs
    assert not any("overlaptop" in err for err in job.errs), job.errs
    last = job.details(rank=0)[-1]
    assert set(ops) <= {each.op for each in last.collectives}
    for each in last.collectives:
        if ops.get(each.op) is not None:
            assert each.bytes == ops[each.op]
        assert each.group.startswith("0") or "mesh" in each.group
        assert 0 <= each.start_ns <= each.end_ns
    if count is not None:
        assert [step.collectives for step in job.steps()] == [count] * 4


def test_sync_and_async_are_told_apart(run_ranks) -> None:
    body = "        dist.all_reduce(ones(4))\n        dist.all_reduce(ones(4), async_op=True).wait()"
    job = run_ranks(PRELUDE.format(body=body))
    assert [each.is_async for each in job.details()[-1].collectives] == [False, True]


def test_steps_whose_communication_has_no_visible_end_are_unknown_and_the_reason_is_said(run_ranks) -> None:
    body = "\n".join(f"        {line}" for line in POINT_TO_POINT.strip().splitlines())
    job = run_ranks(PRELUDE.format(body=body))
    assert job.codes == [0, 0], job.errs
    assert [(step.collectives, step.comm_ns, step.overlap) for step in job.steps()] == [(2, None, None)] * 4
    assert job.steps()[-1].dropped > 0
    assert "its end is hidden" in job.info().source_reason


def test_a_collective_that_outlives_its_step_counts_in_both(run_ranks) -> None:
    job = run_ranks(
        """
        import time
        import torch, torch.distributed as dist
        import overlaptop.agent
        dist.init_process_group("gloo")
        tensor = torch.ones(4)
        dist.barrier()
        overlaptop.agent.step()
        if dist.get_rank() == 0:
            work = dist.all_reduce(tensor, async_op=True)
            time.sleep(0.05)
            overlaptop.agent.step()
            time.sleep(0.05)
            overlaptop.agent.step()
            work.wait()
        else:
            time.sleep(0.2)
            dist.all_reduce(tensor)
        overlaptop.agent.step()
        dist.destroy_process_group()
        """
    )
    assert job.codes == [0, 0], job.errs
    first, second, third = job.steps(rank=0)
    assert first.comm_ns > 0.9 * first.step_ns
    assert second.comm_ns == second.hidden_ns == second.step_ns
    assert third.exposed_ns == pytest.approx(third.comm_ns, rel=0.05)
    assert (first.collectives, second.collectives) == (1, 0)
