"""Another bucket size while a job trains: the same gradients, the same step on all ranks, or nothing."""

import os
import signal

from overlaptop.jobs.record import list_jobs
from overlaptop.wire.knobs import GradientFacts, Knob
from overlaptop.wire.messages import EnvironmentVariable

BUCKET_CAP_MB = Knob("bucket_cap_mb", None, "", "", 1, 10_000)


def test_ranks_train_to_the_same_bits_with_any_bucket_sizes(train_twice):
    train_twice("ddp", 2, 31, 6)


def test_ranks_send_their_knobs_to_each_new_hub(shared, watch):
    first = watch()
    told = first.knob("bucket_cap_mb", "25")
    assert told == Knob(
        "bucket_cap_mb", 25, "25", "25", 1, 10_000, unit="MiB", owner="DistributedDataParallel",
        about=told.about, code="DistributedDataParallel(model, bucket_cap_mb={value})",
    )  # fmt: skip
    assert first.knob("accumulation", "3").choices == (1, 2, 3, 8)
    assert [each.knob.name for each in first.look().knobs] == ["bucket_cap_mb", "accumulation"]
    first.until_it_trains()
    known = first.until(
        lambda snapshot: (
            all(view.gradients and view.environment for view in snapshot.ranks) and snapshot.ranks
        )
    )
    for rank, view in enumerate(known):
        told = GradientFacts(rank, (1 << 20,) * 3, 2, "0 default_pg", 1 << 20, False, False, False)
        assert view.gradients == told
        assert view.environment.variables == (EnvironmentVariable("NCCL_IB_DISABLE", "1"),)
    os.kill(list_jobs()[0].hub_pid, signal.SIGKILL)
    late = watch()
    late.knob("bucket_cap_mb", "25")
    late.until(lambda snapshot: all(view.gradients is not None for view in snapshot.ranks))
    late.until_it_trains()
    assert late.set(BUCKET_CAP_MB, 2).state == "changed"
    assert late.knob("bucket_cap_mb", "2").original_text == "25"
    assert late.set(BUCKET_CAP_MB, None).new == "25"
    late.knob("bucket_cap_mb", "25")


BEGIN = """
    import gc

    import torch, torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    from overlaptop.agent.control.action import KnobTrial
    from overlaptop.agent.isolation.fault_barrier import FaultBarrier
    from overlaptop.agent.knobs.change_bucket_size import BucketKnob

    dist.init_process_group("gloo")
    knob = BucketKnob(FaultBarrier(lambda level, text: print(text)))
    knob.install()

    def ddp(**options):
        return DistributedDataParallel(torch.nn.Linear(4, 4), **options)

    def to_50():
        return knob.action("bucket_cap_mb", 50)

    def state(model):
        return model.bucket_bytes_cap >> 20, len(model._forward_pre_hooks)
"""
REFUSALS = """
    def refused(why=""):
        (told,) = knob.knobs()
        assert why in told.refusal and bool(why) == bool(told.refusal), (why, told.refusal)

    assert knob.knobs() == ()
    model = ddp()
    action = to_50()
    refused()
    other = ddp()
    refused("the job has 2 DistributedDataParallel models, and only one could be meant")
    assert action.refusal() == knob.knobs()[0].refusal
    del model, other, action
    model = ddp()
    action = to_50()
    for step in range(17):
        try:
            assert action.boundary(step), step
        except RuntimeError as fault:
            said = str(fault)
            assert step == 16
        with model.no_sync():
            model(torch.ones(4)).sum().backward()
        with torch.no_grad():
            model(torch.ones(4))
    assert said == "in 16 steps the model made no forward pass whose gradients it reduces"
    assert state(model) == (25, 0)
    del model, action
    in_cpp = dist.BuiltinCommHookType.ALLREDUCE
    for why, spoil in {
        "a communication hook in C++": lambda model: model._register_builtin_comm_hook(in_cpp),
        "is compiled": lambda model: torch.compile(model, backend="eager"),
        "model is compiled": lambda model: model.compile(backend="eager"),
        "(PowerSGDState)": lambda model: model.register_comm_hook(PowerSGDState(None), powerSGD_hook),
        "other parameters are trained now": lambda model: model.module.bias.requires_grad_(False),
        "join()": lambda model: model.join(),
    }.items():
        model = ddp()
        refused()
        spoilt = spoil(model)
        refused(why)
        del model, spoilt
        gc.collect()
    model = DistributedDataParallel(torch.compile(torch.nn.Linear(4, 4), backend="eager"))
    model(torch.ones(4)).sum().backward()
    refused("is compiled")
    model = ddp(bucket_cap_mb_list=[1, 2])
    refused("bucket_cap_mb_list")
    model = ddp()
    del DistributedDataParallel._ddp_init_helper
    refused("has no attribute '_ddp_init_helper'")
    dist.destroy_process_group()
"""


def test_unsafe_change_is_refused_with_its_reason(run_ranks):
    job = run_ranks(BEGIN + REFUSALS, nproc=1, agent=False, listen=False, forked=True)
    assert job.codes == [0], job.errs


FAULTS = """
    def train(fails, trial=False):
        gc.collect()  # what is put in place of its method below holds the model
        torch.manual_seed(0)
        model = ddp(bucket_cap_mb=3)
        make, left = model._ddp_init_helper, [fails]
        def failing(*args):
            if left[0]:
                left[0] -= 1
                raise MemoryError("on purpose")
            make(*args)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        action, weights, more = KnobTrial(to_50(), 4) if trial else to_50(), [], fails is not None
        for step in range(12):
            knob.note_step(step)
            if step == 3 and more:
                model._ddp_init_helper = failing
            if step >= 3 and more:
                more = action.boundary(step)
            model(torch.randn(2, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            weights.append(model.module.weight.sum().item())
        if fails is not None:
            try:
                print("said", action.finish().text)
            except RuntimeError as fault:
                print("failed", fault)
            print(state(model), weights == plain)
        return weights

    plain = train(None)
    train(1)
    train(dist.get_rank())
    train(dist.get_rank(), trial=True)
    try:
        train(2)
    except MemoryError as fault:
        print("raised", fault)
    dist.destroy_process_group()
"""


def test_reducer_that_cannot_be_made_is_made_as_before(run_ranks):
    job = run_ranks(BEGIN + FAULTS, agent=False, listen=False, forked=True)
    assert job.codes == [0, 0], job.errs
    failed = ["failed MemoryError: on purpose; the buckets are of 3 MiB again", "(3, 0) True"]
    changed = ["said bucket_cap_mb 3 → 50 at step 3", "(50, 0) True"]
    tried = ["said bucket_cap_mb 3 → 50 at step 3, back at step 7", "(3, 0) True"]
    # Both ranks, then rank 1 alone, which takes part in rank 0's buckets all the same (also in a trial),
    # then both for good.
    assert job.outs[0].splitlines() == [*failed, *changed, *tried, "raised on purpose"]
    assert job.outs[1].splitlines() == [*failed, *failed, *failed, "raised on purpose"]
