"""The events source on real GPUs, beside torch.profiler's view of the same program (make test-gpu)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

DDP = Path(__file__).resolve().parents[3] / "workloads" / "ddp.py"
NPROC = 2
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < NPROC, reason="an all-reduce needs two GPUs")

# What torch.profiler saw, put through the same definitions: the last lines of each script.
PROFILED = '''
    import contextlib, json, os, sys, time
    import torch, torch.distributed as dist

    @contextlib.contextmanager
    def profiled(steps, skip):
        """Print the overlap of all but the first `skip` of the `steps` inside."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            # The profiler starts at other moments on other ranks: what they wait for each other then is
            # not the job's. And the CPU loses its lead here: it takes some steps to come back.
            dist.barrier()
            torch.cuda.synchronize()
            began_ns = time.time_ns()
            yield
            torch.cuda.synchronize()
        from overlaptop.timeline import breakdown, spans
        from overlaptop.timeline.lanes import Lane, LaneRules
        rules, lanes = LaneRules(), {lane: [] for lane in Lane}
        for event in profile.profiler.kineto_results.events():
            if event.device_type() == torch.autograd.DeviceType.CUDA and event.start_ns() > began_ns:
                name = event.name()
                if name.startswith(("ProfilerStep", "gpu_user_annotation")):
                    continue
                kind = next((k for k in ("memcpy", "memset") if name.lower().startswith(k)), "kernel")
                start_ns = event.start_ns()
                lanes[rules.lane(name, kind)].append((start_ns, start_ns + event.duration_ns()))
        ends = sorted(end for _, end in lanes[Lane.COMM])
        parts = breakdown.break_down(
            ends[len(ends) * skip // steps - 1], ends[-1],
            *(spans.from_pairs(lanes[lane]) for lane in (Lane.COMPUTE, Lane.COMM, Lane.COPY)),
        )
        if os.environ["RANK"] == "0":
            print(json.dumps({"overlap": parts.overlap, "collectives": len(ends) / steps}))
'''

CONSTRUCTED = (
    PROFILED
    + """
    import overlaptop.agent

    HIDDEN, PRODUCTS = float(sys.argv[1]), int(sys.argv[2])
    WITH_PROFILER = PRODUCTS > 0
    STEPS = 20
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    tensor = torch.ones(512 << 20, device="cuda", dtype=torch.bfloat16)

    def time_ms(call, times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):
            call()
        begin.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / times

    comm_ms, product_ms = time_ms(lambda: dist.all_reduce(tensor), 5), time_ms(lambda: a @ a, 50)
    products = torch.tensor(max(1, round((HIDDEN or 1.0) * comm_ms / product_ms)), device="cuda")
    dist.broadcast(products, 0)
    products = PRODUCTS or int(products)
    print(products, flush=True)

    def steps(number):
        for _ in range(number):
            overlaptop.agent.step()
            if HIDDEN == 0:
                for _ in range(products):
                    a @ a
                dist.all_reduce(tensor)
            else:
                work = dist.all_reduce(tensor, async_op=True)
                for _ in range(products):
                    a @ a
                work.wait()

    steps(5)
    with profiled(STEPS, skip=5) if WITH_PROFILER else contextlib.nullcontext():
        steps(STEPS)
    torch.cuda.synchronize()
    overlaptop.agent.step()
    overlaptop.agent.step()
    dist.destroy_process_group()
"""
)


def live_overlap(job, rank: int = 0) -> float:
    steps = [step for step in job.steps(rank) if step.measured and step.step >= 5 and step.comm_ns]
    assert len(steps) >= 5, job.errs
    return sum(step.hidden_ns for step in steps) / sum(step.comm_ns for step in steps)


def assert_bounds(live: float, truth: float) -> None:
    """Events do not see the gaps between a model's many kernels, and call them compute."""
    assert truth - 0.02 <= live <= truth + 0.10


@two_gpus
@pytest.mark.parametrize("hidden", [0.0, 0.5, 1.5])
def test_constructed_overlap_agrees_with_the_profiler_within_five_points(run_ranks, hidden: float) -> None:
    live = run_ranks(
        CONSTRUCTED,
        nproc=NPROC,
        options=("--source", "events", "--every", "1"),
        arguments=(str(hidden), "0"),
    )
    products = live.outs[0].strip()
    profiled = run_ranks(CONSTRUCTED, nproc=NPROC, agent=False, arguments=(str(hidden), products))
    assert live.codes == profiled.codes == [0] * NPROC, (live.errs, profiled.errs)
    assert live.info().source == "events"

    truth = json.loads(profiled.outs[0].splitlines()[-1])
    print(f"hidden {hidden}: live {live_overlap(live):.3f}, profiler {truth['overlap']:.3f}")
    assert live_overlap(live) == pytest.approx(truth["overlap"], abs=0.05)
    for step in live.steps():
        if step.measured:
            parts = (step.hidden_ns, step.exposed_ns, step.compute_only_ns, step.copy_only_ns, step.idle_ns)
            assert sum(parts) == step.step_ns


FSDP2 = """
import sys
import torch, torch.distributed as dist, torch.nn as nn
from torch.distributed.fsdp import fully_shard

rank = int(__import__("os").environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False, dtype=torch.bfloat16) for _ in range(12)])
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-4, foreach=True)
x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
for step in range(60):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
dist.destroy_process_group()
"""

PROFILED_JOB = (
    PROFILED
    + """
    import runpy
    from torch.optim.optimizer import register_optimizer_step_post_hook
    seen, stack = 0, contextlib.ExitStack()

    def after(*_):
        global seen
        seen += 1
        if seen == 20:
            torch.cuda.synchronize()
            stack.enter_context(profiled(steps=20, skip=10))
        if seen == 40:
            stack.close()

    register_optimizer_step_post_hook(after)
    path = sys.argv.pop(1)
    sys.argv[0] = path
    runpy.run_path(path, run_name="__main__")
"""
)


@two_gpus
@pytest.mark.parametrize("cap_mb", ["25", "400"])
def test_ddp_is_bounded_from_above_within_ten_points(run_ranks, cap_mb: str) -> None:
    words = ("--steps", "60", "--bucket-cap-mb", cap_mb)
    live = run_ranks(DDP, nproc=NPROC, options=("--source", "events", "--every", "2"), arguments=words)
    profiled = run_ranks(PROFILED_JOB, nproc=NPROC, agent=False, arguments=(str(DDP), *words))
    assert live.codes == profiled.codes == [0] * NPROC, (live.errs, profiled.errs)
    truth = json.loads(next(line for line in profiled.outs[0].splitlines() if line.startswith("{")))
    measured = [step for step in live.steps() if step.measured and step.step >= 10]
    print(
        f"bucket {cap_mb} MB: live {live_overlap(live):.3f}, profiler {truth['overlap']:.3f}; "
        f"{measured[-1].collectives} collectives a step, profiler {truth['collectives']}"
    )
    assert_bounds(live_overlap(live), truth["overlap"])
    assert measured[-1].collectives == truth["collectives"]


@two_gpus
def test_fsdp2_is_bounded_from_above_within_ten_points(run_ranks, tmp_path: Path) -> None:
    script = tmp_path / "fsdp2.py"
    script.write_text(FSDP2)
    live = run_ranks(script, nproc=NPROC, options=("--source", "events", "--every", "2"))
    profiled = run_ranks(PROFILED_JOB, nproc=NPROC, agent=False, arguments=(str(script),))
    assert live.codes == profiled.codes == [0] * NPROC, (live.errs, profiled.errs)
    truth = json.loads(profiled.outs[0].splitlines()[-1])
    last = live.details()[-1]
    print(f"FSDP2: live {live_overlap(live):.3f}, profiler {truth['overlap']:.3f}; {live.errs[0][-300:]}")
    assert {each.op for each in last.collectives} == {"_allgather_base_", "_reduce_scatter_base_"}
    assert len(last.collectives) == truth["collectives"]
    assert_bounds(live_overlap(live), truth["overlap"])


@two_gpus
def test_deterministic_losses_on_gpus_lose_no_bit(run_ranks, tmp_path: Path) -> None:
    losses = []
    for agent in (False, True):
        path = tmp_path / f"losses-{agent}"
        words = ("--deterministic", "--layers", "4", "--batch", "2", "--steps", "40", "--losses", str(path))
        job = run_ranks(
            DDP, nproc=NPROC, agent=agent, options=("--source", "events", "--every", "1"), arguments=words
        )
        assert job.codes == [0] * NPROC, job.errs
        losses.append(path.read_text())
    assert losses[1] == losses[0]
    assert sum(step.measured for step in job.steps()) > 20


@two_gpus
def test_with_one_connection_only_phases_are_measured_and_the_reason_is_said(
    run_ranks, monkeypatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    words = ("--layers", "2", "--steps", "12")
    job = run_ranks(DDP, nproc=NPROC, options=("--source", "events"), arguments=words)
    assert job.codes == [0] * NPROC, job.errs
    assert job.info().source == "events"
    assert job.info().detail_every == 0
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in job.info().source_reason
    assert all(not step.measured and step.backward_ns > 0 for step in job.steps())


def test_a_step_captured_in_a_graph_is_left_alone(run_ranks) -> None:
    job = run_ranks(
        """
        import torch
        import overlaptop.agent
        x = torch.ones(64, 64, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([x], 0.1)
        def train():
            optimizer.zero_grad(set_to_none=False)
            (x * x).sum().backward()
            optimizer.step()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(4):
                train()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            train()
        for _ in range(20):
            graph.replay()
            overlaptop.agent.step()
        torch.cuda.synchronize()
        overlaptop.agent.step()
        print(x.sum().item())
        """,
        nproc=1,
        options=("--source", "events", "--every", "1"),
    )
    assert job.codes == [0], job.errs
    assert job.errs[0] == ""
    assert len(job.steps()) > 15


@two_gpus
def test_a_job_that_never_sets_its_device_is_measured_and_batched_p2p_is_left_out(run_ranks) -> None:
    """Asking NCCL's Work of a coalesced call for its future would end the process."""
    job = run_ranks(
        """
        import os
        import torch, torch.distributed as dist
        rank = int(os.environ["LOCAL_RANK"])
        device = torch.device("cuda", rank)
        dist.init_process_group("nccl")
        weight = torch.ones(1024, 1024, device=device, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        for step in range(24):
            (weight @ weight).sum().backward()
            dist.all_reduce(weight.grad, async_op=True).wait()
            if step >= 12:
                ops = [
                    dist.P2POp(dist.isend, torch.ones(8, device=device), 1 - rank),
                    dist.P2POp(dist.irecv, torch.ones(8, device=device), 1 - rank),
                ]
                for work in dist.batch_isend_irecv(ops):
                    work.wait()
            optimizer.step()
            torch.cuda.synchronize(device)
        dist.destroy_process_group()
        """,
        nproc=NPROC,
        options=("--source", "events", "--every", "1"),
    )
    assert job.codes == [0] * NPROC, job.errs
    assert not any("disabled itself" in err for err in job.errs), job.errs
    for rank in range(NPROC):
        known = [step.overlap is not None for step in job.steps(rank)]
        # Step 0 ends with the second iteration; the thirteenth is the first with point-to-point calls.
        assert known == [True] * 11 + [False] * (len(known) - 11)
        assert len(known) > 18
    assert "its end is hidden" in job.info().source_reason
